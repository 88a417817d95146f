//! The names that a pickle may use, and the effect of calling them: it builds data, and nothing else.

use super::pickle::{Machine, Object, Ref, Step};
use super::rebuild::Rebuild;
use super::tensors::PickleStorage;
use crate::checkpoint::Fault;
use crate::checkpoint::file_dtype::FileDType;

/// A callable or a type of Python that is supported.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Known {
    /// `OrderedDict`, `defaultdict`, `Counter`, `dict`.
    Dict(&'static str),
    /// `list`, `set`, `frozenset`.
    List,
    /// `tuple`, `torch.Size`.
    Tuple,
    /// `torch.device` (its first argument) and the version of PyTorch: strings.
    Text,
    /// `_codecs.encode`, which protocol 2 uses for bytes.
    Encode,
    /// `torch.float32` and so on.
    DType(FileDType, &'static str),
    /// A class of storages: its element type. `None` for a storage of bytes, where the tensor has the type.
    Storage(Option<FileDType>),
    /// `torch._utils._rebuild_tensor` and similar functions.
    Tensor(Rebuild),
    /// A type that is used only as an argument of such a call.
    Type,
    /// `numpy.dtype`.
    NumpyType,
    /// `scalar` of NumPy: a number from bytes.
    NumpyNumber,
    /// A function whose results are skipped, and what they are.
    Skipped(&'static str),
}

impl Known {
    /// Returns the name of a callable, for messages.
    fn name(self) -> &'static str {
        match self {
            Known::Dict(name) | Known::DType(_, name) => name,
            Known::List => "list",
            Known::Tuple => "tuple",
            Known::Text => "torch.device",
            Known::Encode => "_codecs.encode",
            Known::Storage(_) => "a class of storages",
            Known::Tensor(_) => "a function that rebuilds a tensor",
            Known::Type => "a class of tensors",
            Known::NumpyType => "numpy.dtype",
            Known::NumpyNumber => "numpy.core.multiarray.scalar",
            Known::Skipped(_) => "a function of a value that is skipped",
        }
    }

    pub fn find(module: &str, name: &str) -> Step<Known> {
        Ok(match (module, name) {
            ("collections", "OrderedDict") => Known::Dict("OrderedDict"),
            ("collections", "defaultdict") => Known::Dict("defaultdict"),
            ("collections", "Counter") => Known::Dict("Counter"),
            ("builtins" | "__builtin__", "dict") => Known::Dict("dict"),
            ("builtins" | "__builtin__", "list" | "set" | "frozenset") => Known::List,
            ("builtins" | "__builtin__", "tuple") | ("torch", "Size") => Known::Tuple,
            ("torch", "device") | ("torch.torch_version", "TorchVersion") | ("torch.serialization", "_get_layout") => {
                Known::Text
            }
            ("_codecs", "encode") => Known::Encode,
            ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => Known::Tensor(Rebuild::Plain),
            ("torch._utils", "_rebuild_tensor_v3") => Known::Tensor(Rebuild::Typed),
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => {
                Known::Tensor(Rebuild::Parameter)
            }
            ("torch._utils", "_rebuild_sparse_tensor" | "_rebuild_sparse_csr_tensor") => {
                Known::Skipped("a sparse tensor: in Python, save x.to_dense()")
            }
            ("torch._utils", "_rebuild_qtensor") => {
                Known::Skipped("a quantised tensor: in Python, save x.dequantize()")
            }
            ("torch._utils", "_rebuild_nested_tensor") => {
                Known::Skipped("a nested tensor: in Python, save x.to_padded_tensor(0)")
            }
            ("torch._utils", "_rebuild_meta_tensor_no_storage") => {
                Known::Skipped("a tensor on the device meta, which has no elements")
            }
            ("torch._tensor", "_rebuild_from_type_v2") => Known::Tensor(Rebuild::FromType),
            ("torch", "Tensor") | ("torch.nn.parameter", "Parameter" | "Buffer") => Known::Type,
            ("numpy", "dtype") => Known::NumpyType,
            ("numpy", "ndarray") => Known::Type,
            ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar") => Known::NumpyNumber,
            ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct") => {
                Known::Skipped("a NumPy array: save it as a tensor")
            }
            ("torch.storage", "UntypedStorage" | "_UntypedStorage") | ("torch", "UntypedStorage") => {
                Known::Storage(None)
            }
            ("torch", name) => named(name).ok_or_else(|| refused(module, name))?,
            _ => return Err(refused(module, name)),
        })
    }
}

fn refused(module: &str, name: &str) -> Fault {
    let short = |text: &str| text.chars().take(60).collect::<String>();
    let (module, name) = (short(module), short(name));
    let remedy = "only tensors, numbers, text and collections of these are read; in Python, save model.state_dict()";
    Fault::File(format!("it uses {module}.{name}, which is not on the list of names that are safe to read: {remedy}"))
}

