//! The text and the parameters of a kernel that computes several elementwise formulas.

use std::ops::Range;

use super::chain::{Operand, Pointwise};
use super::kernel::grid_of;
use super::pipeline::{Generated, Key};
use super::{Gpu, Kernel, ParamsAt, ShaderText, Signature};

/// How an input buffer is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Read {
    /// The number of the buffer.
    pub input: usize,
    pub offset: usize,
    pub place: Place,
}

/// Where the element of a buffer is for a result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Place {
    /// At the same place.
    Element,
    /// Among this many elements, which are repeated.
    Row(usize),
    /// Among this many channels, each for a span of results.
    Channel { channels: usize, span: usize },
}

impl Place {
    /// Returns a number for each kind of place.
    fn kind(self) -> u64 {
        match self {
            Place::Element => 0,
            Place::Row(_) => 1,
            Place::Channel { .. } => 2,
        }
    }
}

/// An argument of a formula in a fused kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    Input(Read),
    /// The result of an earlier step.
    Step(usize),
    /// The first parameter of the step.
    Number,
    /// Any number: the formula does not use it.
    Unused,
}

#[derive(Debug)]
pub(super) struct FusedStep {
    /// `None`: the step is the product.
    formula: Option<&'static str>,
    /// Whether the formula reads the parameters.
    reads_args: bool,
    /// The places of its arguments.
    arguments: Range<usize>,
    pub kept: bool,
    /// Where the two parameters of the step are, if it has any.
    args: Option<usize>,
}

/// A kernel that computes one element of every step after the other, in vectors of four.
#[derive(Debug)]
pub(super) struct Fused<'a> {
    count: usize,
    /// The kernel whose results the formulas take if they are a part of it, and its inputs: see [`epilogue`](super::epilogue).
    product: Option<(&'a Kernel, usize)>,
    functions: Vec<&'static str>,
    /// The input buffers, each once, without the product's buffers.
    pub bound: Vec<usize>,
    /// All that is read, each once.
    pub reads: Vec<Read>,
    pub steps: Vec<FusedStep>,
    /// The arguments of all steps.
    arguments: Vec<Value>,
    pub args: Vec<[u32; 2]>,
}

