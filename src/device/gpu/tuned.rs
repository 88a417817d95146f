//! The variants that [`tune`](crate::tune) found to be the fastest on an adapter, in a small file for each adapter, driver and
//! version of this crate. The file is read when a device is opened, and it is never trusted: a variant that it names is
//! used only if the adapter can run it and it passes its trial.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::{Family, Gpu, Variant};
use crate::error::{Error, Result};
use crate::util::atomic::write_atomically;
use crate::util::cache_dir::cache_dir;
use crate::util::{regular_file, sync};

/// No file of this crate is longer.
const MOST_BYTES: u64 = 1 << 16;

/// The variant for a class of sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TunedChoice {
    pub family: String,
    pub class: String,
    pub variant: String,
}

/// The stored choices of a device.
pub(super) struct Tuned {
    /// `None` without a folder for caches.
    path: Option<PathBuf>,
    identity: String,
    /// Whether the choices are used: not with `ANYGPU_TUNED=0`.
    used: bool,
    choices: Mutex<Vec<TunedChoice>>,
}

impl Tuned {
    /// Reads the choices of an adapter. A file that is damaged or another adapter's is ignored, with a warning.
    pub fn of(adapter: &str, driver: &str) -> Tuned {
        let folder = cache_dir(|name| std::env::var_os(name)).map(|folder| folder.join("tuned"));
        let used = std::env::var_os("ANYGPU_TUNED").is_none_or(|value| value != "0");
        Tuned::read_from(folder.as_deref(), adapter, driver, used)
    }

    fn read_from(folder: Option<&Path>, adapter: &str, driver: &str, used: bool) -> Tuned {
        let identity = identity(adapter, driver);
        let name = format!("{:08x}.txt", crc32fast::hash(identity.as_bytes()));
        let path = folder.map(|folder| folder.join(name));
        let mut choices = Vec::new();
        if let (Some(path), true) = (&path, used) {
            match read(path, &identity) {
                Ok(found) => choices = found,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => log::warn!(
                    "{}: these tuned variants are ignored: {error}; `anygpu tune` writes the file anew",
                    path.display()
                ),
            }
        }
        Tuned { path, identity, used, choices: choices.into() }
    }

    /// Returns the name of the variant of a class. `class` is not called if nothing was stored.
    fn choice(&self, family: &str, class: impl FnOnce() -> String) -> Option<String> {
        let choices = sync::lock(&self.choices);
        if choices.is_empty() {
            return None;
        }
        let class = class();
        let found = choices.iter().find(|choice| choice.family == family && choice.class == class);
        found.map(|choice| choice.variant.clone())
    }

    /// Replaces the stored choices, also those in use.
    fn store(&self, choices: Vec<TunedChoice>) -> io::Result<PathBuf> {
        let path = self.path.clone().ok_or_else(|| {
            io::Error::other(
                "there is no folder for caches, since HOME and XDG_CACHE_HOME are not set: set one of them",
            )
        })?;
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
            regular_file::check_own_folder(folder)?;
        }
        check_own(&path)?;
        let text = text(&self.identity, &choices);
        write_atomically(&path, |file| file.write_all(text.as_bytes()))?;
        if self.used {
            *sync::lock(&self.choices) = choices;
        }
        Ok(path)
    }
}

/// Returns an error if there is a file in this place that is no file of this crate.
fn check_own(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(about) if about.is_symlink() => return Err(io::Error::other("it is a link, not a file: remove it")),
        Ok(_) => {}
    }
    let mut begins = Vec::new();
    regular_file::open(path)?.0.take(FORMAT.len() as u64).read_to_end(&mut begins)?;
    match FORMAT.as_bytes().starts_with(&begins) {
        true => Ok(()),
        false => Err(io::Error::other("it is no file of `anygpu tune`: remove it")),
    }
}

/// What every file begins with.
const FORMAT: &str = "anygpu tune, format ";

/// Returns the lines that a file begins with.
fn identity(adapter: &str, driver: &str) -> String {
    let line = |text: &str| text.replace(char::is_control, " ");
    let version = env!("CARGO_PKG_VERSION");
    format!("{FORMAT}1\nversion {version}\nadapter {}\ndriver {}\n", line(adapter), line(driver))
}

/// Returns a file: the identity, a line for each choice, and a checksum.
fn text(identity: &str, choices: &[TunedChoice]) -> String {
    let rows = choices.iter().map(|choice| format!("{}\t{}\t{}\n", choice.family, choice.class, choice.variant));
    let text = rows.fold(identity.to_owned(), |text, row| text + &row);
    let sum = crc32fast::hash(text.as_bytes());
    format!("{text}crc32 {sum:08x}\n")
}

fn read(path: &Path, identity: &str) -> io::Result<Vec<TunedChoice>> {
    parse(&regular_file::read_text(path, MOST_BYTES)?, identity).map_err(io::Error::other)
}

fn parse(text: &str, identity: &str) -> Result<Vec<TunedChoice>, &'static str> {
    let damaged = "it is damaged";
    let at = text.rfind("crc32 ").ok_or(damaged)?;
    let (content, sum) = text.split_at(at);
    if sum != format!("crc32 {:08x}\n", crc32fast::hash(content.as_bytes())) {
        return Err(damaged);
    }
    let rows = content.strip_prefix(identity).ok_or("it is of another adapter, driver or version")?;
    let choice = |row: &str| match row.split('\t').collect::<Vec<_>>()[..] {
        [family, class, variant] => {
            Some(TunedChoice { family: family.into(), class: class.into(), variant: variant.into() })
        }
        _ => None,
    };
    rows.lines().map(choice).collect::<Option<_>>().ok_or(damaged)
}

