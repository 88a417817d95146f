//! Limits on the size of users' kernels, and a stack that is large enough for kernels within them.
//!
//! naga and the compilers of drivers are recursive: a sum of 20 000 terms ends a process whose stack is too small, and
//! functions that call each other twice double the code at each level.

use std::sync::mpsc::{RecvTimeoutError, channel};

use naga::valid::{FunctionInfo, ModuleInfo};
use naga::{AddressSpace, Block, Expression, Function, Handle, Module, Statement, Type};
use web_time::{Duration, Instant};

use crate::util::threads::THREADS;

/// The most bytes of a source.
const MAX_SOURCE: usize = 256 << 10;
/// The most levels of an expression.
const MAX_DEPTH: usize = 1000;
/// The most statements of an entry point with all the functions that it calls, each as often as it is called.
const MAX_STATEMENTS: usize = 100_000;
/// The most bytes of the variables of a function, and of the variables in private memory of an entry point: WGSL
/// asks every adapter for as many. Some drivers take minutes to compile more, or end the process.
const MAX_VARIABLES: u64 = 8192;
/// The most bytes of the variables of an entry point with all the functions that it calls, each as often as it is called.
const MAX_EXPANDED: u64 = 64 << 10;
/// The most bytes of a value, for instance of a constant array.
const MAX_VALUE: u64 = 64 << 10;
/// Bytes of stack for each byte of source. An operator takes two bytes, and each is one level of recursion in naga.
const STACK_PER_BYTE: usize = 4 << 10;

/// Where no other thread can be started: the most bytes of a statement without its white space, and the most brackets within each other.
const SMALL_STACK: (usize, usize) = (2048, 64);

/// Returns an error for a source that naga's recursion may not have the stack of this thread for.
fn fits_small_stack(source: &str) -> Result<(), String> {
    let (most, deepest) = SMALL_STACK;
    let (mut bytes, mut depth) = (0, 0_usize);
    for c in source.bytes().filter(|c| !c.is_ascii_whitespace()) {
        match c {
            b';' => bytes = 0,
            b'{' | b'(' | b'[' => (bytes, depth) = (if c == b'{' { 0 } else { bytes + 1 }, depth + 1),
            b'}' | b')' | b']' => (bytes, depth) = (if c == b'}' { 0 } else { bytes + 1 }, depth.saturating_sub(1)),
            _ => bytes += 1,
        }
        if bytes > most {
            return Err(format!(
                "a statement has more than {most} bytes, the limit where there are no threads: split it"
            ));
        }
        if depth > deepest {
            return Err(format!("brackets are more than {deepest} deep, the limit where there are no threads"));
        }
    }
    Ok(())
}

/// Runs `f` on a thread with a stack for a source of this length. Only what `f` uses of the stack takes memory.
pub(super) fn on_large_stack<T: Send>(source: &str, f: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    watched(source, Duration::MAX, |_| {}, f)
}

/// As `on_large_stack`, and calls `slow` with the time so far if `f` takes longer than a time: while it runs, and at its end.
pub(super) fn watched<T: Send>(
    source: &str,
    time: Duration,
    slow: impl Fn(Slow),
    f: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, String> {
    if source.len() > MAX_SOURCE {
        return Err(format!("the source has {} bytes, and the limit is {MAX_SOURCE}: split the kernel", source.len()));
    }
    if !THREADS {
        return fits_small_stack(source).and_then(|()| f());
    }
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().stack_size((8 << 20) + source.len() * STACK_PER_BYTE);
        let (running, ended) = channel::<()>();
        let work = move || {
            let _running = running; // until it is dropped, by a panic too
            f()
        };
        let start = Instant::now();
        let thread = builder.spawn_scoped(scope, work).map_err(|error| format!("no thread to compile it: {error}"))?;
        if ended.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
            slow(Slow::Running(start.elapsed()));
            let _ = ended.recv();
            slow(Slow::Ended(start.elapsed()));
        }
        let panicked = |panic: Box<dyn std::any::Any + Send>| crate::util::sync::panic_message(&*panic);
        thread.join().map_err(|panic| format!("the compiler panicked: {}", panicked(panic)))?
    })
}

/// What is to be said of work that takes long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Slow {
    /// It has run for this long, and goes on.
    Running(Duration),
    /// It has ended after this long.
    Ended(Duration),
}

