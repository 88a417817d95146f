//! The crate's own WGSL files and their parameters. Each `shader!` registers itself, so that the tests can list all of
//! them.
//!
//! Entry points, the names of `override`s and the number of bindings are not checked before a kernel runs on an adapter.

use std::marker::PhantomData;

/// The file that precedes every shader.
const PRELUDE: &str = include_str!("../../../shaders/common/prelude.wgsl");

/// The text that precedes the shaders that read and write vectors of four elements.
pub(crate) const FOURS: &str = include_str!("../../../shaders/common/fours.wgsl");

/// The text of the function by which kernels write their results that elementwise kernels may follow.
pub(crate) const PUT: &str = include_str!("../../../shaders/common/put.wgsl");

/// A WGSL file of this crate, with the texts that precede it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShaderText {
    /// The name in labels and errors: the file's stem, unless several shaders use one file.
    pub name: &'static str,
    /// The shared files that precede the file, then the file itself. The prelude comes before all of them.
    pub files: &'static [&'static str],
    /// Returns every header that the shader is compiled with: types and sizes that `override` cannot set.
    /// Usually one empty text.
    pub headers: fn() -> Vec<&'static str>,
    /// The members of the struct at `@binding(0)`.
    pub params: &'static [ParamField],
}

inventory::collect!(ShaderText);

/// The declaration of the parameters in every shader.
const UNIFORM: &str = "@group(0) @binding(0) var<uniform> p: Params;";
/// The declaration that replaces it on devices with immediates (push constants), which cost less for each dispatch.
const IMMEDIATES: &str = "var<immediate> p: Params;";

impl ShaderText {
    /// Returns the complete text.
    pub fn assembled(&self, header: &str) -> String {
        [&[header, PRELUDE], self.files].concat().concat()
    }

    /// Returns the complete text, whose parameters are immediates.
    pub fn with_immediates(&self, header: &str) -> String {
        self.assembled(header).replace(UNIFORM, IMMEDIATES)
    }

    /// Returns whether the shader writes its results by [`PUT`].
    pub fn has_epilogue(&self) -> bool {
        self.files.contains(&PUT)
    }

    /// Returns the complete text with another function in the place of [`PUT`], which reads more params: `members` of the
    /// struct, from the next multiple of four words on.
    pub fn with_epilogue(&self, header: &str, put: &str, members: &str, immediates: bool) -> String {
        let files: Vec<&str> = self.files.iter().map(|&file| if file == PUT { put } else { file }).collect();
        let mut text = [&[header, PRELUDE], &files[..]].concat().concat();
        let start = text.find("struct Params {").unwrap_or_default();
        let end = text[start..].find("\n}").map_or(start, |end| start + end + 1);
        text.insert_str(end, &(self.padding() + members));
        if immediates { text.replace(UNIFORM, IMMEDIATES) } else { text }
    }

    /// Returns members that fill the params up to a multiple of four words. They stand for an `@align(16)` of the next one: naga
    /// translates no attributes of members to GLSL, where each is at the first place that its type allows.
    fn padding(&self) -> String {
        let (end, _) = self.end_of_params();
        let words = end.div_ceil(4);
        (words..words.next_multiple_of(4)).map(|word| format!("    padding{word}: u32,\n")).collect()
    }

    /// Returns the complete text of a shader that is made at run time, after the texts of the functions that it calls.
    pub fn generated(functions: &[&'static str], text: &str, immediates: bool) -> String {
        let text = if immediates { text.replace(UNIFORM, IMMEDIATES) } else { text.to_string() };
        [PRELUDE, FOURS, &functions.concat(), &text].concat()
    }

    /// Returns the number of words of the params.
    pub fn param_words(&self) -> usize {
        let (end, align) = self.end_of_params();
        end.next_multiple_of(align) / 4
    }

    /// Returns the bytes up to the end of the last member of the params, and their alignment.
    fn end_of_params(&self) -> (usize, usize) {
        self.params.iter().fold((0, 4), |(end, align): (usize, usize), field| {
            (end.next_multiple_of(field.align) + field.size, align.max(field.align))
        })
    }

    /// Returns every shader of the crate.
    pub fn all() -> impl Iterator<Item = &'static ShaderText> {
        inventory::iter::<ShaderText>.into_iter()
    }
}

