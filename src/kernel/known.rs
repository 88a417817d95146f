//! The values of expressions in a kernel that are known when it is launched: constants, params, lengths of arrays, the number of
//! workgroups, and the place of one invocation.

use std::collections::HashMap;

use naga::{
    AddressSpace, Arena, BinaryOperator, Binding, BuiltIn, Expression, Function, FunctionArgument, Handle, Literal,
    LocalVariable, MathFunction, Module, Range, ScalarKind, Type, TypeInner, UnaryOperator,
};

/// What a launch gives a kernel, as far as loops may depend on it.
#[derive(Debug)]
pub(super) struct Given<'a> {
    /// The words of the uniform.
    pub words: &'a [u32],
    /// The bindings of arrays, with their lengths in elements.
    pub lengths: Vec<(u32, u32)>,
    pub groups: [u32; 3],
    /// The workgroup of the invocation, which is the first one there.
    pub group: [u32; 3],
    pub workgroup_size: [u32; 3],
}

/// An integer or a truth value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Number {
    /// A truth value is 0 or 1.
    pub value: i64,
    kind: ScalarKind,
    /// Whether the compiler of a driver knows it: it does not depend on the launch.
    pub fixed: bool,
}

/// A known value; parts of it may be unknown.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Number(Number),
    /// A vector or a struct.
    Parts(Vec<Option<Value>>),
}

/// The values in one call of a function.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    module: &'a Module,
    pub function: &'a Function,
    given: &'a Given<'a>,
    arguments: Vec<Option<Value>>,
    computed: HashMap<Handle<Expression>, Option<Value>>,
    pub variables: HashMap<Handle<LocalVariable>, Option<Value>>,
}

impl Number {
    fn new(value: i64, kind: ScalarKind, fixed: bool) -> Number {
        let value = match kind {
            ScalarKind::Sint => i64::from(value as i32),
            ScalarKind::Uint => i64::from(value as u32),
            _ => i64::from(value != 0),
        };
        Number { value, kind, fixed }
    }

    /// Returns the result of an operation on two numbers, if it is known.
    pub fn binary(op: BinaryOperator, a: Number, b: Number) -> Option<Number> {
        use BinaryOperator as Op;
        let (x, y) = (a.value, b.value);
        let truth = match op {
            Op::Equal => Some(x == y),
            Op::NotEqual => Some(x != y),
            Op::Less => Some(x < y),
            Op::LessEqual => Some(x <= y),
            Op::Greater => Some(x > y),
            Op::GreaterEqual => Some(x >= y),
            _ => None,
        };
        if let Some(truth) = truth {
            return Some(Number::new(truth.into(), ScalarKind::Bool, a.fixed && b.fixed));
        }
        let value = match op {
            Op::Add => x.wrapping_add(y),
            Op::Subtract => x.wrapping_sub(y),
            Op::Multiply => x.wrapping_mul(y),
            Op::Divide => x.checked_div(y)?,
            Op::Modulo => x.checked_rem(y)?,
            Op::And | Op::LogicalAnd => x & y,
            Op::InclusiveOr | Op::LogicalOr => x | y,
            Op::ExclusiveOr => x ^ y,
            Op::ShiftLeft => x << (y & 31),
            Op::ShiftRight => x >> (y & 31),
            _ => return None,
        };
        Some(Number::new(value, a.kind, a.fixed && b.fixed))
    }
}

impl Value {
    pub fn number(self) -> Option<Number> {
        match self {
            Value::Number(number) => Some(number),
            Value::Parts(_) => None,
        }
    }

    fn part(&self, index: usize) -> Option<Value> {
        match self {
            Value::Parts(parts) => parts.get(index).cloned().flatten(),
            Value::Number(_) => None,
        }
    }

    /// Returns a vector of unsigned integers.
    fn vector(numbers: [u32; 3]) -> Value {
        Value::Parts(numbers.map(|number| Some(unsigned(number))).to_vec())
    }
}

fn unsigned(number: u32) -> Value {
    Value::Number(Number::new(number.into(), ScalarKind::Uint, false))
}