/// Checks the depth of all expressions, the length of the entry points with their calls expanded, and the memory of variables.
pub(super) fn check(module: &Module, info: &ModuleInfo) -> Result<(), String> {
    for (_, global) in module.global_variables.iter().filter(|(_, global)| global.space == AddressSpace::Private) {
        let name = global.name.as_deref().unwrap_or("a variable");
        within(size(module, global.ty), MAX_VARIABLES, || format!("'{name}' in private memory has"))?;
    }
    let functions = module.functions.iter().map(|(handle, function)| (function, &info[handle]));
    let entries = module.entry_points.iter().enumerate();
    let entries = entries.map(|(i, point)| (&point.function, info.get_entry_point(i)));
    // naga orders functions so that those that are called come first.
    let (mut statements, mut bytes): (Vec<usize>, Vec<u64>) = (Vec::new(), Vec::new());
    for (function, info) in functions.chain(entries) {
        bytes.push(variables(module, function, info, &bytes)?);
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

/// Checks the private variables of an entry point together.
pub(super) fn check_private(module: &Module, info: &FunctionInfo) -> Result<(), String> {
    let used = module.global_variables.iter().filter(|(handle, _)| !info[*handle].is_empty());
    let private = used.filter(|(_, global)| global.space == AddressSpace::Private);
    let bytes = private.map(|(_, global)| size(module, global.ty)).fold(0, u64::saturating_add);
    within(bytes, MAX_VARIABLES, || "the variables in private memory have".into())
}

/// Returns the bytes of a function's variables, including the variables of the functions that it calls.
fn variables(module: &Module, function: &Function, info: &FunctionInfo, called: &[u64]) -> Result<u64, String> {
    let name = function.name.as_deref().unwrap_or("the entry point");
    let own =
        function.local_variables.iter().map(|(_, variable)| size(module, variable.ty)).fold(0, u64::saturating_add);
    within(own, MAX_VARIABLES, || format!("the variables of '{name}' have"))?;
    for (handle, _) in function.expressions.iter() {
        let value = info[handle].ty.inner_with(&module.types).try_size(module.to_ctx());
        within(value.map_or(u64::MAX, u64::from), MAX_VALUE, || format!("a value of '{name}' has"))?;
    }
    let mut calls = Vec::new();
    add_calls(&function.body, &mut calls);
    let bytes = calls.iter().map(|&call| called.get(call).copied().unwrap_or(0)).fold(own, u64::saturating_add);
    within(bytes, MAX_EXPANDED, || format!("the variables of '{name}', with all calls expanded, have"))?;
    Ok(bytes)
}

/// Adds the numbers of the functions that are called, each as often as there are calls.
fn add_calls(block: &Block, calls: &mut Vec<usize>) {
    for statement in block.iter() {
        match statement {
            Statement::Call { function, .. } => calls.push(function.index()),
            Statement::Block(inner) => add_calls(inner, calls),
            Statement::If { accept, reject, .. } => {
                [accept, reject].into_iter().for_each(|block| add_calls(block, calls))
            }
            Statement::Switch { cases, .. } => cases.iter().for_each(|case| add_calls(&case.body, calls)),
            Statement::Loop { body, continuing, .. } => {
                [body, continuing].into_iter().for_each(|block| add_calls(block, calls));
            }
            _ => {}
        }
    }
}

fn size(module: &Module, ty: Handle<Type>) -> u64 {
    module.types[ty].inner.try_size(module.to_ctx()).map_or(u64::MAX, u64::from)
}

fn within(bytes: u64, most: u64, what: impl FnOnce() -> String) -> Result<(), String> {
    if bytes <= most {
        return Ok(());
    }
    let advice = "put large arrays into a storage buffer, or into workgroup memory";
    Err(format!("{} {bytes} bytes, and the limit is {most}: {advice}", what()))
}

/// Returns the number of statements. A call counts as many as the function that it calls.
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::thread::sleep;

    use super::*;

    #[test]
    fn slow_work_is_told_while_it_runs() {
        let told = RefCell::new(Vec::new());
        let slow = |slow| told.borrow_mut().push(slow);
        let millis = Duration::from_millis;
        let work = |time: Duration| {
            move || {
                sleep(time);
                Ok(7)
            }
        };
        assert_eq!(watched("", millis(60_000), slow, work(millis(0))), Ok(7));
        assert!(told.borrow().is_empty());
        assert_eq!(watched("", millis(10), slow, work(millis(300))), Ok(7));
        match told.borrow()[..] {
            [Slow::Running(first), Slow::Ended(last)] => {
                assert!(first < last && last >= millis(300), "{first:?} {last:?}")
            }
            ref other => panic!("{other:?}"),
        }
        let panicked = watched("", millis(10), slow, || -> Result<(), String> {
            sleep(millis(100));
            panic!("for a test")
        });
        assert!(panicked.is_err_and(|message| message.contains("for a test")));
    }
}