/// A shader whose parameters are of type `P`, made by `shader!`.
#[derive(Debug)]
pub(crate) struct Shader<P> {
    pub text: ShaderText,
    pub params: PhantomData<fn(P)>,
}

impl<P> Clone for Shader<P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Shader<P> {}

impl<P: Params> Shader<P> {
    pub const fn new(name: &'static str, files: &'static [&'static str], headers: fn() -> Vec<&'static str>) -> Self {
        Shader { text: ShaderText { name, files, headers, params: P::FIELDS }, params: PhantomData }
    }
}

/// Returns the last part of a path.
pub(crate) const fn stem(path: &'static str) -> &'static str {
    let bytes = path.as_bytes();
    let mut at = bytes.len();
    while at > 0 && bytes[at - 1] != b'/' {
        at -= 1;
    }
    path.split_at(at).1
}

/// Expands to the text of a file in `shaders/`, given its path there without the extension.
macro_rules! wgsl {
    ($path:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/", $path, ".wgsl"))
    };
}

/// Declares and registers a shader: `shader!(SOFTMAX: Params = "reduction/softmax")` is `shaders/reduction/softmax.wgsl`, whose
/// `struct Params` is the Rust struct `Params`. Its name is `softmax`.
///
/// `after [WINDOW]` names shared texts that precede the file. `headers f` names the function that returns all headers
/// that it is compiled with. `named "binary_floats"` sets another name, if several shaders use one file.
macro_rules! shader {
    ($vis:vis $id:ident: $params:ty = $file:literal $(named $name:literal)? $(, after [$($shared:expr),*])? $(, headers $headers:expr)?) => {
        $vis const $id: $crate::device::gpu::Shader<$params> = $crate::device::gpu::Shader::new(
            $crate::device::gpu::shader!(@name $file $(, $name)?),
            &[$($($shared,)*)? $crate::device::gpu::wgsl!($file)],
            $crate::device::gpu::shader!(@first $($headers,)? || vec![""]),
        );
        inventory::submit! { $id.text }
    };
    (@name $file:literal) => { $crate::device::gpu::stem($file) };
    (@name $file:literal, $name:literal) => { $name };
    (@first $first:expr, $second:expr) => { $first };
    (@first $only:expr) => { $only };
}
pub(crate) use {shader, wgsl};

/// The value of a uniform block: `@binding(0) var<uniform> p: Params`. Implemented by `params!`.
pub(crate) trait Params: Copy {
    const FIELDS: &'static [ParamField];

    fn write(&self, to: &mut ParamWords);
}

/// A member of a uniform block, as WGSL lays it out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParamField {
    #[cfg_attr(not(test), expect(dead_code, reason = "a test compares it with the shader's member"))]
    pub name: &'static str,
    /// The WGSL type, or any scalar of four bytes if this is "bits".
    #[cfg_attr(not(test), expect(dead_code, reason = "a test compares it with the shader's member"))]
    pub ty: &'static str,
    pub align: usize,
    pub size: usize,
}

/// The words of a uniform block.
#[derive(Clone, Debug, Default)]
pub(crate) struct ParamWords {
    pub words: Vec<u32>,
    /// The largest alignment of a member, in words.
    pub align: usize,
    /// The first member whose value does not fit in 32 bits.
    pub too_large: Option<(&'static str, usize)>,
}

impl ParamWords {
    pub fn of(params: &impl Params) -> ParamWords {
        let words = Vec::with_capacity(size_of_val(params).div_ceil(4));
        let mut words = ParamWords { words, ..ParamWords::default() };
        params.write(&mut words);
        words.words.resize(words.words.len().next_multiple_of(words.align.max(1)), 0);
        words
    }

    pub fn push<T: Param>(&mut self, name: &'static str, value: T) {
        self.words.resize(self.words.len().next_multiple_of(T::ALIGN / 4), 0);
        self.align = self.align.max(T::ALIGN / 4);
        let (words, too_large) = value.words();
        self.words.extend(words.as_ref());
        self.too_large = self.too_large.or(too_large.map(|value| (name, value)));
    }
}

/// A type of a member.
pub(crate) trait Param: Copy {
    const TYPE: &'static str;
    const ALIGN: usize;
    const SIZE: usize;
    type Words: AsRef<[u32]>;

