//! Elements of 64 bits, compared with loops in plain Rust: `i64` is stored, moved and an index on every device, `f64` is stored on
//! `cpu`, and both are computed there.

mod doubles;
mod integers;
mod moves;
mod storage;
mod surroundings;

use anygpu::Result;

const LONGS: [i64; 14] = [
    0,
    1,
    -1,
    7,
    -7,
    63,
    64,
    i32::MAX as i64 + 1,
    -(1 << 40) - 3,
    (1 << 53) + 1,
    (1 << 62) + 5,
    i64::MAX,
    i64::MIN,
    i64::MIN + 1,
];

#[track_caller]
fn refused<T>(result: Result<T>, words: &[&str]) {
    let text = match result {
        Ok(_) => panic!("not refused: {words:?}"),
        Err(error) => error.to_string(),
    };
    words.iter().for_each(|word| assert!(text.contains(word), "{word}: {text}"));
}