impl<'a> Fused<'a> {
    /// Returns the kernel without any of its `steps`.
    pub fn of(count: usize, steps: usize) -> Fused<'a> {
        Fused {
            count,
            product: None,
            functions: Vec::new(),
            bound: Vec::new(),
            reads: Vec::new(),
            steps: Vec::with_capacity(steps),
            arguments: Vec::with_capacity(2 * steps),
            args: Vec::new(),
        }
    }

    /// Sets the first step to a product, whose own result is written if it is `kept`.
    pub fn begin(&mut self, product: Option<(&'a Kernel, usize)>, kept: bool) {
        self.product = product;
        self.steps.push(FusedStep { formula: None, reads_args: false, arguments: 0..0, kept, args: None });
    }

    /// Appends a step, whose result is written if it is `kept`.
    pub fn push(&mut self, call: &Pointwise, arguments: impl IntoIterator<Item = Value>, kept: bool) {
        for text in call.functions {
            if !self.functions.contains(text) {
                self.functions.push(text);
            }
        }
        let start = self.arguments.len();
        self.arguments.extend(arguments);
        for argument in &self.arguments[start..] {
            if let Value::Input(read) = argument {
                place(&mut self.bound, read.input);
                place(&mut self.reads, *read);
            }
        }
        let reads_args = match self.steps.last() {
            Some(last) if last.formula.is_some_and(|formula| std::ptr::eq(formula, call.formula)) => last.reads_args,
            _ => call.formula.contains("p."),
        };
        let args = (reads_args || self.arguments[start..].contains(&Value::Number)).then(|| {
            self.args.push(call.args);
            self.args.len() - 1
        });
        let arguments = start..self.arguments.len();
        self.steps.push(FusedStep { formula: Some(call.formula), reads_args, arguments, kept, args });
    }

    /// Returns whether the first step is a product.
    pub fn is_epilogue(&self) -> bool {
        self.steps.first().is_some_and(|step| step.formula.is_none())
    }

    /// Returns the numbers of the input buffers that the kernel binds, in order.
    pub fn inputs(&self) -> &[usize] {
        &self.bound
    }

    /// Returns what is equal for chains that share a kernel.
    pub fn identity(&self) -> (Option<Key>, Vec<u64>) {
        let read = |read: &Read| 3 * self.bound_at(read) as u64 + read.place.kind();
        let mut key = Vec::with_capacity(self.reads.len() + 1 + 2 * self.steps.len() + self.arguments.len());
        key.extend(self.reads.iter().map(read));
        key.push(u64::MAX);
        for step in &self.steps {
            key.push(step.formula.map_or(0, |formula| formula.as_ptr() as u64));
            key.push(u64::from(step.kept));
            key.extend(self.arguments[step.arguments.clone()].iter().map(|argument| match *argument {
                Value::Input(read) => 3 * self.read_at(&read) as u64,
                Value::Step(earlier) => 3 * earlier as u64 + 1,
                Value::Number => 2,
                Value::Unused => 5,
            }));
        }
        (self.product.map(|(kernel, _)| Key::of(kernel)), key)
    }

    /// Returns the parameters and the workgroups.
    pub fn call(&self, gpu: &Gpu) -> (Vec<u32>, [u32; 3]) {
        if let Some((kernel, _)) = self.product {
            return self.call_of_product(kernel);
        }
        let vectors = gpu.caps.vectors_each();
        let mut words = vec![self.count as u32, vectors as u32, 0, 0];
        // In vectors.
        self.extend_params(&mut words, 4);
        (words, grid_of(self.count.div_ceil(4 * vectors)))
    }

    /// Appends the places of what is read, in vectors of `vector` elements, and the parameters of the steps.
    pub fn extend_params(&self, words: &mut Vec<u32>, vector: usize) {
        for Read { offset, place, .. } in &self.reads {
            let word = |elements: usize| (elements / vector) as u32;
            words.extend(match *place {
                Place::Element => [word(*offset), 0, 0, 0],
                Place::Row(length) => [word(*offset), word(length), 0, 0],
                Place::Channel { channels, span } => [*offset as u32, channels as u32, word(span), 0],
            });
        }
        words.extend(self.args.iter().flatten());
        words.resize(words.len().next_multiple_of(4), 0);
    }

    /// Returns the members of the params that have these words.
    pub fn members(&self) -> String {
        let lists = [("reads", 4 * self.reads.len()), ("args", 2 * self.args.len())];
        let lists = lists.iter().filter(|(_, words)| *words > 0);
        lists.map(|(name, words)| format!("    {name}: array<vec4<u32>, {}>,\n", words.div_ceil(4))).collect()
    }

    /// Returns the signature: the inputs, then the results of the kept steps.
    fn signature(&self, max_immediates: u32) -> Signature {
        let words = self.words(4);
        let inputs = self.bound.len();
        let outputs = self.steps.iter().filter(|step| step.kept).count();
        let buffers = (0..inputs + outputs).map(|i| (i as u32 + 1, i >= inputs)).collect();
        Signature { params: ParamsAt::of(words, max_immediates), buffers, exact: false }
    }

    /// Returns the words of the params, if `before` words come before the params of the formulas.
    pub fn words(&self, before: usize) -> usize {
        before + 4 * self.reads.len() + (2 * self.args.len()).next_multiple_of(4)
    }

    /// Returns the steps whose results are written.
    pub fn kept(&self) -> Vec<usize> {
        (0..self.steps.len()).filter(|&i| self.steps[i].kept).collect()
    }

    /// Returns the WGSL text after its shared functions.
    fn text(&self) -> String {
        let inputs = self.bound.len();
        let mut text =
            String::from("struct Params {\n    count: u32,\n    run: u32,\n    zero: u32,\n    unused: u32,\n");
        text += &self.members();
        text += "}\n\n@group(0) @binding(0) var<uniform> p: Params;\n";
        for input in 0..inputs {
            let binding = input + 1;
            text += &format!("@group(0) @binding({binding}) var<storage, read> x{input}: array<vec4<f32>>;\n");
        }
        let kept = self.kept();
        for (at, i) in kept.iter().enumerate() {
            let binding = inputs + at + 1;
            text += &format!("@group(0) @binding({binding}) var<storage, read_write> y{i}: array<vec4<f32>>;\n");
        }
        text += &self.function_text(&kept);
        text += "@compute @workgroup_size(WG)\nfn fused(id: Id) {\n    let range = vectors(id, p.run, p.count);\n";
        text += "    for (var i = range.x; i < range.y; i++) {\n";
        for (at, read) in self.reads.iter().enumerate() {
            let vector = match read.place {
                Place::Channel { .. } => self.of_channel(at, read),
                _ => self.element(at, read),
            };
            text += &format!("        let v{at} = {vector};\n");
        }
        for lane in ["x", "y", "z", "w"] {
            let lanes: Vec<String> = (0..self.reads.len()).map(|read| format!("v{read}.{lane}")).collect();
            text += &format!("        let r{lane} = results({});\n", lanes.join(", "));
        }
        for i in kept {
            text += &format!("        y{i}[i] = vec4(rx.s{i}, ry.s{i}, rz.s{i}, rw.s{i});\n");
        }
        text += "    }\n}\n";
        text
    }

    /// Returns what element or vector `i` of a buffer is, in WGSL.
    pub fn element(&self, at: usize, read: &Read) -> String {
        let place = match read.place {
            Place::Element => "i".to_string(),
            Place::Row(_) => format!("i % p.reads[{at}].y"),
            Place::Channel { .. } => format!("i / p.reads[{at}].z % p.reads[{at}].y"),
        };
        format!("x{}[p.reads[{at}].x + {place}]", self.bound_at(read))
    }

    /// Returns four times the element of the channel of vector `i`, in WGSL.
    fn of_channel(&self, at: usize, read: &Read) -> String {
        let element = format!("(p.reads[{at}].x + i / p.reads[{at}].z % p.reads[{at}].y)");
        format!("vec4(x{}[{element} / 4u][{element} % 4u])", self.bound_at(read))
    }

    /// Returns the WGSL text of a function from one element of all that is read to the results that are `kept`, after the
    /// result of the product if there is one.
    pub fn function_text(&self, kept: &[usize]) -> String {
        let mut text = String::from("\nalias T = f32;\nalias R = f32;\nconst SIGNED = false;\n");
        // The result of a step, and each use of a value after its first, is a value of its own for a compiler: the zero is
        // unknown to it. It must not merge the operations of two steps, nor take a − a for 0, which is wrong for infinity:
        // the results would differ from the results of single kernels. Two sums with the zero do not cancel out.
        text += "fn apart(x: f32, n: u32) -> f32 {\n    return bitcast<f32>(bitcast<u32>(x) + n * p.zero);\n}\n";
        let mut formulas: Vec<&str> = Vec::new();
        for formula in self.steps.iter().filter_map(|step| step.formula) {
            if !formulas.contains(&formula) {
                text += &function(formula, formulas.len());
                formulas.push(formula);
            }
        }
        text += "struct Results {\n";
        kept.iter().for_each(|i| text += &format!("    s{i}: f32,\n"));
        let value = self.is_epilogue().then(|| "value: f32".to_string());
        let lanes: Vec<String> =
            value.into_iter().chain((0..self.reads.len()).map(|read| format!("v{read}: f32"))).collect();
        text += &format!("}}\n\nfn results({}) -> Results {{\n", lanes.join(", "));
        for (i, step) in self.steps.iter().enumerate() {
            let name = formulas.iter().position(|formula| Some(*formula) == step.formula);
            let call = name.map(|name| format!("f{name}({})", self.arguments(step).join(", ")));
            text += &format!("    let s{i} = apart({}, 1u);\n", call.unwrap_or("value".to_string()));
        }
        let results: Vec<String> = kept.iter().map(|i| format!("s{i}")).collect();
        text += &format!("    return Results({});\n}}\n\n", results.join(", "));
        text
    }

    fn bound_at(&self, read: &Read) -> usize {
        self.bound.iter().position(|input| *input == read.input).unwrap_or_default()
    }

    fn read_at(&self, read: &Read) -> usize {
        self.reads.iter().position(|other| other == read).unwrap_or_default()
    }

    /// Returns the arguments of the call of a step, in WGSL.
    fn arguments(&self, step: &FusedStep) -> Vec<String> {
        let arg = |at, k| format!("bitcast<f32>({})", member(at, k));
        let args = [0, 1].map(|k| step.args.map_or("0.0".to_string(), |at| arg(at, k)));
        let values = step.arguments.clone().map(|at| {
            let argument = &self.arguments[at];
            let value = match argument {
                Value::Input(read) => format!("v{}", self.read_at(read)),
                Value::Step(earlier) => format!("s{earlier}"),
                Value::Number => return args[0].clone(),
                Value::Unused => return "0.0".to_string(),
            };
            let used = self.arguments[..at].iter().filter(|earlier| *earlier == argument).count();
            if used == 0 { value } else { format!("apart({value}, {used}u)") }
        });
        values.chain(args.iter().cloned()).collect()
    }
}