    /// Returns the words, and the value itself if it does not fit in them.
    fn words(self) -> (Self::Words, Option<usize>);
}

/// Four bytes whose type the shader's header chooses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bits(pub u32);

/// Four numbers, such as sizes and strides, for each of up to eight dimensions, outermost first. Strides may wrap: kernels
/// add modulo 2³².
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slots(pub [u32; 32]);

impl Slots {
    /// Returns the numbers of the first eight dimensions.
    pub fn new(dims: &[[usize; 4]]) -> Slots {
        Slots(std::array::from_fn(|i| dims.get(i / 4).map_or(0, |dim| dim[i % 4] as u32)))
    }
}

macro_rules! param_types {
    ($($t:ty => $name:literal, $align:literal, [$n:literal], |$value:ident| $words:expr, $too_large:expr;)*) => {$(
        impl Param for $t {
            const TYPE: &'static str = $name;
            const ALIGN: usize = $align;
            const SIZE: usize = 4 * $n;
            type Words = [u32; $n];

            fn words(self) -> ([u32; $n], Option<usize>) {
                let $value = self;
                ($words, $too_large)
            }
        }
    )*};
}
param_types! {
    usize => "u32", 4, [1], |v| [v as u32], u32::try_from(v).is_err().then_some(v);
    u32 => "u32", 4, [1], |v| [v], None;
    bool => "u32", 4, [1], |v| [u32::from(v)], None;
    i32 => "i32", 4, [1], |v| [v.cast_unsigned()], None;
    f32 => "f32", 4, [1], |v| [v.to_bits()], None;
    Bits => "bits", 4, [1], |v| [v.0], None;
    [u32; 2] => "vec2<u32>", 8, [2], |v| v, None;
    [u32; 4] => "vec4<u32>", 16, [4], |v| v, None;
    [usize; 4] => "vec4<u32>", 16, [4], |v| v.map(|v| v as u32), v.into_iter().find(|&v| u32::try_from(v).is_err());
    Slots => "array<vec4<u32>, 8>", 16, [32], |v| v.0, None;
}

/// Declares the Rust side of a shader's `struct Params`: the same names, types and order.
macro_rules! params {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($field:ident: $t:ty),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        $vis struct $name {
            $(pub $field: $t,)*
        }

        impl $crate::device::gpu::Params for $name {
            const FIELDS: &'static [$crate::device::gpu::ParamField] = &[$($crate::device::gpu::ParamField {
                name: stringify!($field),
                ty: <$t as $crate::device::gpu::Param>::TYPE,
                align: <$t as $crate::device::gpu::Param>::ALIGN,
                size: <$t as $crate::device::gpu::Param>::SIZE,
            }),*];

            fn write(&self, to: &mut $crate::device::gpu::ParamWords) {
                $(to.push(stringify!($field), self.$field);)*
            }
        }
    };
}
pub(crate) use params;

#[cfg(test)]
mod tests {
    use super::*;
    use naga::{AddressSpace, ArraySize, Module, Scalar, ScalarKind, Type, TypeInner, VectorSize};

    /// Returns the WGSL name of a type of params.
    fn type_name(module: &Module, ty: &Type) -> String {
        let scalar = |scalar: Scalar| match (scalar.kind, scalar.width) {
            (ScalarKind::Uint, 4) => "u32",
            (ScalarKind::Sint, 4) => "i32",
            (ScalarKind::Float, 4) => "f32",
            _ => "another scalar",
        };
        match ty.inner {
            TypeInner::Scalar(s) => scalar(s).into(),
            TypeInner::Vector { size, scalar: s } => {
                let size = [VectorSize::Bi, VectorSize::Tri, VectorSize::Quad].iter().position(|v| *v == size);
                format!("vec{}<{}>", size.map_or(0, |at| at + 2), scalar(s))
            }
            TypeInner::Array { base, size: ArraySize::Constant(n), .. } => {
                format!("array<{}, {n}>", type_name(module, &module.types[base]))
            }
            _ => "another type".into(),
        }
    }

