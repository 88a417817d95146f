//! The folder of this user's caches.

use std::ffi::OsString;
use std::path::PathBuf;

/// Returns the folder that this crate's caches are in: `anygpu` in `XDG_CACHE_HOME`, or else where the system has caches.
/// `var` reads the environment.
pub(crate) fn cache_dir(var: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    // The XDG specification requires that a relative path is ignored.
    let absolute = |name: &str| var(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(path) = absolute("XDG_CACHE_HOME") {
        return Some(path.join("anygpu"));
    }
    if cfg!(windows) {
        absolute("LOCALAPPDATA").map(|path| path.join("anygpu").join("cache"))
    } else if cfg!(target_os = "macos") {
        absolute("HOME").map(|path| path.join("Library").join("Caches").join("anygpu"))
    } else {
        absolute("HOME").map(|path| path.join(".cache").join("anygpu"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn cache_directory_follows_the_environment() {
        let set = |wanted: &'static str, value: &'static str| {
            move |name: &str| (name == wanted).then(|| OsString::from(value))
        };
        let root = if cfg!(windows) { "C:\\c" } else { "/c" };
        assert_eq!(cache_dir(set("XDG_CACHE_HOME", root)), Some(Path::new(root).join("anygpu")));
        assert_eq!(cache_dir(set("XDG_CACHE_HOME", "relative")), None);
        assert_eq!(cache_dir(|_| None), None);
        let home = if cfg!(windows) { "LOCALAPPDATA" } else { "HOME" };
        assert!(cache_dir(set(home, root)).is_some_and(|path| path.starts_with(root)));
    }
}