/// Returns a parameter of a step, in WGSL: there are two for each, in vectors of four.
fn member(pair: usize, k: usize) -> String {
    format!("p.args[{}].{}", pair / 2, ["x", "y", "z", "w"][pair % 2 * 2 + k])
}

/// Returns the place of a value in a list, and appends it if it is new.
fn place<T: PartialEq>(list: &mut Vec<T>, value: T) -> usize {
    list.iter().position(|known| *known == value).unwrap_or_else(|| {
        list.push(value);
        list.len() - 1
    })
}

/// Returns a formula's function under the name `f{number}`, with its parameters `p.a` and `p.b` as arguments.
fn function(formula: &str, number: usize) -> String {
    let start = formula.find("fn ").unwrap_or_default();
    let (head, body) = formula[start..].split_once(')').unwrap_or((&formula[start..], ""));
    let arguments = head.split_once('(').map_or("", |(_, arguments)| arguments);
    let body = body.replace("p.a", "p_a").replace("p.b", "p_b");
    format!("fn f{number}({arguments}, p_a: f32, p_b: f32){body}")
}

/// Returns the text of the kernel of a chain in which the first operand of each call is the result of the one before it.
pub(crate) fn chain_text(calls: &[Pointwise]) -> String {
    let mut fused = Fused::of(calls.first().map_or(0, |call| call.count), calls.len());
    fused.extend(calls);
    ShaderText::generated(&fused.functions, &fused.text(), false)
}

