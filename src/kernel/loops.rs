//! The iterations of loops that a launch has for certain, for drivers that leave loops after a number of them.
//!
//! Followed are the first invocations of the first and of the last workgroup. A loop counts if its counter has a known start,
//! bound and step, and if nothing else may end it. What depends on the elements of tensors is not known.

use naga::{BinaryOperator, Block, Expression, Function, Handle, LocalVariable, Module, Span, Statement};

use super::WgslKernel;
use super::known::{Frame, Given, Number, Value, builtins};
use super::output::Output;
use crate::device::Device;
use crate::device::gpu::Gpu;
use crate::error::Result;
use crate::sync;
use crate::tensor::Tensor;

/// A loop with at most so many iterations, of which a compiler knows how many, may be unrolled.
const MAX_UNROLLED: u64 = 32;
/// Blocks within blocks, through calls as well; what is deeper is not known. It bounds the stack that this takes.
const MAX_DEPTH: usize = 128;

/// What a part of a kernel does.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    /// The iterations of loops that it has for certain.
    iterations: u64,
    /// The loop that has the most of them.
    at: Span,
    /// Whether there may be more.
    open: bool,
    /// Whether statements may be left out after it: those of the loop, of the iteration, of the function.
    breaks: bool,
    continues: bool,
    returns: bool,
}

impl Work {
    fn leaves(&self) -> bool {
        self.breaks || self.continues || self.returns
    }

    /// Adds what follows for certain, unless this may leave the block.
    fn then(mut self, next: Work) -> Work {
        if self.leaves() {
            self.open |= next.iterations > 0;
        } else {
            self.at = if next.iterations > self.iterations { next.at } else { self.at };
            self.iterations = self.iterations.saturating_add(next.iterations);
        }
        self.joined(next)
    }

    /// Returns one of two, of which the kernel does either.
    fn or(self, other: Work) -> Work {
        let (least, most) = if self.iterations <= other.iterations { (self, other) } else { (other, self) };
        Work { open: least.open || most.iterations > least.iterations, ..least }.joined(most)
    }

    fn joined(mut self, other: Work) -> Work {
        self.open |= other.open;
        self.breaks |= other.breaks;
        self.continues |= other.continues;
        self.returns |= other.returns;
        self
    }
}

/// A write to a variable within a loop.
#[derive(Clone, Copy, Debug)]
struct Write {
    variable: Handle<LocalVariable>,
    /// What an iteration writes once, if it comes there.
    value: Option<Handle<Expression>>,
    /// Whether an iteration comes there in any case.
    always: bool,
}

/// The condition of a loop at its beginning, and what it is if the loop goes on.
type Header = (usize, Handle<Expression>, bool);

struct Walk<'a> {
    module: &'a Module,
    given: &'a Given<'a>,
    /// The iterations after which nobody counts.
    most: u64,
}

impl WgslKernel {
    /// Checks what is known of the kernel's loops on a device whose driver leaves them after a number of iterations.
    pub(super) fn check_loops(
        &self,
        (device, gpu): (&Device, &Gpu),
        inputs: &[&Tensor],
        outputs: &[Output],
        words: &[u32],
        groups: [u32; 3],
    ) -> Result<()> {
        let (Some(module), Some(budget)) = (&self.loops, gpu.caps().loop_budget) else { return Ok(()) };
        let (mut read, mut written) = (
            inputs.iter().map(|input| input.elem_count()),
            outputs.iter().map(|output| output.shape.dims().iter().product::<usize>()),
        );
        let mut lengths = Vec::new();
        for arg in &self.reflection.bindings {
            let numbers = if arg.written { written.next() } else { read.next() };
            if let (Some(numbers), 1..) = (numbers, arg.width) {
                lengths.push((arg.binding, (numbers.saturating_sub(arg.head) / arg.width) as u32));
            }
        }
        let last = groups.map(|count| count.saturating_sub(1));
        let workgroup_size = self.reflection.workgroup_size;
        let mut given = Given { words, lengths, groups, group: [0; 3], workgroup_size };
        let mut work = iterations(module, &self.entry, &given, budget.into());
        if last != given.group {
            given.group = last;
            let other = iterations(module, &self.entry, &given, budget.into());
            let most = if other.iterations > work.iterations { other } else { work };
            work = Work { open: work.open || other.open, ..most };
        }
        let driver = &device.info().driver;
        if work.iterations > u64::from(budget) {
            let line = work.at.location(&self.source).line_number;
            return Err(self.error(format!(
                "line {line}: each invocation has {} or more iterations of loops, and the driver of {device} ({driver}) leaves \
                 all loops of an invocation after {budget}, without an error: spread the work over more invocations or \
                 launches, use another device, or launch it with .on(&device) and .allow_long_loops() to run it nevertheless",
                work.iterations
            )));
        }
        if work.open && !sync::lock(&self.pipelines).contains_key(device) {
            log::warn!(
                "kernel {} has loops whose iterations depend on data, and the driver of {device} ({driver}) silently leaves all \
                 loops of an invocation after {budget} iterations in total: give each invocation less work",
                self.entry
            );
        }
        Ok(())
    }
}