    /// Returns the difference between a shader's params and the Rust struct.
    fn difference(text: &ShaderText, header: &str) -> Option<String> {
        let source = text.assembled(header);
        let module = naga::front::wgsl::parse_str(&source).map_err(|e| e.emit_to_string(&source));
        let module = match module {
            Ok(module) => module,
            Err(error) => return Some(error),
        };
        let mut blocks = module.global_variables.iter().filter(|(_, v)| v.space == AddressSpace::Uniform);
        let (Some((_, block)), None) = (blocks.next(), blocks.next()) else {
            return Some("not one uniform block".into());
        };
        let TypeInner::Struct { members, span } = &module.types[block.ty].inner else {
            return Some("the uniform block is not a struct".into());
        };
        let (mut end, mut align) = (0usize, 4);
        let mut rust = Vec::new();
        for field in text.params {
            let offset = end.next_multiple_of(field.align);
            rust.push((field.name.to_owned(), field.ty.to_owned(), offset));
            (end, align) = (offset + field.size, align.max(field.align));
        }
        let mut wgsl = Vec::new();
        for (i, member) in members.iter().enumerate() {
            let mut ty = type_name(&module, &module.types[member.ty]);
            if rust.get(i).is_some_and(|(_, wanted, _)| wanted == "bits") && ["u32", "i32", "f32"].contains(&&*ty) {
                ty = "bits".into();
            }
            wgsl.push((member.name.clone().unwrap_or_default(), ty, member.offset as usize));
        }
        if source.matches(UNIFORM).count() != 1 {
            return Some(format!("the parameters are not declared as {UNIFORM}"));
        }
        let same = rust == wgsl && *span as usize == end.next_multiple_of(align);
        (!same).then(|| format!("in Rust {rust:?} ({end} bytes), in WGSL {wgsl:?} ({span} bytes)"))
    }

    #[test]
    fn every_params_struct_is_that_of_its_shader() {
        let mut wrong = Vec::new();
        for text in ShaderText::all() {
            let headers = (text.headers)();
            assert!(!headers.is_empty(), "{} has no header, not even an empty one", text.name);
            let first = headers.iter().find_map(|header| difference(text, header));
            wrong.extend(first.map(|why| format!("{}: {why}", text.name)));
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(ShaderText::all().count() > 25, "shaders register themselves");
    }

    /// Lists of kernels, tables and profiles know shaders by their names.
    #[test]
    fn names_are_stems_and_different() {
        assert_eq!([stem("fill"), stem("spatial/conv/conv_blocks")], ["fill", "conv_blocks"]);
        let mut names: Vec<_> = ShaderText::all().map(|text| text.name).collect();
        assert!(names.iter().all(|name| !name.contains('/')), "{names:?}");
        names.sort_unstable();
        assert!(names.is_sorted_by(|a, b| a < b), "a name is that of two shaders: {names:?}");
    }

    #[test]
    fn results_that_others_may_follow_are_written_by_one_function() {
        let with: Vec<_> = ShaderText::all().filter(|text| text.has_epilogue()).collect();
        assert!(with.len() > 10, "{with:?}");
        for text in with {
            let files = text.files.iter().filter(|&&file| file != PUT);
            let code = |line: &str| line.split("//").next().is_some_and(|code| code.contains("out["));
            assert!(!files.flat_map(|file| file.lines()).any(code), "{} writes its result itself", text.name);
        }
    }

    params! {
        struct Mixed { count: usize, seed: [u32; 2], scale: f32, shape: Slots }
    }

    #[test]
    fn words_lie_as_wgsl_lays_them_out() {
        let words = ParamWords::of(&Mixed { count: 7, seed: [1, 2], scale: 1.0, shape: Slots::new(&[[3, 4, 5, 6]]) });
        assert_eq!(words.words[..8], [7, 0, 1, 2, 1f32.to_bits(), 0, 0, 0]);
        assert_eq!((words.words.len(), &words.words[8..10]), (40, &[3, 4][..]));
        assert_eq!(words.too_large, None);
        let shader: Shader<Mixed> = Shader::new("words", &[], || vec![""]);
        assert_eq!(shader.text.param_words(), words.words.len());
        let words = ParamWords::of(&Mixed { count: 1 << 32, seed: [0; 2], scale: 0.0, shape: Slots::default() });
        assert_eq!(words.too_large, Some(("count", 1 << 32)));
    }
}