impl Fused<'_> {
    /// Appends calls whose first operand is the result of the step before, if there is one.
    pub fn extend(&mut self, calls: &[Pointwise]) {
        let before = self.steps.len();
        for (i, call) in calls.iter().enumerate() {
            let value = |(k, operand): (usize, Operand)| match operand {
                Operand::Input(..) if k == 0 && before + i > 0 => Value::Step(before + i - 1),
                Operand::Input(input, offset) => Value::Input(Read { input, offset, place: Place::Element }),
                Operand::Row(input, offset, length) => Value::Input(Read { input, offset, place: Place::Row(length) }),
                Operand::Channel { index: input, offset, channels, span } => {
                    Value::Input(Read { input, offset, place: Place::Channel { channels, span } })
                }
                Operand::Number => Value::Number,
                Operand::Unused => Value::Unused,
            };
            let arguments = call.operands.into_iter().flatten().enumerate().map(value);
            self.push(call, arguments, i + 1 == calls.len() || i % 4 == 0);
        }
    }
}

impl Gpu {
    /// Returns the kernel of a chain.
    pub(super) fn fused_kernel(&self, fused: &Fused) -> Generated {
        if let Some((kernel, inputs)) = fused.product {
            return self.product_with_formulas(kernel, inputs, fused);
        }
        let signature = fused.signature(self.caps.max_immediates);
        let immediates = matches!(signature.params, ParamsAt::Immediates(_));
        let text = ShaderText::generated(&fused.functions, &fused.text(), immediates);
        Generated { name: "fused".into(), text, entry: "fused", constants: Vec::new(), signature }
    }
}
