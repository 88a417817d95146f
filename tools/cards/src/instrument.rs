//! An instrumented copy of a kernel: each access to a storage buffer or to workgroup memory also writes its place to a trace.
//!
//! The copy has a new entry point, which calls the function of the old one for a sample of the workgroups. All is done in
//! naga's intermediate form, after the overrides have got their values: a load is an expression that a statement emits, so the
//! call that writes the trace comes right after that statement, with the byte offset as further expressions.

use std::collections::HashMap;

use anygpu::interop::launches::KernelSource;
use naga::back::pipeline_constants::process_overrides;
use naga::compact::{KeepUnused, compact};
use naga::valid::{Capabilities, FunctionInfo, ModuleInfo, SubgroupOperationSet, ValidationFlags, Validator};
use naga::{
    AddressSpace, BinaryOperator, Binding, Block, BuiltIn, Expression, Function, FunctionArgument, GlobalVariable,
    Handle, Literal, MathFunction, Module, Scalar, ScalarKind, Span, Statement, Type, TypeInner, UniqueArena,
};

/// The name of the new entry point.
pub const ENTRY: &str = "cards_main_";

/// What names of this file begin with, in the text and in the module.
const OWN: &str = "cards_";

/// Precedes the text of a kernel: the functions that write the trace. An entry has the number of the site and the
/// byte. The sample begins with the workgroups of the grid, and the number of sampled invocations. Then come the
/// size of a workgroup, and the most entries of an invocation, after which all go to one place.
const BEFORE: &str = "
@group(1) @binding(0) var<storage, read_write> cards_trace_: array<vec2<u32>>;
@group(1) @binding(1) var<storage, read_write> cards_ends_: array<vec2<u32>>;
@group(1) @binding(2) var<storage, read> cards_sample_: array<vec4<u32>>;
var<private> cards_n_: u32;
var<private> cards_slot_: u32;
var<private> cards_flops_: u32;
fn cards_note_(site: u32, at: u32) {
    cards_trace_[min(cards_n_, cards_sample_[1].w) * cards_sample_[0].w + cards_slot_] = vec2<u32>(site, at);
    cards_n_ += 1u;
}
fn cards_count_(flops: u32) {
    cards_flops_ += flops;
}
";

/// Follows the text. The call of `cards_kernel_` becomes a call of the kernel's function.
const AFTER: &str = "
fn cards_kernel_() {}
@compute @workgroup_size(1)
fn cards_main_(
    @builtin(workgroup_id) cards_at_: vec3<u32>,
    @builtin(local_invocation_id) cards_local_: vec3<u32>,
    @builtin(local_invocation_index) cards_index_: u32,
) {
    let cards_group_ = cards_sample_[2u + cards_at_.x].xyz;
    let cards_groups_ = cards_sample_[0].xyz;
    let cards_size_ = cards_sample_[1].xyz;
    let cards_global_ = cards_group_ * cards_size_ + cards_local_;
    cards_slot_ = cards_at_.x * (cards_size_.x * cards_size_.y * cards_size_.z) + cards_index_;
    cards_note_(0u, 0u);
    cards_count_(0u);
    cards_kernel_();
    cards_ends_[cards_slot_] = vec2<u32>(cards_n_, cards_flops_);
}
";

/// The memory of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// The storage buffer of a binding of group 0.
    Storage(u32),
    /// The memory of the workgroup.
    Workgroup,
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It reads.
    Load,
    /// It writes.
    Store,
    /// It does both.
    Atomic,
}

/// An access in the text of a kernel.
#[derive(Clone, Debug)]
pub struct Site {
    /// The function that has it, and the variable.
    pub name: String,
    /// The memory.
    pub place: Place,
    /// What it does.
    pub kind: Kind,
    /// The bytes that an invocation accesses.
    pub bytes: u32,
}

/// A kernel with a trace.
#[derive(Debug)]
pub struct Instrumented {
    /// The module, whose only entry point is [`ENTRY`].
    pub module: Module,
    /// The sites. Entry `n` of a trace with the number `n + 1` is of site `n`; 0 is the begin of the kernel.
    pub sites: Vec<Site>,
    /// Invocations of a workgroup in x, y and z.
    pub workgroup: [u32; 3],
}

