//! Malicious pickles in intact archives.

use super::archives::archive;
use super::{Case, case};

pub type Code = Vec<u8>;

pub fn text(text: &str) -> Code {
    [b"X".as_slice(), &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

pub fn int(value: i64) -> Code {
    [&[0x8a, 8], value.to_le_bytes().as_slice()].concat()
}

pub fn tuple(parts: &[Code]) -> Code {
    [b"(".as_slice(), &parts.concat(), b"t"].concat()
}

fn ints(values: &[i64]) -> Code {
    tuple(&values.iter().map(|&value| int(value)).collect::<Vec<_>>())
}

pub fn global(module: &str, name: &str) -> Code {
    format!("c{module}\n{name}\n").into_bytes()
}

pub fn call(function: Code, arguments: &[Code]) -> Code {
    [function, tuple(arguments), b"R".to_vec()].concat()
}

pub fn storage(class: &str, key: &str, count: i64) -> Code {
    let parts = [text("storage"), global("torch", class), text(key), text("cpu"), int(count)];
    [tuple(&parts), b"Q".to_vec()].concat()
}

pub fn rebuilt(storage: Code, offset: i64, shape: &[i64], strides: &[i64]) -> Code {
    let hooks = call(global("collections", "OrderedDict"), &[]);
    let arguments = [storage, int(offset), ints(shape), ints(strides), vec![0x89], hooks];
    call(global("torch._utils", "_rebuild_tensor_v2"), &arguments)
}

/// A dict with one tensor of a storage of 8 floats.
fn state(tensor: Code) -> Code {
    [b"}".to_vec(), text("w"), tensor, b"s".to_vec()].concat()
}

pub fn pickle(body: Code) -> Code {
    [vec![0x80, 2], body, b".".to_vec()].concat()
}

/// The archive of a pickle with 32 bytes in the storage 0.
fn file(body: Code) -> Vec<u8> {
    archive(&pickle(body), &[("data/0", &[0; 32])])
}

/// What is special in a file of the old format.
struct Old {
    magic: Code,
    version: i64,
    little_endian: Code,
    /// The part of its storage of 8 floats that the tensor is of.
    part: Code,
    keys: Vec<Code>,
    /// The elements of the storage, as they are written before it.
    count: i64,
    after: usize,
}

impl Default for Old {
    fn default() -> Old {
        let magic = 0x1950_a86a_20f9_469c_fc6c_i128.to_le_bytes();
        Old {
            magic: [&[0x8a, 10], &magic[..10]].concat(),
            version: 1001,
            little_endian: vec![0x88],
            part: tuple(&[text("part"), int(2), int(4)]),
            keys: vec![text("0")],
            count: 8,
            after: 0,
        }
    }
}

impl Old {
    /// The magic number, the version, the machine, the value, the names of storages; and the storage: 0, 1, … 7.
    fn file(self) -> Vec<u8> {
        let id = [text("storage"), global("torch", "FloatStorage"), text("0"), text("cpu"), int(8), self.part];
        let storage = [tuple(&id), b"Q".to_vec()].concat();
        let machine = [b"}".to_vec(), text("little_endian"), self.little_endian, b"s".to_vec()].concat();
        let names = [b"](".to_vec(), self.keys.concat(), b"e".to_vec()].concat();
        let value = state(rebuilt(storage, 1, &[3], &[1]));
        let pickles = [self.magic, int(self.version), machine, value, names].map(pickle).concat();
        let data: Vec<u8> = (0..8u8).flat_map(|i| f32::from(i).to_le_bytes()).collect();
        [pickles, self.count.to_le_bytes().to_vec(), data, vec![0; self.after]].concat()
    }
}

/// With a tensor of a part of a storage, as only old files have it: 3, 4, 5.
pub fn good_old() -> Vec<u8> {
    Old::default().file()
}

fn old() -> Vec<Case> {
    let part = |first, count| tuple(&[text("part"), int(first), int(count)]);
    let default = Old::default;
    let files = [
        ("another magic number", Old { magic: int(7), ..default() }, "not one of torch.save"),
        ("an unknown version", Old { version: 1002, ..default() }, "unknown version"),
        ("an old big-endian file", Old { little_endian: vec![0x89], ..default() }, "torch.save(torch.load(path)"),
        ("an old file of no byte order", Old { little_endian: int(1), ..default() }, "little-endian"),
        ("a part beyond the storage", Old { part: part(5, 4), ..default() }, "reaches beyond"),
        ("a huge part", Old { part: part(i64::MAX, i64::MAX), ..default() }, "reaches beyond"),
        ("a part that the tensor leaves", Old { part: part(0, 3), ..default() }, "not inside"),
        ("a part that is a number", Old { part: int(3), ..default() }, "a part of a storage"),
        ("no names of storages", Old { keys: Vec::new(), ..default() }, "trail"),
        ("a name of an unknown storage", Old { keys: vec![text("1")], ..default() }, "nothing uses"),
        ("a storage's name twice", Old { keys: vec![text("0"), text("0")], ..default() }, "ends within"),
        ("a name that is a number", Old { keys: vec![int(0)], ..default() }, "not a string"),
        ("a huge old storage", Old { count: i64::MAX, ..default() }, "ends within"),
        ("an old storage of negative size", Old { count: -8, ..default() }, "ends within"),
        ("a smaller old storage", Old { count: 7, ..default() }, "trail"),
        ("bytes after the last storage", Old { after: 3, ..default() }, "3 bytes trail"),
    ];
    files.into_iter().map(|(name, old, says)| case(name, "pth", old.file(), says)).collect()
}

/// The one that is good: all others differ by what is wrong with them.
pub fn good() -> Vec<u8> {
    file(state(rebuilt(storage("FloatStorage", "0", 8), 0, &[2, 4], &[4, 1])))
}

/// What Python writes for a state beside many labels and numbers: its memo holds each label once.
pub fn repetitive() -> Vec<u8> {
    let model = state(rebuilt(storage("FloatStorage", "0", 8), 0, &[2, 4], &[4, 1]));
    let label = |at: u8, label: &str| [text(label), vec![b'q', at]].concat();
    let labels = [label(0, "cat"), label(1, "dog"), repeated(b"h\x00h\x01", 100_000)].concat();
    let numbers = [repeated(b"M\x00\x02", 1_200_000), repeated(b"K\x07", 1_200_000)].concat();
    let list = |items: Code| [b"](".to_vec(), items, b"e".to_vec()].concat();
    let entries = [text("model"), model, text("labels"), list(labels), text("numbers"), list(numbers)].concat();
    file([b"}(".to_vec(), entries, b"u".to_vec()].concat())
}

/// A tensor without elements, whose other sizes are huge.
pub fn nothing() -> Vec<u8> {
    file(state(rebuilt(storage("FloatStorage", "0", 8), 0, &[0, 1 << 62, 1 << 62], &[1, 1, 1])))
}

fn tensors() -> Vec<(&'static str, Code, &'static str)> {
    let of = |offset, shape: &[i64], strides: &[i64]| rebuilt(storage("FloatStorage", "0", 8), offset, shape, strides);
    let outside = "is not inside its storage";
    vec![
        ("an element beyond", of(1, &[2, 4], &[4, 1]), outside),
        ("a stride beyond", of(0, &[2, 4], &[5, 1]), outside),
        ("a huge shape", of(0, &[1 << 40, 1 << 40], &[1, 1]), outside),
        ("a shape that overflows", of(0, &[1 << 62, 8], &[1, 1]), outside),
        ("a huge shape of stride 0", of(0, &[1 << 33], &[0]), "many times"),
        ("a shape of stride 0 that overflows", of(0, &[1 << 62, 1 << 62], &[0, 0]), outside),
        ("huge strides", of(0, &[2, 2], &[i64::MAX, i64::MAX]), outside),
        ("a huge offset", of(i64::MAX, &[1], &[1]), outside),
        ("a negative offset", of(-1, &[1], &[1]), "-1 for a size"),
        ("a negative size", of(0, &[-2], &[1]), "-2 for a size"),
        ("a negative stride", of(7, &[2], &[-1]), "-1 for a size"),
        ("too few strides", of(0, &[2, 4], &[1]), outside),
        ("too many dimensions", of(0, &[1; 65], &[1; 65]), "too many dimensions"),
        ("no such storage", rebuilt(storage("FloatStorage", "7", 8), 0, &[1], &[1]), "'7' is missing"),
        ("a storage of another size", rebuilt(storage("FloatStorage", "0", 9), 0, &[1], &[1]), "not 9 elements"),
        ("a storage of another type", rebuilt(storage("HalfStorage", "0", 8), 0, &[1], &[1]), "not 8 elements of 2"),
        ("a storage of huge size", rebuilt(storage("FloatStorage", "0", i64::MAX), 0, &[1], &[1]), "elements of 4"),
        ("a storage of negative size", rebuilt(storage("FloatStorage", "0", -8), 0, &[1], &[1]), "-8 for a size"),
        ("bytes without a type", rebuilt(storage("UntypedStorage", "0", 32), 0, &[1], &[1]), "no known type"),
        ("a complex storage", rebuilt(storage("ComplexFloatStorage", "0", 4), 0, &[1], &[1]), "'w': complex numbers"),
        ("a quantised storage", rebuilt(storage("QInt8Storage", "0", 32), 0, &[1], &[1]), "torch.QInt8Storage"),
        ("a tensor of a number", rebuilt(int(3), 0, &[1], &[1]), "without a storage"),
        ("a bare storage", storage("FloatStorage", "0", 8), "bare storage"),
        ("a function", global("torch._utils", "_rebuild_tensor_v2"), "a function"),
        (
            "a parameter of a number",
            call(global("torch._utils", "_rebuild_parameter"), &[int(1)]),
            "of another kind of object",
        ),
        (
            "a tensor without arguments",
            call(global("torch._utils", "_rebuild_tensor_v2"), &[]),
            "arguments of another kind",
        ),
    ]
}

/// What would run in Python.
fn code() -> Vec<(&'static str, Code, &'static str)> {
    let shell = [text("touch /tmp/anygpu-was-here")];
    let stacked = [text("os"), text("system"), vec![0x93]].concat();
    vec![
        ("os.system", call(global("os", "system"), &shell), "os.system"),
        ("posix.system", call(global("posix", "system"), &shell), "posix.system"),
        ("eval", call(global("builtins", "eval"), &shell), "builtins.eval"),
        ("exec of Python 2", call(global("__builtin__", "execfile"), &shell), "__builtin__.execfile"),
        ("a process", call(global("subprocess", "Popen"), &shell), "subprocess.Popen"),
        ("by the stack", call(stacked, &shell), "os.system"),
        ("torch.load", call(global("torch", "load"), &shell), "torch.load"),
        ("torch.hub", call(global("torch.hub", "load"), &shell), "torch.hub.load"),
        ("getattr", call(global("builtins", "getattr"), &shell), "builtins.getattr"),
        ("a namespace", call(global("argparse", "Namespace"), &[]), "argparse.Namespace"),
        ("a name of the list with a dot", global("collections", "OrderedDict.__init__"), "OrderedDict.__init__"),
        ("an instance", [b"(ios\nsystem\n".to_vec()].concat(), "0x69"),
        ("an object", [b"(".to_vec(), global("collections", "OrderedDict"), b"o".to_vec()].concat(), "0x6f"),
        ("an extension", vec![0x82, 1], "0x82"),
        ("a persistent id of text", b"Pabc\n".to_vec(), "0x50"),
        (
            "a module",
            [tuple(&[text("module"), text("x"), text("y"), text("z")]), b"Q".to_vec()].concat(),
            "whole module",
        ),
        ("a call of a number", call(int(7), &[]), "not a function"),
        ("a call of a storage", call(global("torch", "FloatStorage"), &[int(8)]), "arguments"),
        ("attributes of a list", b"]}b".to_vec(), "has none"),
    ]
}

fn repeated(code: &[u8], times: usize) -> Code {
    code.repeat(times)
}

/// Files that would take all memory, or never end.
fn bombs() -> Vec<(&'static str, Code, &'static str)> {
    let doubling = [repeated(b"]q\x00", 1), repeated(b"]q\x01(h\x00h\x00eq\x00", 64)].concat();
    let long =
        [b"(".to_vec(), text(&"x".repeat(1 << 20)), b"q\x00".to_vec(), repeated(b"h\x00", 1 << 18), b"t".to_vec()];
    let list = [b"(".to_vec(), repeated(b"N", 1 << 16), b"lq\x00".to_vec()].concat();
    let copies = [list, repeated(&[global("builtins", "list"), b"h\x00\x85R0".to_vec()].concat(), 1 << 12)].concat();
    let views = |i: i64| rebuilt(storage("FloatStorage", "big", 1 << 18), i, &[1 << 17], &[1]);
    let overlapping = [b"(".to_vec(), (0..1000).flat_map(views).collect(), b"t".to_vec()].concat();
    let itself = [b"]q\x00(h\x00".to_vec(), repeated(b"2", 1 << 20), b"e".to_vec()].concat();
    let arguments = [storage("FloatStorage", "big", 1 << 18), int(0), ints(&[0; 64]), ints(&[0; 64])];
    let memo = [global("torch._utils", "_rebuild_tensor"), b"q\x01".to_vec(), tuple(&arguments), b"q\x02".to_vec()];
    let again = [b"]q\x00".to_vec(), memo.concat(), b"00".to_vec(), repeated(b"h\x00h\x01h\x02Ra", 200_000)].concat();
    vec![
        ("lists in lists", [repeated(b"]", 10_000), repeated(b"a", 9_999)].concat(), "deep"),
        ("tuples in tuples", [b"N".to_vec(), repeated(&[0x85], 6_000)].concat(), "deep"),
        ("many tuples in tuples", [b"N".to_vec(), repeated(&[0x85], 1_000_000)].concat(), "objects"),
        ("a list in itself", b"]q\x00h\x00a".to_vec(), "deep"),
        ("a dict in itself", [b"}q\x00".to_vec(), text("w"), b"h\x00s".to_vec()].concat(), "deep"),
        ("lists twice in lists", doubling, "too often"),
        ("one text many times", long.concat(), "too often"),
        ("one list copied many times", copies, "copies objects too often"),
        ("a deep stack", [b"N".to_vec(), repeated(b"2", 1_100_000)].concat(), "a None"),
        ("one object many times", repeated(b")", 1_100_000), "a tuple"),
        ("more objects than any", repeated(b"]", 1_100_000), "save long lists of numbers as tensors"),
        ("many marks", repeated(b"(", 1_100_000), "off the stack"),
        ("a list of itself over and over", itself, "repeats the same objects"),
        ("one tensor many times", again, "copies objects"),
        ("more in the memo than any", [b"N".to_vec(), repeated(&[0x94], 1_100_000)].concat(), "objects"),
        ("many views of one storage", overlapping, "many times"),
        ("a long text", [vec![0x8d], (1u64 << 60).to_le_bytes().to_vec()].concat(), "cut off"),
        ("long bytes", [vec![0x8e], u64::MAX.to_le_bytes().to_vec()].concat(), "cut off"),
        ("a long number", [vec![0x8b], u32::MAX.to_le_bytes().to_vec()].concat(), "cut off"),
        ("a number of many bytes", [vec![0x8a, 200], vec![1; 200]].concat(), "200 bytes"),
    ]
}

/// What is simply wrong.
fn broken() -> Vec<(&'static str, Code, &'static str)> {
    vec![
        ("nothing", Vec::new(), "off the stack"),
        ("no dict", int(5), "a int"),
        ("text that is none", b"X\x02\x00\x00\x00\xff\xfe".to_vec(), "not UTF-8"),
        ("a key without a value", [b"}(".to_vec(), text("w"), b"u".to_vec()].concat(), "key without a value"),
        ("numbers as names", [b"}".to_vec(), int(1), int(2), b"s".to_vec()].concat(), "not the state of a module"),
        ("a dict of numbers", [b"}".to_vec(), text("epoch"), int(2), b"s".to_vec()].concat(), "'epoch' (a int)"),
        ("an unknown protocol", vec![0x80, 9], "protocol 9"),
        ("something never stored", b"h\x07".to_vec(), "did not store"),
        ("a number that is none", b"Iabc\n".to_vec(), "'abc'"),
        ("a float that is none", b"F1.2.3\n".to_vec(), "'1.2.3'"),
        ("items for a number", [int(1), b"(NNe".to_vec()].concat(), "not a list or dict"),
        ("a line without end", b"cos".to_vec(), "cut off"),
        ("escapes", b"S'\\x41'\n".to_vec(), "escapes"),
    ]
}

pub fn all() -> Vec<Case> {
    let mut all = old();
    for (name, tensor, says) in tensors() {
        all.push(case(name, "pt", file(state(tensor)), says));
    }
    for (name, code, says) in [code(), broken()].concat() {
        all.push(case(name, "pt", file(code), says));
    }
    for (name, code, says) in bombs() {
        all.push(case(name, "pt", archive(&pickle(code), &[("data/big", &vec![0; 1 << 20])]), says));
    }
    // But for an empty dict, which is an empty state.
    for opcode in (0..=255u8).filter(|opcode| *opcode != b'}') {
        all.push(case(&format!("the opcode {opcode:#04x} alone"), "pt", file(vec![opcode]), ""));
    }
    all
}