/// Storages and element types by their names in `torch`.
fn named(name: &str) -> Option<Known> {
    let storage = |file_dtype| Known::Storage(Some(file_dtype));
    let float8 = |name| Known::DType(FileDType::Other(name, 1), name);
    Some(match name {
        "DoubleStorage" => storage(FileDType::F64),
        "FloatStorage" => storage(FileDType::F32),
        "HalfStorage" => storage(FileDType::F16),
        "BFloat16Storage" => storage(FileDType::BF16),
        "LongStorage" => storage(FileDType::I64),
        "IntStorage" => storage(FileDType::I32),
        "ShortStorage" => storage(FileDType::I16),
        "CharStorage" => storage(FileDType::I8),
        "ByteStorage" => storage(FileDType::U8),
        "BoolStorage" => storage(FileDType::Bool),
        // Of quantised tensors, which are skipped.
        "QInt8Storage" => storage(FileDType::Other("torch.QInt8Storage", 1)),
        "QUInt8Storage" => storage(FileDType::Other("torch.QUInt8Storage", 1)),
        "QUInt4x2Storage" => storage(FileDType::Other("torch.QUInt4x2Storage", 1)),
        "QUInt2x4Storage" => storage(FileDType::Other("torch.QUInt2x4Storage", 1)),
        "QInt32Storage" => storage(FileDType::Other("torch.QInt32Storage", 4)),
        "per_tensor_affine"
        | "per_tensor_symmetric"
        | "per_channel_affine"
        | "per_channel_symmetric"
        | "per_channel_affine_float_qparams" => Known::Type,
        "ComplexFloatStorage" => storage(FileDType::Complex64),
        "ComplexDoubleStorage" => storage(FileDType::Complex128),
        "float64" => Known::DType(FileDType::F64, "torch.float64"),
        "float32" => Known::DType(FileDType::F32, "torch.float32"),
        "float16" => Known::DType(FileDType::F16, "torch.float16"),
        "bfloat16" => Known::DType(FileDType::BF16, "torch.bfloat16"),
        "int64" => Known::DType(FileDType::I64, "torch.int64"),
        "int32" => Known::DType(FileDType::I32, "torch.int32"),
        "int16" => Known::DType(FileDType::I16, "torch.int16"),
        "int8" => Known::DType(FileDType::I8, "torch.int8"),
        "uint64" => Known::DType(FileDType::U64, "torch.uint64"),
        "uint32" => Known::DType(FileDType::U32, "torch.uint32"),
        "uint16" => Known::DType(FileDType::U16, "torch.uint16"),
        "uint8" => Known::DType(FileDType::U8, "torch.uint8"),
        "bool" => Known::DType(FileDType::Bool, "torch.bool"),
        "float8_e4m3fn" => float8("torch.float8_e4m3fn"),
        "float8_e4m3fnuz" => float8("torch.float8_e4m3fnuz"),
        "float8_e5m2" => float8("torch.float8_e5m2"),
        "float8_e5m2fnuz" => float8("torch.float8_e5m2fnuz"),
        "float8_e8m0fnu" => float8("torch.float8_e8m0fnu"),
        "float4_e2m1fn_x2" => float8("torch.float4_e2m1fn_x2"),
        "complex32" => Known::DType(FileDType::Complex32, "torch.complex32"),
        "complex64" => Known::DType(FileDType::Complex64, "torch.complex64"),
        "complex128" => Known::DType(FileDType::Complex128, "torch.complex128"),
        _ => return None,
    })
}