/// Returns an instrumented copy of a kernel.
///
/// # Errors
///
/// A message, for a text that is not valid, or that has constructs that cannot be traced: cooperative matrices,
/// pointers to memory of workgroups as arguments.
pub fn instrument(source: &KernelSource) -> Result<Instrumented, String> {
    let (module, info) = prepared(source)?;
    let old = module.entry_points.iter().position(|point| point.name == source.entry).ok_or("no such entry point")?;
    let named = |name: &str| {
        let found = module.functions.iter().find(|(_, function)| function.name.as_deref() == Some(name));
        found.map(|(handle, _)| handle).ok_or("a function of the trace is missing")
    };
    let (note, count, stub) = (named("cards_note_")?, named("cards_count_")?, named("cards_kernel_")?);
    let mut rewriter = Rewriter {
        module: &module,
        note,
        count,
        bases: bases(&module),
        sites: Vec::new(),
        failure: None,
        name: String::new(),
    };
    let mut functions = Vec::new();
    for (handle, function) in module.functions.iter() {
        if !function.name.as_deref().is_some_and(|name| name.starts_with(OWN)) {
            functions.push((handle, rewriter.function(function, &info[handle])));
        }
    }
    let point = &module.entry_points[old];
    let mut kernel = rewriter.function(&point.function, info.get_entry_point(old));
    if let Some(failure) = rewriter.failure {
        return Err(failure);
    }
    let (sites, workgroup) = (rewriter.sites, point.workgroup_size);
    kernel.arguments.iter_mut().for_each(|argument| argument.binding = None);

    let mut new = module.clone();
    for (handle, function) in functions {
        *new.functions.get_mut(handle) = function;
    }
    let arguments = kernel.arguments.clone();
    let mut main = new.entry_points.swap_remove(1 - old);
    connect(&mut main.function, stub, &point.function.arguments, &arguments, &new.types)?;
    *new.functions.get_mut(stub) = Function { name: Some("kernel_".to_owned()), ..kernel };
    main.workgroup_size = workgroup;
    main.workgroup_size_overrides = None;
    new.entry_points = vec![main];
    Ok(Instrumented { module: new, sites, workgroup })
}

/// Returns the module with the two entry points, without overrides.
fn prepared(source: &KernelSource) -> Result<(Module, ModuleInfo), String> {
    let start = source.text.split_inclusive('\n').scan(0, |end, line| {
        *end += line.len();
        Some((*end, line.trim_start()))
    });
    let directives = ["enable ", "requires ", "diagnostic(", "diagnostic ("];
    let start = start.filter(|(_, line)| directives.iter().any(|word| line.starts_with(word))).last();
    let (before, after) = source.text.split_at(start.map_or(0, |(end, _)| end));
    let text = [before, BEFORE, after, AFTER].concat();
    let mut module = naga::front::wgsl::parse_str(&text).map_err(|error| error.emit_to_string(&text))?;
    module.entry_points.retain(|point| point.name == source.entry || point.name == ENTRY);
    if module.entry_points.len() != 2 {
        return Err(format!("there is no entry point {}", source.entry));
    }
    validate(&module)?;
    compact(&mut module, KeepUnused::No);
    let info = validate(&module)?;
    let has = |name: &str| module.overrides.iter().any(|(_, constant)| constant.name.as_deref() == Some(name));
    let constants = source.constants.iter().filter(|(name, _)| has(name)).cloned().collect();
    let (module, info) = process_overrides(&module, &info, None, &constants).map_err(|error| error.to_string())?;
    Ok((module.into_owned(), info.into_owned()))
}

fn validate(module: &Module) -> Result<ModuleInfo, String> {
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
    validator.subgroup_stages(naga::valid::ShaderStages::all());
    validator.subgroup_operations(SubgroupOperationSet::all());
    validator.validate(module).map_err(|error| format!("{:?}", error.into_inner()))
}

/// Returns where the variables in the memory of a workgroup begin, one after the other.
fn bases(module: &Module) -> HashMap<Handle<GlobalVariable>, u32> {
    let mut end = 0u32;
    let ours = module.global_variables.iter().filter(|(_, global)| global.space == AddressSpace::WorkGroup);
    ours.map(|(handle, global)| {
        let base = end;
        let size = module.types[global.ty].inner.try_size(module.to_ctx()).unwrap_or(0);
        end += size.next_multiple_of(16);
        (handle, base)
    })
    .collect()
}