/// Reads a file of choices. The fuzz target `tuned` calls it, with a right checksum or without.
pub(crate) fn fuzz(text: &str, with_checksum: bool) -> usize {
    let identity = identity("a card", "1.0");
    let content = format!("{identity}{text}");
    let sum =
        if with_checksum { format!("crc32 {:08x}\n", crc32fast::hash(content.as_bytes())) } else { String::new() };
    parse(&(content + &sum), &identity).map_or(0, |choices| choices.len())
}

impl Gpu {
    /// Returns the stored variant for a class of sizes, if there is one, the adapter can run it and it is correct.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceLost`]; [`Error::OutOfMemory`].
    pub(crate) fn tuned<P, W>(
        &self,
        family: &Family<P, W>,
        class: impl FnOnce() -> String,
    ) -> Result<Option<&'static Variant<P, W>>> {
        match self.tuned.choice(family.name, class) {
            Some(name) => self.variant_named(family, &name),
            None => Ok(None),
        }
    }

    /// Stores choices for this adapter, and uses them from now on. Returns the file.
    ///
    /// # Errors
    ///
    /// [`Error::Data`] if the file cannot be written.
    pub(crate) fn store_tuned(&self, choices: Vec<TunedChoice>) -> Result<PathBuf> {
        let path = || self.tuned.path.as_deref().map_or("tuned variants".into(), |path| path.display().to_string());
        self.tuned.store(choices).map_err(|error| Error::Data { path: path(), detail: error.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices() -> Vec<TunedChoice> {
        let choice = |class: &str, variant: &str| TunedChoice {
            family: "matmul".into(),
            class: class.into(),
            variant: variant.into(),
        };
        vec![choice("1-8 tiles, broad", "tiles"), choice("9-48 tiles, broad", "no such variant")]
    }

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().expect("a folder")
    }

    #[test]
    fn choices_are_read_by_the_next_device_of_the_adapter() {
        let folder = folder();
        let of = |adapter, driver, used| Tuned::read_from(Some(folder.path()), adapter, driver, used);
        let first = of("a card", "1.0\n2", true);
        assert_eq!(first.choice("matmul", || "1-8 tiles, broad".into()), None);
        first.store(choices()).expect("it is stored");
        for device in [&first, &of("a card", "1.0\n2", true)] {
            assert_eq!(device.choice("matmul", || "1-8 tiles, broad".into()).as_deref(), Some("tiles"));
            assert_eq!(device.choice("matmul", || "other".into()), None);
            assert_eq!(device.choice("conv", || "1-8 tiles, broad".into()), None);
        }
        for device in [of("a card", "1.1", true), of("another", "1.0\n2", true), of("a card", "1.0\n2", false)] {
            assert!(sync::lock(&device.choices).is_empty());
        }
    }

    #[test]
    fn a_damaged_or_foreign_file_is_ignored() {
        let folder = folder();
        let read = || Tuned::read_from(Some(folder.path()), "a card", "1.0", true);
        let path = read().store(choices()).expect("it is stored");
        let whole = std::fs::read(&path).expect("a file");
        let kept = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("a file");
            let tuned = read();
            sync::lock(&tuned.choices).len()
        };
        assert_eq!(kept(&whole), 2);
        (0..whole.len()).for_each(|cut| assert_eq!(kept(&whole[..cut]), 0, "{cut}"));
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 4;
            assert_eq!(kept(&changed), 0, "{at}");
        }
        assert_eq!(kept(text(&identity("another card", "1.0"), &choices()).as_bytes()), 0);
        assert_eq!(kept(text(&(identity("a card", "1.0") + "a\tb\n"), &choices()).as_bytes()), 0);
        assert_eq!(kept(&vec![b'a'; 1 << 17]), 0);
        std::fs::remove_file(&path).expect("it was there");
        std::fs::create_dir(&path).expect("a folder in the file's place");
        assert!(sync::lock(&read().choices).is_empty() && read().store(choices()).is_err());
    }

    #[test]
    fn nothing_but_a_file_of_ours_is_replaced() {
        let folder = folder();
        let read = || Tuned::read_from(Some(folder.path()), "a card", "1.0", true);
        let path = read().store(choices()).expect("it is stored");
        for own in [&b""[..], b"anygpu tu", b"anygpu tune, format 2\nof a later version"] {
            std::fs::write(&path, own).expect("a file");
            read().store(choices()).expect("a damaged file is replaced");
        }
        std::fs::write(&path, "Dear").expect("a file");
        let error = read().store(choices()).expect_err("a letter").to_string();
        assert!(error.contains("anygpu tune"), "{error}");
        assert_eq!(std::fs::read(&path).ok().as_deref(), Some(&b"Dear"[..]));
        #[cfg(unix)]
        {
            use std::os::unix::fs::symlink;
            let (document, linked) = (folder.path().join("document"), folder.path().join("linked"));
            std::fs::rename(&path, &document).expect("a file");
            symlink(&document, &path).expect("a link");
            assert!(read().store(choices()).is_err_and(|error| error.to_string().contains("a link")));
            assert_eq!(std::fs::read(&document).ok().as_deref(), Some(&b"Dear"[..]));
            symlink(folder.path(), &linked).expect("a link");
            let through = Tuned::read_from(Some(&linked), "another card", "1.0", true);
            assert!(through.store(choices()).is_err_and(|error| error.to_string().contains("a link")));
        }
    }

    #[test]
    fn without_a_folder_for_caches_nothing_is_stored() {
        let error = Tuned::read_from(None, "a card", "1.0", true).store(choices()).expect_err("no folder");
        assert!(error.to_string().contains("XDG_CACHE_HOME"), "{error}");
    }
}
