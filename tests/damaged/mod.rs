//! Invalid files.

pub mod archives;
pub mod headers;
pub mod pickles;

/// A file, what it ends in, and a part of what its error must say.
pub struct Case {
    pub name: String,
    pub ending: &'static str,
    pub bytes: Vec<u8>,
    pub says: &'static str,
}

pub fn case(name: &str, ending: &'static str, bytes: Vec<u8>, says: &'static str) -> Case {
    Case { name: name.to_string(), ending, bytes, says }
}