/// Replaces the call of the stub in the new entry point by one with arguments.
fn connect(
    main: &mut Function,
    stub: Handle<Function>,
    old: &[FunctionArgument],
    arguments: &[FunctionArgument],
    types: &UniqueArena<Type>,
) -> Result<(), String> {
    let mut values = HashMap::new();
    for (handle, name) in &main.named_expressions {
        values.insert(name.clone(), *handle);
    }
    for (at, name) in ["cards_at_", "cards_local_", "cards_index_"].into_iter().enumerate() {
        let own =
            main.expressions.iter().find(|(_, e)| matches!(e, Expression::FunctionArgument(i) if *i == at as u32));
        values.extend(own.map(|(handle, _)| (name.to_owned(), handle)));
    }
    let mut builtin = |main: &mut Function, builtin: BuiltIn, ty: Handle<Type>| {
        let name = match builtin {
            BuiltIn::GlobalInvocationId => "cards_global_",
            BuiltIn::LocalInvocationId => "cards_local_",
            BuiltIn::LocalInvocationIndex => "cards_index_",
            BuiltIn::WorkGroupId => "cards_group_",
            BuiltIn::NumWorkGroups => "cards_groups_",
            BuiltIn::WorkGroupSize => "cards_size_",
            other => {
                let name = format!("{other:?}");
                if let Some(handle) = values.get(&name) {
                    return Ok(*handle);
                }
                let argument = main.arguments.len() as u32;
                let binding = Some(Binding::BuiltIn(other));
                main.arguments.push(FunctionArgument { name: Some(name.clone()), ty, binding });
                let handle = main.expressions.append(Expression::FunctionArgument(argument), Span::UNDEFINED);
                values.insert(name, handle);
                return Ok(handle);
            }
        };
        values.get(name).copied().ok_or_else(|| format!("the new entry point lacks {name}"))
    };
    let mut composed = Vec::new();
    let mut given = Vec::new();
    for (argument, bound) in arguments.iter().zip(old) {
        match (&bound.binding, &types[argument.ty].inner) {
            (Some(Binding::BuiltIn(which)), _) => given.push(Some(builtin(main, *which, argument.ty)?)),
            (None, TypeInner::Struct { members, .. }) => {
                let mut components = Vec::new();
                for member in members {
                    let Some(Binding::BuiltIn(which)) = member.binding else {
                        return Err("an unknown argument".into());
                    };
                    components.push(builtin(main, which, member.ty)?);
                }
                composed.push(Expression::Compose { ty: argument.ty, components });
                given.push(None);
            }
            _ => return Err("an unknown argument of the entry point".into()),
        }
    }
    let first = main.expressions.len();
    let mut made: Vec<_> = composed.into_iter().map(|e| main.expressions.append(e, Span::UNDEFINED)).collect();
    let emit = (!made.is_empty()).then(|| Statement::Emit(main.expressions.range_from(first)));
    made.reverse();
    let given: Option<Vec<_>> = given.into_iter().map(|value| value.or_else(|| made.pop())).collect();
    let call = Statement::Call { function: stub, arguments: given.unwrap_or_default(), result: None };
    let is_stub = |s: &Statement| matches!(s, Statement::Call { function, .. } if *function == stub);
    let at = main.body.iter().position(is_stub).ok_or("the new entry point does not call the kernel")?;
    main.body.splice(at..=at, Block::from_vec(emit.into_iter().chain([call]).collect()));
    Ok(())
}

/// The byte offset of a pointer: a constant, and indices with their factors.
struct Offset {
    global: Handle<GlobalVariable>,
    constant: u32,
    terms: Vec<(Handle<Expression>, u32)>,
}

struct Rewriter<'a> {
    module: &'a Module,
    note: Handle<Function>,
    count: Handle<Function>,
    bases: HashMap<Handle<GlobalVariable>, u32>,
    sites: Vec<Site>,
    failure: Option<String>,
    /// The name of the function that is rewritten.
    name: String,
}

