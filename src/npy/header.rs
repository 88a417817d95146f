//! The header of a `.npy` file: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>. It is a
//! Python literal. For an array of numbers it has one form, and only this form is read.

use super::numbers::Kind;

const MAGIC: &[u8] = b"\x93NUMPY";

/// The most dimensions of an array of NumPy.
pub(super) const DIMENSIONS: usize = 64;

/// The longest header that is read: headers of arrays of numbers have some hundred bytes.
const LONGEST: usize = 4096;

/// What a header says.
#[derive(Debug, PartialEq)]
pub(super) struct Header {
    pub kind: Kind,
    /// Whether the elements are in columns: the first index runs fastest.
    pub fortran_order: bool,
    pub shape: Vec<usize>,
}

impl Header {
    /// Returns the header of a file and its elements, whose number of bytes is what the header says.
    pub fn parse(bytes: &[u8]) -> Result<(Header, &[u8]), String> {
        let cut = || "it is cut off".to_string();
        let rest = bytes.strip_prefix(MAGIC).ok_or("it is not a .npy file")?;
        let (length, rest) = match rest {
            [1, _, a, b, rest @ ..] => (usize::from(u16::from_le_bytes([*a, *b])), rest),
            [2 | 3, _, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
            [1..=3, ..] | [] => return Err(cut()),
            [version, ..] => return Err(format!("version {version} of the format is not known")),
        };
        if length > LONGEST {
            return Err(format!("its header has {length} bytes, which no array of numbers needs"));
        }
        let (text, data) = rest.split_at_checked(length).ok_or_else(cut)?;
        let text = std::str::from_utf8(text).map_err(|_| "its header is not text")?;
        let header = Header::of(text)?;
        let count = header.shape.iter().try_fold(header.kind.size(), |count, size| count.checked_mul(*size));
        if let Some((_, after)) = count.and_then(|count| data.split_at_checked(count))
            && after.starts_with(MAGIC)
        {
            return Err(
                "it has several arrays, one after another, as repeated calls of numpy.save write them: save them with \
                numpy.savez(path, a=.., b=..) and read them with npy::load_npz"
                    .into(),
            );
        }
        if count != Some(data.len()) {
            let detail = format!("its shape {:?} does not fit its {} bytes of elements", header.shape, data.len());
            return Err(detail);
        }
        Ok((header, data))
    }

    fn of(text: &str) -> Result<Header, String> {
        let value =
            |key: &str| value(text, key).ok_or_else(|| format!("its header has no '{key}': {}", text.trim_end()));
        let descr = literal(value("descr")?);
        let kind = Kind::of(descr).ok_or_else(|| not_read(descr))?;
        let order = value("fortran_order")?;
        let fortran_order = match (order.starts_with("True"), order.starts_with("False")) {
            (false, false) => return Err(format!("its header does not say the order: {}", text.trim_end())),
            (fortran, _) => fortran,
        };
        let wrong = || format!("its shape is no list of sizes: {}", text.trim_end());
        let shape = value("shape")?.strip_prefix('(').and_then(|text| text.split_once(')')).ok_or_else(wrong)?.0;
        // NumPy for Python 2 writes long integers: (3L, 2L).
        let size = |size: &str| size.strip_suffix('L').unwrap_or(size).parse();
        let sizes = shape.split(',').map(str::trim).filter(|size| !size.is_empty()).map(size);
        Ok(Header { kind, fortran_order, shape: sizes.collect::<Result<_, _>>().map_err(|_| wrong())? })
    }
}

/// Returns what follows a key and its colon.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    ['\'', '"'].into_iter().find_map(|quote| {
        let quoted = format!("{quote}{key}{quote}");
        // A record may have a field of this name, after which there is no colon.
        let mut places = text.match_indices(&quoted);
        places.find_map(|(at, _)| text[at + quoted.len()..].trim_start().strip_prefix(':').map(str::trim_start))
    })
}

/// Returns the text in quotes, or the list in brackets, that a text begins with.
fn literal(text: &str) -> &str {
    if let Some(quote) = text.chars().next().filter(|first| matches!(first, '\'' | '"')) {
        return text[1..].split_once(quote).map_or(text, |(inner, _)| inner);
    }
    let (mut depth, mut quoted) = (0usize, None);
    for (at, c) in text.char_indices() {
        match (quoted, c) {
            (Some(quote), _) if c == quote => quoted = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quoted = Some(c),
            (None, '[' | '(') => depth += 1,
            (None, ']' | ')') if depth == 1 => return &text[..=at],
            (None, ']' | ')') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => return &text[..at],
            _ => {}
        }
    }
    text.trim_end()
}