impl Machine<'_> {
    /// The result of `known(*arguments)`.
    pub(super) fn called(&mut self, known: Known, arguments: &[Ref]) -> Step<Ref> {
        let object = match (known, arguments) {
            // `defaultdict(factory)`: the factory is not needed.
            (Known::Dict("defaultdict"), [] | [_]) | (Known::Dict(_), []) => Object::Dict(Vec::new()),
            (Known::Dict("OrderedDict" | "Counter" | "dict"), [entries]) => self.dict_of(*entries)?,
            (Known::List, []) => Object::List(Vec::new()),
            (Known::List, [items]) => Object::List(self.items_of(*items)?),
            (Known::Tuple, []) => Object::Tuple(Vec::new()),
            (Known::Tuple, [items]) => Object::Tuple(self.items_of(*items)?),
            (Known::Text, [text, ..]) => {
                let text = self.text_of(*text)?.to_string();
                self.spend(text.len())?;
                Object::Text(text)
            }
            (Known::Encode, [text, ..]) => self.encoded(*text)?,
            (Known::NumpyType, [name, ..]) => self.numpy_dtype(*name)?,
            (Known::NumpyNumber, [dtype, bytes]) => self.numpy_scalar(*dtype, *bytes)?,
            (Known::Skipped(what), _) => Object::Unsupported(what),
            (Known::Tensor(rebuild), _) => return self.rebuilt(rebuild, arguments),
            _ => return Err(format!("its pickle calls {} with {} arguments", known.name(), arguments.len()).into()),
        };
        Ok(self.make(object))
    }

    /// Sets the attributes of an object. The attributes of a dict (`_metadata`), a tensor or a text are not needed.
    pub(super) fn build(&mut self, object: Ref, attributes: Ref) -> Step<()> {
        match self.objects[object] {
            Object::Dict(_) | Object::Tensor(_) | Object::Text(_) | Object::Unsupported(_) => Ok(()),
            Object::NumpyType(_) => self.set_numpy_byte_order(object, attributes),
            _ => Err("its pickle sets attributes of an object that has none".into()),
        }
    }

    /// Returns the storage of a persistent id, `('storage', class, key, location, count)`. In the old format, the id
    /// also has a part of the storage.
    pub(super) fn storage(&self, id: Ref) -> Step<PickleStorage> {
        let Object::Tuple(parts) = &self.objects[id] else {
            return Err("its pickle has a storage without a description".into());
        };
        match parts.as_slice() {
            [kind, ..] if self.text_of(*kind)? == "module" => {
                Err("it holds a whole module, with its code: in Python, save model.state_dict()".into())
            }
            [_, class, key, _, count, part @ ..] => {
                let Object::Known(Known::Storage(file_dtype)) = self.objects[*class] else {
                    return Err("its pickle has a storage of no known class".into());
                };
                let part = match part {
                    [part] => self.part_of(*part)?,
                    _ => None,
                };
                let key = self.text_of(*key)?;
                if key.len() > 64 {
                    return Err("its pickle has a storage whose name is too long".into());
                }
                Ok(PickleStorage { key: key.into(), file_dtype, count: self.size_of(*count)?, part })
            }
            _ => Err("its pickle has a storage without a description".into()),
        }
    }

    /// `(key, offset, count)`: a storage that is a part of another one.
    fn part_of(&self, part: Ref) -> Step<Option<(usize, usize)>> {
        match &self.objects[part] {
            Object::None => Ok(None),
            Object::Tuple(parts) => match parts.as_slice() {
                [_, offset, count] => Ok(Some((self.size_of(*offset)?, self.size_of(*count)?))),
                _ => Err("its pickle has a part of a storage without a description".into()),
            },
            _ => Err("its pickle has a part of a storage without a description".into()),
        }
    }

    pub(super) fn text_of(&self, at: Ref) -> Step<&str> {
        match &self.objects[at] {
            Object::Text(text) => Ok(text),
            _ => Err("its pickle has an object of another kind in place of a string".into()),
        }
    }

    pub(super) fn size_of(&self, at: Ref) -> Step<usize> {
        match self.objects[at] {
            Object::Int(value) => {
                usize::try_from(value).map_err(|_| format!("a tensor has {value} for a size or place").into())
            }
            _ => Err("its pickle has an object of another kind in place of a size".into()),
        }
    }

    pub(super) fn sizes_of(&self, at: Ref) -> Step<Vec<usize>> {
        const RANK: usize = 64; // PyTorch's own bound
        match &self.objects[at] {
            Object::Tuple(sizes) | Object::List(sizes) if sizes.len() <= RANK => {
                sizes.iter().map(|&size| self.size_of(size)).collect()
            }
            _ => Err("its pickle has a tensor without a shape, or with too many dimensions".into()),
        }
    }

    fn items_of(&mut self, at: Ref) -> Step<Vec<Ref>> {
        let items = match &self.objects[at] {
            Object::List(items) | Object::Tuple(items) => items,
            _ => return Err("its pickle makes a list of an object that is not a collection".into()),
        };
        let count = items.len();
        self.spend(count)?;
        match &self.objects[at] {
            Object::List(items) | Object::Tuple(items) => Ok(items.clone()),
            _ => Ok(Vec::new()),
        }
    }

    fn dict_of(&mut self, at: Ref) -> Step<Object> {
        if let Object::Dict(entries) = &self.objects[at] {
            let count = entries.len();
            let entries = entries.clone();
            self.spend(2 * count)?;
            return Ok(Object::Dict(entries));
        }
        let entry = |machine: &Machine, item: Ref| match &machine.objects[item] {
            Object::Tuple(pair) | Object::List(pair) => match pair.as_slice() {
                &[key, value] => Ok((key, value)),
                _ => Err(Fault::from("its pickle has a key without a value")),
            },
            _ => Err("its pickle has a key without a value".into()),
        };
        let items = self.items_of(at)?;
        Ok(Object::Dict(items.into_iter().map(|item| entry(self, item)).collect::<Step<_>>()?))
    }

    fn encoded(&mut self, text: Ref) -> Step<Object> {
        let text = self.text_of(text)?;
        let bytes = text.chars().map(|c| u8::try_from(u32::from(c))).collect::<Result<Vec<u8>, _>>();
        let bytes = bytes.map_err(|_| Fault::from("its pickle has bytes above 255"))?;
        self.spend(bytes.len())?;
        Ok(Object::Bytes(bytes))
    }
}