impl<'a> Frame<'a> {
    pub fn new(
        module: &'a Module,
        function: &'a Function,
        given: &'a Given<'a>,
        arguments: Vec<Option<Value>>,
    ) -> Frame<'a> {
        let (computed, variables) = (HashMap::new(), HashMap::new());
        let mut frame = Frame { module, function, given, arguments, computed, variables };
        for (handle, variable) in function.local_variables.iter() {
            let start = match variable.init {
                Some(init) => frame.value(init),
                None => frame.zero(variable.ty),
            };
            frame.variables.insert(handle, start);
        }
        frame
    }

    /// Computes expressions where a statement says so.
    pub fn emit(&mut self, range: &Range<Expression>) {
        for handle in range.clone() {
            let value = self.compute(&self.function.expressions, handle);
            self.computed.insert(handle, value);
        }
    }

    pub fn value(&self, handle: Handle<Expression>) -> Option<Value> {
        match self.computed.get(&handle) {
            Some(value) => value.clone(),
            None => self.compute(&self.function.expressions, handle),
        }
    }

    pub fn number(&self, handle: Handle<Expression>) -> Option<Number> {
        self.value(handle)?.number()
    }

    /// Notes what a statement writes through a pointer.
    pub fn store(&mut self, pointer: Handle<Expression>, value: Handle<Expression>) {
        let whole = matches!(self.function.expressions[pointer], Expression::LocalVariable(_));
        let value = if whole { self.value(value) } else { None };
        if let Some(variable) = self.root(pointer) {
            self.variables.insert(variable, value);
        }
    }

    /// Returns the variable of the function that a pointer points into.
    pub fn root(&self, pointer: Handle<Expression>) -> Option<Handle<LocalVariable>> {
        match self.function.expressions[pointer] {
            Expression::LocalVariable(variable) => Some(variable),
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => self.root(base),
            _ => None,
        }
    }

    /// Returns the value of an expression of the function, or of a constant one of the module.
    fn compute(&self, all: &Arena<Expression>, handle: Handle<Expression>) -> Option<Value> {
        let of_function = std::ptr::eq(all, &self.function.expressions);
        let value = |handle| if of_function { self.value(handle) } else { self.compute(all, handle) };
        let number = |handle| value(handle)?.number();
        match &all[handle] {
            Expression::Literal(literal) => literal_value(*literal),
            Expression::Constant(constant) => {
                self.compute(&self.module.global_expressions, self.module.constants[*constant].init)
            }
            Expression::ZeroValue(ty) => self.zero(*ty),
            Expression::Compose { ty, components } => {
                let parts = components.iter().map(|part| value(*part));
                match self.module.types[*ty].inner {
                    // Its components may be vectors.
                    TypeInner::Vector { .. } => {
                        parts.map(|part| part?.number().map(|n| Some(Value::Number(n)))).collect::<Option<_>>()
                    }
                    TypeInner::Struct { .. } => Some(parts.collect()),
                    _ => None,
                }
                .map(Value::Parts)
            }
            Expression::Splat { size, value: part } => Some(Value::Parts(vec![value(*part); *size as usize])),
            Expression::Swizzle { size, vector, pattern } => {
                let vector = value(*vector)?;
                Some(Value::Parts(pattern[..*size as usize].iter().map(|&from| vector.part(from as usize)).collect()))
            }
            Expression::AccessIndex { base, index } => value(*base)?.part(*index as usize),
            Expression::FunctionArgument(index) => self.arguments.get(*index as usize)?.clone(),
            Expression::Load { pointer } => self.load(*pointer),
            Expression::Unary { op, expr } => {
                let Number { value, kind, fixed } = number(*expr)?;
                let result = match op {
                    UnaryOperator::Negate => value.wrapping_neg(),
                    UnaryOperator::LogicalNot => i64::from(value == 0),
                    UnaryOperator::BitwiseNot => !value,
                };
                Some(Value::Number(Number::new(result, kind, fixed)))
            }
            Expression::Binary { op, left, right } => {
                Number::binary(*op, number(*left)?, number(*right)?).map(Value::Number)
            }
            Expression::Select { condition, accept, reject } => {
                value(if number(*condition)?.value != 0 { *accept } else { *reject })
            }
            Expression::Math { fun, arg, arg1: Some(other), .. } => {
                let (a, b) = (number(*arg)?, number(*other)?);
                let chosen = match fun {
                    MathFunction::Min => a.value.min(b.value),
                    MathFunction::Max => a.value.max(b.value),
                    _ => return None,
                };
                Some(Value::Number(Number { value: chosen, fixed: a.fixed && b.fixed, ..a }))
            }
            Expression::As { expr, kind, convert: Some(4 | 1) } if *kind != ScalarKind::Float => {
                let Number { value, fixed, .. } = number(*expr)?;
                Some(Value::Number(Number::new(value, *kind, fixed)))
            }
            Expression::ArrayLength(array) => self.length(*array),
            _ => None,
        }
    }

    /// Returns what a pointer points to: a variable of the function, or the params.
    fn load(&self, pointer: Handle<Expression>) -> Option<Value> {
        match self.function.expressions[pointer] {
            Expression::LocalVariable(variable) => self.variables.get(&variable)?.clone(),
            Expression::GlobalVariable(global) => {
                let global = &self.module.global_variables[global];
                (global.space == AddressSpace::Uniform).then(|| self.param(global.ty, 0))?
            }
            Expression::AccessIndex { base, index } => self.load(base)?.part(index as usize),
            _ => None,
        }
    }

    /// Returns the params of a type at an offset of so many bytes.
    fn param(&self, ty: Handle<Type>, offset: u32) -> Option<Value> {
        let scalar = |scalar: naga::Scalar, at: u32| match scalar.kind {
            kind @ (ScalarKind::Sint | ScalarKind::Uint) => {
                let word = *self.given.words.get(at as usize / 4)?;
                Some(Value::Number(Number::new(word.into(), kind, false)))
            }
            _ => None,
        };
        match &self.module.types[ty].inner {
            TypeInner::Scalar(kind) => scalar(*kind, offset),
            TypeInner::Vector { size, scalar: kind } => {
                Some(Value::Parts((0..*size as u32).map(|i| scalar(*kind, offset + 4 * i)).collect()))
            }
            TypeInner::Struct { members, .. } => {
                Some(Value::Parts(members.iter().map(|part| self.param(part.ty, offset + part.offset)).collect()))
            }
            _ => None,
        }
    }

    fn length(&self, array: Handle<Expression>) -> Option<Value> {
        match self.function.expressions[array] {
            Expression::GlobalVariable(global) => {
                let binding = self.module.global_variables[global].binding.as_ref()?.binding;
                let (_, length) = self.given.lengths.iter().find(|(of, _)| *of == binding)?;
                Some(unsigned(*length))
            }
            Expression::AccessIndex { base, .. } => self.length(base),
            _ => None,
        }
    }

    fn zero(&self, ty: Handle<Type>) -> Option<Value> {
        let zero = |scalar: naga::Scalar| match scalar.kind {
            ScalarKind::Sint | ScalarKind::Uint | ScalarKind::Bool => {
                Some(Value::Number(Number::new(0, scalar.kind, true)))
            }
            _ => None,
        };
        match self.module.types[ty].inner {
            TypeInner::Scalar(scalar) => zero(scalar),
            TypeInner::Vector { size, scalar } => Some(Value::Parts(vec![zero(scalar); size as usize])),
            _ => None,
        }
    }
}

