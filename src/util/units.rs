//! Numbers for people.

/// Returns a number of bytes as text for people: `512 B`, `3.0 MiB`, `1.5 GiB`.
///
/// ```
/// assert_eq!(anygpu::watch::bytes(1536 << 20), "1.5 GiB");
/// ```
pub fn bytes(count: u64) -> String {
    let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.iter().find(|(size, _)| count >= *size) {
        Some((size, unit)) => format!("{:.1} {unit}", count as f64 / *size as f64),
        None => format!("{count} B"),
    }
}