impl Rewriter<'_> {
    fn function(&mut self, function: &Function, info: &FunctionInfo) -> Function {
        let mut new = function.clone();
        self.name = function.name.clone().unwrap_or_default();
        let body = std::mem::take(&mut new.body);
        new.body = self.block(&mut new, info, body);
        new
    }

    fn fail(&mut self, why: &str) {
        self.failure.get_or_insert_with(|| format!("{}: {why}", self.name));
    }

    fn block(&mut self, f: &mut Function, info: &FunctionInfo, block: Block) -> Block {
        let mut new = Vec::new();
        for (statement, _) in block.span_into_iter() {
            self.statement(f, info, statement, &mut new);
        }
        Block::from_vec(new)
    }

    fn statement(&mut self, f: &mut Function, info: &FunctionInfo, statement: Statement, new: &mut Vec<Statement>) {
        match statement {
            Statement::Emit(range) => self.emit(f, info, range, new),
            Statement::Block(block) => new.push(Statement::Block(self.block(f, info, block))),
            Statement::If { condition, accept, reject } => {
                let (accept, reject) = (self.block(f, info, accept), self.block(f, info, reject));
                new.push(Statement::If { condition, accept, reject });
            }
            Statement::Switch { selector, mut cases } => {
                for case in &mut cases {
                    case.body = self.block(f, info, std::mem::take(&mut case.body));
                }
                new.push(Statement::Switch { selector, cases });
            }
            Statement::Loop { body, continuing, break_if } => {
                let (body, continuing) = (self.block(f, info, body), self.block(f, info, continuing));
                new.push(Statement::Loop { body, continuing, break_if });
            }
            Statement::Store { pointer, .. } => {
                self.access(f, info, pointer, Kind::Store, new);
                new.push(statement);
            }
            Statement::Atomic { pointer, .. } => {
                self.access(f, info, pointer, Kind::Atomic, new);
                new.push(statement);
            }
            Statement::WorkGroupUniformLoad { pointer, .. } => {
                self.access(f, info, pointer, Kind::Load, new);
                new.push(statement);
            }
            Statement::CooperativeStore { .. } => self.fail("cooperative matrices are not traced"),
            other => new.push(other),
        }
    }

    /// Splits an emit after each load that is traced.
    fn emit(
        &mut self,
        f: &mut Function,
        info: &FunctionInfo,
        range: naga::Range<Expression>,
        new: &mut Vec<Statement>,
    ) {
        let (mut first, mut last, mut flops) = (None, None, 0);
        for handle in range {
            first = first.or(Some(handle));
            last = Some(handle);
            flops += self.flops(&f.expressions[handle], f, info, handle);
            match f.expressions[handle] {
                Expression::CooperativeLoad { .. } | Expression::CooperativeMultiplyAdd { .. } => {
                    self.fail("cooperative matrices are not traced");
                }
                Expression::Load { pointer } if self.is_traced(info, pointer) => {
                    new.extend(first.take().map(|first| Statement::Emit(naga::Range::new_from_bounds(first, handle))));
                    self.access(f, info, pointer, Kind::Load, new);
                }
                _ => {}
            }
        }
        if let (Some(first), Some(last)) = (first, last) {
            new.push(Statement::Emit(naga::Range::new_from_bounds(first, last)));
        }
        if flops > 0 {
            let flops = f.expressions.append(Expression::Literal(Literal::U32(flops)), Span::UNDEFINED);
            new.push(Statement::Call { function: self.count, arguments: vec![flops], result: None });
        }
    }

    fn inner<'a>(&'a self, info: &'a FunctionInfo, handle: Handle<Expression>) -> &'a TypeInner {
        info[handle].ty.inner_with(&self.module.types)
    }

    fn is_traced(&self, info: &FunctionInfo, pointer: Handle<Expression>) -> bool {
        let space = self.inner(info, pointer).pointer_space();
        matches!(space, Some(AddressSpace::Storage { .. } | AddressSpace::WorkGroup))
    }

    /// Adds what writes an access to the trace.
    fn access(
        &mut self,
        f: &mut Function,
        info: &FunctionInfo,
        pointer: Handle<Expression>,
        kind: Kind,
        new: &mut Vec<Statement>,
    ) {
        if !self.is_traced(info, pointer) {
            return;
        }
        let Some(offset) = self.offset(f, info, pointer) else {
            return self.fail("a pointer that is no path from a variable is not traced");
        };
        let bytes = match *self.inner(info, pointer) {
            TypeInner::Pointer { base, .. } => self.module.types[base].inner.try_size(self.module.to_ctx()),
            TypeInner::ValuePointer { size, scalar, .. } => {
                Some(size.map_or(1, |size| size as u32) * u32::from(scalar.width))
            }
            _ => None,
        };
        let Some(bytes) = bytes else { return self.fail("an access of unknown size is not traced") };
        let global = &self.module.global_variables[offset.global];
        let place = match (&global.space, &global.binding) {
            (AddressSpace::WorkGroup, _) => Place::Workgroup,
            (_, Some(binding)) if binding.group == 0 => Place::Storage(binding.binding),
            _ => return self.fail("a buffer in another group than 0 is not traced"),
        };
        let name = format!("{} {}", self.name, global.name.as_deref().unwrap_or("?"));
        self.sites.push(Site { name, place, kind, bytes });
        let base = self.bases.get(&offset.global).copied().unwrap_or(0);
        let literal =
            |f: &mut Function, v: u32| f.expressions.append(Expression::Literal(Literal::U32(v)), Span::UNDEFINED);
        let site = literal(f, self.sites.len() as u32);
        let mut sum = literal(f, base + offset.constant);
        let strides: Vec<_> = offset.terms.iter().map(|(_, stride)| literal(f, *stride)).collect();
        let first = f.expressions.len();
        for ((index, _), stride) in offset.terms.iter().zip(strides) {
            let signed = !matches!(self.inner(info, *index), TypeInner::Scalar(Scalar { kind: ScalarKind::Uint, .. }));
            let mut append = |e| f.expressions.append(e, Span::UNDEFINED);
            let index = match signed {
                true => append(Expression::As { expr: *index, kind: ScalarKind::Uint, convert: Some(4) }),
                false => *index,
            };
            let part = append(Expression::Binary { op: BinaryOperator::Multiply, left: index, right: stride });
            sum = append(Expression::Binary { op: BinaryOperator::Add, left: sum, right: part });
        }
        if f.expressions.len() > first {
            new.push(Statement::Emit(f.expressions.range_from(first)));
        }
        new.push(Statement::Call { function: self.note, arguments: vec![site, sum], result: None });
    }

    fn offset(&self, f: &Function, info: &FunctionInfo, pointer: Handle<Expression>) -> Option<Offset> {
        match f.expressions[pointer] {
            Expression::GlobalVariable(global) => Some(Offset { global, constant: 0, terms: Vec::new() }),
            Expression::Access { base, index } => {
                let mut offset = self.offset(f, info, base)?;
                offset.terms.push((index, self.member(info, base, 1)?));
                Some(offset)
            }
            Expression::AccessIndex { base, index } => {
                let mut offset = self.offset(f, info, base)?;
                offset.constant += self.member(info, base, index)?;
                Some(offset)
            }
            _ => None,
        }
    }

    /// Returns where the member `index` of what a pointer points to begins.
    fn member(&self, info: &FunctionInfo, pointer: Handle<Expression>, index: u32) -> Option<u32> {
        match *self.inner(info, pointer) {
            TypeInner::Pointer { base, .. } => match self.module.types[base].inner {
                TypeInner::Array { stride, .. } => Some(index * stride),
                TypeInner::Struct { ref members, .. } => members.get(index as usize).map(|member| member.offset),
                TypeInner::Vector { scalar, .. } => Some(index * u32::from(scalar.width)),
                TypeInner::Matrix { rows, scalar, .. } => {
                    let column = if rows as u32 == 2 { 2 } else { 4 };
                    Some(index * column * u32::from(scalar.width))
                }
                _ => None,
            },
            TypeInner::ValuePointer { scalar, .. } => Some(index * u32::from(scalar.width)),
            _ => None,
        }
    }

    /// Returns the operations of floats of an expression; a division, a root or a transcendental function counts as four.
    fn flops(&self, e: &Expression, f: &Function, info: &FunctionInfo, handle: Handle<Expression>) -> u32 {
        let lanes = |handle| match *self.inner(info, handle) {
            TypeInner::Scalar(Scalar { kind: ScalarKind::Float, .. }) => 1,
            TypeInner::Vector { size, scalar: Scalar { kind: ScalarKind::Float, .. } } => size as u32,
            TypeInner::Matrix { columns, rows, .. } => columns as u32 * rows as u32,
            _ => 0,
        };
        debug_assert!(f.expressions.len() > handle.index());
        match *e {
            Expression::Binary { op: BinaryOperator::Add | BinaryOperator::Subtract, .. } => lanes(handle),
            Expression::Binary { op: BinaryOperator::Multiply, left, right } => {
                match (self.inner(info, left), self.inner(info, right)) {
                    (TypeInner::Matrix { .. }, TypeInner::Vector { .. }) => 2 * lanes(left),
                    (TypeInner::Vector { .. }, TypeInner::Matrix { .. }) => 2 * lanes(right),
                    (TypeInner::Matrix { columns, .. }, TypeInner::Matrix { .. }) => {
                        2 * *columns as u32 * lanes(handle)
                    }
                    _ => lanes(handle),
                }
            }
            Expression::Binary { op: BinaryOperator::Divide, .. } => 4 * lanes(handle),
            Expression::Math { fun, arg, .. } => match fun {
                MathFunction::Fma => 2 * lanes(handle),
                MathFunction::Dot => (2 * lanes(arg)).saturating_sub(1),
                MathFunction::Exp
                | MathFunction::Exp2
                | MathFunction::Log
                | MathFunction::Log2
                | MathFunction::Pow
                | MathFunction::Sqrt
                | MathFunction::InverseSqrt
                | MathFunction::Sin
                | MathFunction::Cos
                | MathFunction::Tanh => 4 * lanes(handle),
                _ => lanes(handle),
            },
            _ => 0,
        }
    }
}
