//! Limits on the size of users' kernels, and a stack that is large enough for those within them.
//!
//! naga and the compilers of drivers are recursive: a sum of 20 000 terms ends a process whose stack is too small, and
//! functions that call each other twice double the code at each level.

use naga::{Block, Expression, Function, Statement};

/// The most bytes of a source.
const MAX_SOURCE: usize = 256 << 10;
/// The most levels of an expression.
const MAX_DEPTH: usize = 1000;
/// The most statements of an entry point with all the functions that it calls, each as often as it is called.
const MAX_STATEMENTS: usize = 100_000;
/// Bytes of stack for each byte of source. An operator takes two bytes, and each is one level of recursion in naga.
const STACK_PER_BYTE: usize = 4 << 10;

/// Runs `f` on a thread with a stack for a source of this length. Only what `f` uses of the stack takes memory.
pub(super) fn on_large_stack<T: Send>(source: &str, f: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    if source.len() > MAX_SOURCE {
        return Err(format!("the source has {} bytes, and the limit is {MAX_SOURCE}: split the kernel", source.len()));
    }
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().stack_size((8 << 20) + source.len() * STACK_PER_BYTE);
        let thread = builder.spawn_scoped(scope, f).map_err(|error| format!("no thread to compile it: {error}"))?;
        let panicked = |panic: Box<dyn std::any::Any + Send>| crate::sync::panic_message(&*panic);
        thread.join().map_err(|panic| format!("the compiler panicked: {}", panicked(panic)))?
    })
}

/// Checks the depth of all expressions and the length of the entry points with their calls expanded.
pub(super) fn check(module: &naga::Module) -> Result<(), String> {
    let functions = module.functions.iter().map(|(_, function)| function);
    let entries = module.entry_points.iter().map(|point| &point.function);
    // naga orders functions so that those that are called come first.
    let mut statements: Vec<usize> = Vec::new();
    for function in functions.chain(entries) {
        let name = function.name.as_deref().unwrap_or("the entry point");
        let depth = depth(function);
        if depth > MAX_DEPTH {
            let detail = "name parts of it with let";
            return Err(format!(
                "an expression of '{name}' has {depth} levels, and the limit is {MAX_DEPTH}: {detail}"
            ));
        }
        let count = expanded(&function.body, &statements);
        if count > MAX_STATEMENTS {
            let detail = "with all calls expanded, and the limit is";
            return Err(format!("'{name}' has {count} statements {detail} {MAX_STATEMENTS}: use a loop"));
        }
        statements.push(count);
    }
    Ok(())
}

/// Returns the number of statements, where a call counts as those of the function that it calls.
fn expanded(block: &Block, functions: &[usize]) -> usize {
    let count = |statement: &Statement| match statement {
        Statement::Block(inner) => expanded(inner, functions),
        Statement::If { accept, reject, .. } => expanded(accept, functions).saturating_add(expanded(reject, functions)),
        Statement::Switch { cases, .. } => {
            cases.iter().map(|case| expanded(&case.body, functions)).fold(0, usize::saturating_add)
        }
        Statement::Loop { body, continuing, .. } => {
            expanded(body, functions).saturating_add(expanded(continuing, functions))
        }
        Statement::Call { function, .. } => functions.get(function.index()).copied().unwrap_or(0),
        _ => 0,
    };
    block.iter().map(|statement| count(statement).saturating_add(1)).fold(0, usize::saturating_add)
}

/// Returns the most levels of an expression. A named one (`let`) is a variable where it is used.
fn depth(function: &Function) -> usize {
    let mut levels: Vec<usize> = Vec::with_capacity(function.expressions.len());
    let mut deepest = 0;
    for (handle, expression) in function.expressions.iter() {
        let level =
            1 + operands(expression).into_iter().map(|i| levels.get(i).copied().unwrap_or(0)).max().unwrap_or(0);
        deepest = deepest.max(level);
        levels.push(if function.named_expressions.contains_key(&handle) { 0 } else { level });
    }
    deepest
}

/// Returns the indices of an expression's operands. Texture expressions are left out, since kernels bind no textures.
fn operands(expression: &Expression) -> Vec<usize> {
    let handles = match expression {
        Expression::Access { base, index } => vec![*base, *index],
        Expression::AccessIndex { base, .. } => vec![*base],
        Expression::Splat { value, .. } => vec![*value],
        Expression::Swizzle { vector, .. } => vec![*vector],
        Expression::Compose { components, .. } => components.clone(),
        Expression::Load { pointer } => vec![*pointer],
        Expression::Unary { expr, .. } | Expression::As { expr, .. } | Expression::ArrayLength(expr) => vec![*expr],
        Expression::Binary { left, right, .. } => vec![*left, *right],
        Expression::Select { condition, accept, reject } => vec![*condition, *accept, *reject],
        Expression::Relational { argument, .. } => vec![*argument],
        Expression::Math { arg, arg1, arg2, arg3, .. } => {
            [Some(*arg), *arg1, *arg2, *arg3].into_iter().flatten().collect()
        }
        _ => Vec::new(),
    };
    handles.into_iter().map(|handle| handle.index()).collect()
}