/// Returns the iterations of the first invocation of a workgroup. `most` and some more may be any number.
fn iterations(module: &Module, entry: &str, given: &Given, most: u64) -> Work {
    let Some(point) = module.entry_points.iter().find(|point| point.name == entry) else { return Work::default() };
    let arguments = builtins(module, &point.function.arguments, given);
    Walk { module, given, most }.function(&point.function, arguments, 0)
}

impl Walk<'_> {
    fn function(&self, function: &Function, arguments: Vec<Option<Value>>, depth: usize) -> Work {
        let mut frame = Frame::new(self.module, function, self.given, arguments);
        let work = self.block(&mut frame, &function.body, None, depth);
        Work { breaks: false, continues: false, returns: false, ..work }
    }

    /// Follows a block, but for one statement of it.
    fn block(&self, frame: &mut Frame, block: &Block, without: Option<usize>, depth: usize) -> Work {
        if depth >= MAX_DEPTH {
            return Work { open: true, ..Work::default() };
        }
        let statements = block.span_iter().enumerate().filter(|(i, _)| Some(*i) != without);
        statements.fold(Work::default(), |work, (_, (statement, span))| {
            work.then(self.statement(frame, statement, *span, depth + 1))
        })
    }

    fn statement(&self, frame: &mut Frame, statement: &Statement, span: Span, depth: usize) -> Work {
        match statement {
            Statement::Emit(range) => frame.emit(range),
            Statement::Store { pointer, value } => frame.store(*pointer, *value),
            Statement::Block(block) => return self.block(frame, block, None, depth),
            Statement::If { condition, accept, reject } => {
                return match frame.number(*condition) {
                    Some(known) => self.block(frame, if known.value != 0 { accept } else { reject }, None, depth),
                    None => self.one_of(frame, [accept, reject].into_iter(), depth),
                };
            }
            Statement::Switch { cases, .. } => {
                let work = self.one_of(frame, cases.iter().map(|case| &case.body), depth);
                return Work { breaks: false, ..work };
            }
            Statement::Loop { body, continuing, break_if } => {
                return self.repeated(frame, (body, continuing, break_if.is_some()), span, depth);
            }
            Statement::Break => return Work { breaks: true, ..Work::default() },
            Statement::Continue => return Work { continues: true, ..Work::default() },
            Statement::Return { .. } | Statement::Kill => return Work { returns: true, ..Work::default() },
            Statement::Call { function, arguments, .. } => {
                let values = arguments.iter().map(|argument| frame.value(*argument)).collect();
                for variable in arguments.iter().filter_map(|argument| frame.root(*argument)).collect::<Vec<_>>() {
                    frame.variables.insert(variable, None);
                }
                return self.function(&self.module.functions[*function], values, depth);
            }
            _ => {}
        }
        Work::default()
    }

    /// Follows blocks of which the kernel runs one.
    fn one_of<'b>(&self, frame: &mut Frame, blocks: impl Iterator<Item = &'b Block>, depth: usize) -> Work {
        let before = frame.variables.clone();
        let (mut after, mut all) = (None, None);
        for block in blocks {
            frame.variables.clone_from(&before);
            let work = self.block(frame, block, None, depth);
            all = Some(all.map_or(work, |all: Work| all.or(work)));
            let variables = &frame.variables;
            let merged = after.get_or_insert_with(|| variables.clone());
            for (variable, value) in merged.iter_mut() {
                if variables.get(variable) != Some(&*value) {
                    *value = None;
                }
            }
        }
        frame.variables = after.unwrap_or(before);
        all.unwrap_or_default()
    }

    fn repeated(
        &self,
        frame: &mut Frame,
        (body, continuing, break_if): (&Block, &Block, bool),
        span: Span,
        depth: usize,
    ) -> Work {
        let start = frame.variables.clone();
        let mut writes = Vec::new();
        find_writes(frame, body, true, false, &mut writes);
        find_writes(frame, continuing, true, true, &mut writes);
        let forget =
            |frame: &mut Frame| writes.iter().for_each(|write| drop(frame.variables.insert(write.variable, None)));
        forget(frame);
        let header = header(body);
        let inner = self.block(frame, body, header.map(|(at, ..)| at), depth);
        let last = self.block(frame, continuing, None, depth);
        let continues = inner.continues;
        let inner = inner.then(last);
        let trips = match header {
            Some(header) => self.trips(frame, header, &writes, continues, |variable| start.get(&variable)?.clone()),
            None => Some((self.most.saturating_add(1), false)),
        };
        forget(frame);
        let may_end = inner.breaks || inner.returns || break_if;
        let iterations = match trips {
            Some((trips, _)) if may_end => inner.iterations.saturating_mul(trips.min(1)),
            // The driver also counts the iteration that ends the loop.
            Some((trips, fixed)) if !fixed || trips > MAX_UNROLLED => {
                trips.saturating_mul(inner.iterations.saturating_add(1)).saturating_add(1)
            }
            Some((trips, _)) => trips.saturating_mul(inner.iterations),
            None => 0,
        };
        let open = inner.open || may_end || trips.is_none();
        Work { iterations, at: span, open, breaks: false, continues: false, returns: inner.returns }
    }

    /// Returns the iterations of a loop by its counter, and whether a compiler knows them.
    fn trips(
        &self,
        frame: &Frame,
        (_, condition, goes_on): Header,
        writes: &[Write],
        continues: bool,
        start: impl Fn(Handle<LocalVariable>) -> Option<Value>,
    ) -> Option<(u64, bool)> {
        let expressions = &frame.function.expressions;
        let loaded = |handle: Handle<Expression>| match expressions[handle] {
            Expression::Load { pointer } => match expressions[pointer] {
                Expression::LocalVariable(variable) => Some(variable),
                _ => None,
            },
            _ => None,
        };
        let Expression::Binary { op, left, right } = expressions[condition] else { return None };
        let counter = |side| loaded(side).filter(|variable| writes.iter().any(|write| write.variable == *variable));
        let (counter, bound, is_left) = match (counter(left), counter(right)) {
            (Some(counter), None) => (counter, right, true),
            (None, Some(counter)) => (counter, left, false),
            _ => return None,
        };
        let mut of_counter = writes.iter().filter(|write| write.variable == counter);
        let (Some(write), None) = (of_counter.next(), of_counter.next()) else { return None };
        if continues && !write.always {
            return None;
        }
        let Expression::Binary { op: update, left, right } = expressions[write.value?] else { return None };
        let commutes = matches!(update, BinaryOperator::Add | BinaryOperator::Multiply);
        let step = match (loaded(left) == Some(counter), loaded(right) == Some(counter)) {
            (true, false) => right,
            (false, true) if commutes => left,
            _ => return None,
        };
        let (bound, step) = (frame.number(bound)?, frame.number(step)?);
        let mut value = start(counter)?.number()?;
        let fixed = value.fixed && bound.fixed && step.fixed;
        let mut trips = 0;
        while trips <= self.most {
            let (left, right) = if is_left { (value, bound) } else { (bound, value) };
            if (Number::binary(op, left, right)?.value != 0) != goes_on {
                break;
            }
            trips += 1;
            value = Number::binary(update, value, step)?;
        }
        Some((trips, fixed))
    }
}