fn literal_value(literal: Literal) -> Option<Value> {
    let (value, kind) = match literal {
        Literal::U32(value) => (value.into(), ScalarKind::Uint),
        Literal::I32(value) => (value.into(), ScalarKind::Sint),
        Literal::Bool(value) => (value.into(), ScalarKind::Bool),
        _ => return None,
    };
    Some(Value::Number(Number::new(value, kind, true)))
}

/// Returns the arguments of an entry point for the first invocation of a workgroup.
pub(super) fn builtins(module: &Module, arguments: &[FunctionArgument], given: &Given) -> Vec<Option<Value>> {
    let builtin = |binding: &Option<Binding>| match binding {
        Some(Binding::BuiltIn(BuiltIn::GlobalInvocationId)) => {
            Some(Value::vector([0, 1, 2].map(|d| given.group[d].wrapping_mul(given.workgroup_size[d]))))
        }
        Some(Binding::BuiltIn(BuiltIn::LocalInvocationId)) => Some(Value::vector([0; 3])),
        Some(Binding::BuiltIn(BuiltIn::LocalInvocationIndex)) => Some(unsigned(0)),
        Some(Binding::BuiltIn(BuiltIn::WorkGroupId)) => Some(Value::vector(given.group)),
        Some(Binding::BuiltIn(BuiltIn::NumWorkGroups)) => Some(Value::vector(given.groups)),
        _ => None,
    };
    let argument = |argument: &FunctionArgument| match &module.types[argument.ty].inner {
        TypeInner::Struct { members, .. } => {
            Some(Value::Parts(members.iter().map(|member| builtin(&member.binding)).collect()))
        }
        _ => builtin(&argument.binding),
    };
    arguments.iter().map(argument).collect()
}
