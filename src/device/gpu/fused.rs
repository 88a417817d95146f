//! The text and the parameters of a kernel that computes several elementwise formulas.

use super::chain::{Operand, Pointwise};
use super::kernel::grid_of;
use super::{Gpu, ParamsAt, Pipeline, ShaderText, Signature};

/// How an input buffer is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Read {
    /// The number of the buffer.
    pub input: usize,
    pub offset: usize,
    /// The elements that are repeated, if there are fewer than results.
    pub length: Option<usize>,
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
struct FusedStep {
    formula: &'static str,
    arguments: Vec<Value>,
    kept: bool,
    /// Where the two parameters of the step are, if it has any.
    args: Option<usize>,
}

/// A kernel that computes one element of every step after the other, in vectors of four.
#[derive(Debug)]
pub(super) struct Fused {
    count: usize,
    functions: Vec<&'static str>,
    /// The input buffers, each once.
    bound: Vec<usize>,
    /// All that is read, each once.
    reads: Vec<Read>,
    steps: Vec<FusedStep>,
    args: Vec<[u32; 2]>,
}

impl Fused {
    pub fn new(count: usize) -> Fused {
        Fused {
            count,
            functions: Vec::new(),
            bound: Vec::new(),
            reads: Vec::new(),
            steps: Vec::new(),
            args: Vec::new(),
        }
    }

    /// Appends a step, whose result is written if it is `kept`.
    pub fn push(&mut self, call: &Pointwise, arguments: [Option<Value>; 3], kept: bool) {
        for text in call.functions {
            if !self.functions.contains(text) {
                self.functions.push(text);
            }
        }
        let arguments: Vec<Value> = arguments.into_iter().flatten().collect();
        for argument in &arguments {
            if let Value::Input(read) = argument {
                place(&mut self.bound, read.input);
                place(&mut self.reads, *read);
            }
        }
        let needs_args = call.formula.contains("p.") || arguments.contains(&Value::Number);
        let args = needs_args.then(|| {
            self.args.push(call.args);
            self.args.len() - 1
        });
        self.steps.push(FusedStep { formula: call.formula, arguments, kept, args });
    }

    /// Returns the numbers of the input buffers that the kernel binds, in order.
    pub fn inputs(&self) -> &[usize] {
        &self.bound
    }

    /// Returns words that are equal for chains that share a kernel.
    pub fn key(&self) -> Vec<u64> {
        let read = |read: &Read| 2 * self.bound_at(read) as u64 + u64::from(read.length.is_some());
        let mut key: Vec<u64> = self.reads.iter().map(read).collect();
        key.push(u64::MAX);
        for step in &self.steps {
            key.push(step.formula.as_ptr() as u64);
            key.push(u64::from(step.kept));
            key.extend(step.arguments.iter().map(|argument| match *argument {
                Value::Input(read) => 3 * self.read_at(&read) as u64,
                Value::Step(earlier) => 3 * earlier as u64 + 1,
                Value::Number => 2,
                Value::Unused => 5,
            }));
        }
        key
    }

    /// Returns the parameters and the workgroups.
    pub fn call(&self, gpu: &Gpu) -> (Vec<u32>, [u32; 3]) {
        let vectors = gpu.caps.vectors_each();
        let mut words = vec![self.count as u32, vectors as u32, 0, 0];
        // In vectors.
        for read in &self.reads {
            words.extend([read.offset as u32 / 4, read.length.map_or(0, |length| length as u32 / 4)]);
        }
        words.resize(words.len().next_multiple_of(4), 0);
        words.extend(self.args.iter().flatten());
        words.resize(words.len().next_multiple_of(4), 0);
        (words, grid_of(self.count.div_ceil(4 * vectors)))
    }

    /// Returns the signature: the inputs, then the results of the kept steps.
    fn signature(&self, max_immediates: u32) -> Signature {
        let words = 4 + (2 * self.reads.len()).next_multiple_of(4) + (2 * self.args.len()).next_multiple_of(4);
        let inputs = self.bound.len();
        let outputs = self.steps.iter().filter(|step| step.kept).count();
        let buffers = (0..inputs + outputs).map(|i| (i as u32 + 1, i >= inputs)).collect();
        Signature { params: ParamsAt::of(words, max_immediates), buffers, exact: false }
    }