/// Returns the condition of a loop that comes before all its other statements.
fn header(body: &Block) -> Option<Header> {
    let first = body.iter().enumerate().find(|(_, statement)| !matches!(statement, Statement::Emit(_)))?;
    let (at, Statement::If { condition, accept, reject }) = first else { return None };
    match (&accept[..], &reject[..]) {
        ([], [Statement::Break]) => Some((at, *condition, true)),
        ([Statement::Break], []) => Some((at, *condition, false)),
        _ => None,
    }
}

/// Adds what the statements of a loop write to variables of the function.
fn find_writes(frame: &Frame, block: &Block, once: bool, always: bool, found: &mut Vec<Write>) {
    let mut add = |pointer: Handle<Expression>, value: Option<Handle<Expression>>| {
        if let Some(variable) = frame.root(pointer) {
            let whole = matches!(frame.function.expressions[pointer], Expression::LocalVariable(_));
            found.push(Write { variable, value: value.filter(|_| once && whole), always });
        }
    };
    for statement in block.iter() {
        match statement {
            Statement::Store { pointer, value } => add(*pointer, Some(*value)),
            Statement::Call { arguments, .. } => arguments.iter().for_each(|argument| add(*argument, None)),
            _ => {}
        }
    }
    for statement in block.iter() {
        match statement {
            Statement::Block(block) => find_writes(frame, block, once, always, found),
            Statement::If { accept, reject, .. } => {
                find_writes(frame, accept, false, always, found);
                find_writes(frame, reject, false, always, found);
            }
            Statement::Switch { cases, .. } => {
                cases.iter().for_each(|case| find_writes(frame, &case.body, false, always, found));
            }
            Statement::Loop { body, continuing, .. } => {
                find_writes(frame, body, false, always, found);
                find_writes(frame, continuing, false, always, found);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