/// Returns the error of a type that is not read, with what to save in place of it.
fn not_read(descr: &str) -> String {
    let (what, remedy) = match descr.trim_start_matches(['<', '>', '=', '|']).chars().next() {
        Some('[' | '(') => (
            ", a record array",
            "save each field by itself, by numpy.savez(path, **{name: x[name] for name in x.dtype.names}), and read them with \
             npy::load_npz",
        ),
        Some('O') => (
            ", objects of Python",
            "save numpy.array(x.tolist(), dtype='float32') if they are numbers; arrays of different shapes are saved one by one, \
             by numpy.savez",
        ),
        Some('c') => (", complex numbers", "save numpy.stack([x.real, x.imag], -1).astype('float32')"),
        Some('U' | 'S' | 'T') => (", texts", "save numbers for them, such as numpy.unique(x, return_inverse=True)[1]"),
        Some('M' | 'm') => (", times", "save x.astype('int64'), the number of their units"),
        Some('V') => (
            ", bytes that NumPy has no numbers for",
            "save x.astype('float32') if another package defines the type, such as bfloat16, or else x.view('uint8')",
        ),
        _ => ("", "save x.astype('float32')"),
    };
    let shown: String = descr.chars().take(200).collect();
    let more = if shown.len() < descr.len() { " .." } else { "" };
    format!("it is of type {shown}{more}{what}, which is not read: {remedy}")
}

/// Returns what precedes the elements of an array of a type, in rows, of at most [`DIMENSIONS`].
pub(super) fn text(kind: &str, shape: &[usize]) -> Vec<u8> {
    let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let shape = if shape.len() == 1 { sizes.trim_end() } else { sizes.trim_end_matches(", ") };
    let mut header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}");
    // The elements begin at a multiple of 64 bytes, after a line feed.
    let before = MAGIC.len() + 4;
    header.push_str(&" ".repeat((before + header.len() + 1).next_multiple_of(64) - before - header.len() - 1));
    header.push('\n');
    [MAGIC, &[1, 0], &(header.len() as u16).to_le_bytes(), header.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let length = (header.len() as u16).to_le_bytes();
        [MAGIC, &[1, 0], &length, header.as_bytes(), data].concat()
    }

    #[test]
    fn headers_of_numpy_are_read_and_others_refused() {
        let good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }          \n";
        let bytes = file(good, &[0; 8]);
        let kind = Kind::of("<f4").expect("a type");
        let header = Header { kind, fortran_order: false, shape: vec![2, 1] };
        assert_eq!(Header::parse(&bytes), Ok((header, &[0; 8][..])));
        for version in [2, 3] {
            let length = (good.len() as u32).to_le_bytes();
            let bytes = [MAGIC, &[version, 0], &length, good.as_bytes(), &[0; 8]].concat();
            assert_eq!(Header::parse(&bytes).map(|(header, _)| header.shape), Ok(vec![2, 1]));
        }
        let columns = Header::parse(&file(&good.replace("False", "True"), &[0; 8])).expect("a header").0;
        assert!(columns.fortran_order);
        for other in [
            good.replace("(2, 1)", "(2L, 1L)"),
            good.replace('\'', "\""),
            good.replace("<f4", if cfg!(target_endian = "big") { "<f4" } else { "=f4" }),
        ] {
            assert_eq!(Header::parse(&file(&other, &[0; 8])), Header::parse(&bytes), "{other}");
        }
        let two = [&bytes[..], &bytes[..]].concat();
        assert!(Header::parse(&two).is_err_and(|error| error.contains("several arrays") && error.contains("savez")));
        for cut in 0..bytes.len() {
            assert!(Header::parse(&bytes[..cut]).is_err(), "{cut}");
        }
        for (header, expected) in [
            (
                good.replace("<f4", "<c8"),
                "type <c8, complex numbers, which is not read: save numpy.stack([x.real, x.imag], -1)",
            ),
            (
                good.replace("<f4", "|O"),
                "type |O, objects of Python, which is not read: save numpy.array(x.tolist(), dtype=",
            ),
            (
                good.replace("'<f4'", "[('a)', '<f4'), ('shape', '<i4', (2,))]"),
                "type [('a)', '<f4'), ('shape', '<i4', (2,))], a rec",
            ),
            (
                good.replace("'<f4'", "[('a', '<f4')]"),
                "read: save each field by itself, by numpy.savez(path, **{name: x[name]",
            ),
            (good.replace("<f4", "<U7"), "type <U7, texts, which is not read: save numbers for them"),
            (good.replace("<f4", "<M8[ns]"), "type <M8[ns], times, which is not read: save x.astype('int64')"),
            (good.replace("<f4", "|V2"), "x.view('uint8')"),
            (good.replace("<f4", "<f16"), "type <f16, which is not read: save x.astype('float32')"),
            (good.replace("(2, 1)", "(2LL, 1)"), "no list of sizes"),
            (good.replace("False", "None"), "does not say the order"),
            (good.replace("(2, 1)", "(3, 1)"), "does not fit its 8 bytes"),
            (good.replace("(2, 1)", "(4611686018427387904, 8)"), "does not fit"),
            (good.replace("(2, 1)", "(2, x)"), "no list of sizes"),
            (good.replace("(2, 1)", "(2, -1)"), "no list of sizes"),
            (good.replace("shape", "form"), "no 'shape'"),
            (good.replace("descr", "type"), "no 'descr'"),
            (" ".repeat(5000), "5000 bytes"),
        ] {
            let error = Header::parse(&file(&header, &[0; 8])).unwrap_err();
            assert!(error.contains(expected), "{header}: {error}");
        }
        assert!(Header::parse(b"PK\x03\x04").unwrap_err().contains("not a .npy file"));
        assert!(Header::parse(&[MAGIC, &[9, 0, 0, 0]].concat()).unwrap_err().contains("version 9"));
    }
}