    /// Returns the WGSL text after its shared functions.
    fn text(&self) -> String {
        let inputs = self.bound.len();
        let mut text =
            String::from("struct Params {\n    count: u32,\n    run: u32,\n    zero: u32,\n    unused: u32,\n");
        for (name, words) in [("reads", 2 * self.reads.len()), ("args", 2 * self.args.len())] {
            if words > 0 {
                text += &format!("    {name}: array<vec4<u32>, {}>,\n", words.div_ceil(4));
            }
        }
        text += "}\n\n@group(0) @binding(0) var<uniform> p: Params;\n";
        for input in 0..inputs {
            let binding = input + 1;
            text += &format!("@group(0) @binding({binding}) var<storage, read> x{input}: array<vec4<f32>>;\n");
        }
        let kept: Vec<usize> = (0..self.steps.len()).filter(|&i| self.steps[i].kept).collect();
        for (at, i) in kept.iter().enumerate() {
            let binding = inputs + at + 1;
            text += &format!("@group(0) @binding({binding}) var<storage, read_write> y{i}: array<vec4<f32>>;\n");
        }
        text += "\nalias T = f32;\nalias R = f32;\nconst SIGNED = false;\n";
        // A compiler must not merge the operations of two steps: their results would differ from those of single kernels.
        text += "fn rounded(x: f32) -> f32 {\n    return bitcast<f32>(bitcast<u32>(x) ^ p.zero);\n}\n";
        let mut formulas: Vec<&str> = Vec::new();
        for step in &self.steps {
            if !formulas.contains(&step.formula) {
                text += &function(step.formula, formulas.len());
                formulas.push(step.formula);
            }
        }
        text += "struct Results {\n";
        kept.iter().for_each(|i| text += &format!("    s{i}: f32,\n"));
        let lanes: Vec<String> = (0..self.reads.len()).map(|read| format!("v{read}: f32")).collect();
        text += &format!("}}\n\nfn results({}) -> Results {{\n", lanes.join(", "));
        for (i, step) in self.steps.iter().enumerate() {
            let name = formulas.iter().position(|formula| *formula == step.formula).unwrap_or_default();
            text += &format!("    let s{i} = rounded(f{name}({}));\n", self.arguments(step).join(", "));
        }
        let results: Vec<String> = kept.iter().map(|i| format!("s{i}")).collect();
        text += &format!("    return Results({});\n}}\n\n", results.join(", "));
        text += "@compute @workgroup_size(WG)\nfn fused(id: Id) {\n    let range = vectors(id, p.run, p.count);\n";
        text += "    for (var i = range.x; i < range.y; i++) {\n";
        for (at, read) in self.reads.iter().enumerate() {
            let (first, length) = (member("reads", at, 0), member("reads", at, 1));
            let place = if read.length.is_some() { format!("i % {length}") } else { "i".to_string() };
            text += &format!("        let v{at} = x{}[{first} + {place}];\n", self.bound_at(read));
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
}

impl Fused {
    fn bound_at(&self, read: &Read) -> usize {
        self.bound.iter().position(|input| *input == read.input).unwrap_or_default()
    }

    fn read_at(&self, read: &Read) -> usize {
        self.reads.iter().position(|other| other == read).unwrap_or_default()
    }

    /// Returns the arguments of the call of a step, in WGSL.
    fn arguments(&self, step: &FusedStep) -> Vec<String> {
        let arg = |at, k| format!("bitcast<f32>({})", member("args", at, k));
        let args = [0, 1].map(|k| step.args.map_or("0.0".to_string(), |at| arg(at, k)));
        let values = step.arguments.iter().map(|argument| match argument {
            Value::Input(read) => format!("v{}", self.read_at(read)),
            Value::Step(earlier) => format!("s{earlier}"),
            Value::Number => args[0].clone(),
            Value::Unused => "0.0".to_string(),
        });
        values.chain(args.iter().cloned()).collect()
    }
}

/// Returns a member of an array of params that has pairs in vectors of four.
fn member(array: &str, pair: usize, k: usize) -> String {
    format!("p.{array}[{}].{}", pair / 2, ["x", "y", "z", "w"][pair % 2 * 2 + k])
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
    let mut fused = Fused::new(calls.first().map_or(0, |call| call.count));
    for (i, call) in calls.iter().enumerate() {
        let value = |(k, operand): (usize, Operand)| match operand {
            Operand::Input(..) if k == 0 && i > 0 => Value::Step(i - 1),
            Operand::Input(input, offset) => Value::Input(Read { input, offset, length: None }),
            Operand::Row(input, offset, length) => Value::Input(Read { input, offset, length: Some(length) }),
            Operand::Number => Value::Number,
            Operand::Unused => Value::Unused,
        };
        let mut values = call.operands.into_iter().enumerate().map(|(k, operand)| Some(value((k, operand?))));
        let arguments = std::array::from_fn(|_| values.next().flatten());
        fused.push(call, arguments, i + 1 == calls.len() || i % 4 == 0);
    }
    ShaderText::generated(&fused.functions, &fused.text(), false)
}

impl Gpu {
    /// Compiles the kernel of a chain.
    pub(super) fn compile_fused(&self, fused: &Fused) -> Result<Pipeline, String> {
        let signature = fused.signature(self.caps.max_immediates);
        let immediates = matches!(signature.params, ParamsAt::Immediates(_));
        let text = ShaderText::generated(&fused.functions, &fused.text(), immediates);
        self.compile_trusted("fused", &text, signature)
    }
}
