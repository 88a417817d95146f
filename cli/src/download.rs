//! Fashion-MNIST: four files, fetched once into the user's cache directory and checked against their md5.
//!
//! Plain http, as torchvision does: the checksum, not the transport, ensures that the file is the right one. No redirect
//! is followed, and no more than [`MOST`] bytes are read: whoever answers can neither choose another address to ask, nor
//! fill the disk.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anygpu::checkpoint::write_atomically;
use indicatif::ProgressBar;

use crate::failure::Failure;
use crate::progress;

const SOURCE: &str = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com";

/// The most bytes of a file; the largest of [`FILES`] has 26 421 880.
const MOST: u64 = 64 << 20;

/// File names and md5 sums.
const FILES: [(&str, &str); 4] = [
    ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
    ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
    ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
];

/// Returns the folder of Fashion-MNIST, after fetching the files that are missing there or damaged.
///
/// # Errors
/// If a file cannot be fetched. The message lists the four files and the folder to put them into.
pub fn fashion_mnist() -> Result<PathBuf, Failure> {
    let folder = cache_dir(|name| std::env::var_os(name))
        .ok_or_else(|| {
            Failure::Run(
                "fashion-mnist: no cache directory, since HOME and XDG_CACHE_HOME are not set: set one of them, \
                 or name the folder of the four files with --data DIR"
                    .to_string(),
            )
        })?
        .join("fashion-mnist");
    fetch_all(SOURCE, &FILES, &folder)?;
    Ok(folder)
}

/// The cache folder of this user. `var` reads the environment.
fn cache_dir(var: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
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

fn fetch_all(source: &str, files: &[(&str, &str)], folder: &Path) -> Result<(), Failure> {
    let missing: Vec<_> = files.iter().filter(|(name, md5)| !is_whole(&folder.join(name), md5)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    fs::create_dir_all(folder).map_err(|e| Failure::Run(format!("cannot create {}: {e}", folder.display())))?;
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .max_redirects(0)
        .timeout_connect(Some(Duration::from_secs(15)))
        .timeout_recv_response(Some(Duration::from_secs(30)))
        .timeout_recv_body(Some(Duration::from_secs(600)))
        .build()
        .into();
    for (name, md5) in missing {
        fetch(&agent, source, name, md5, folder).map_err(|reason| offline(source, files, folder, &reason))?;
    }
    Ok(())
}

fn is_whole(path: &Path, md5: &str) -> bool {
    let found = || copy(open(path)?, &mut io::sink(), &ProgressBar::hidden());
    found().is_ok_and(|found| found == md5)
}

/// Opens a regular file; opening a pipe could wait forever.
fn open(path: &Path) -> io::Result<fs::File> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    fs::File::open(path)
}

/// Fetches a file, which takes its place only once its md5 is right: a part of a file is never taken for a whole one,
/// also with two programs fetching at once.
fn fetch(agent: &ureq::Agent, source: &str, name: &str, md5: &str, folder: &Path) -> Result<(), String> {
    let url = format!("{source}/{name}");
    let response = agent.get(&url).call().map_err(|e| format!("{url}: {e}"))?;
    if response.status() != 200 {
        let to = response.headers().get("location").map(|to| format!(", a redirect to {to:?}, which is not followed"));
        return Err(format!("{url}: the status is {}{}", response.status(), to.unwrap_or_default()));
    }
    let body = response.into_body();
    if let Some(length) = body.content_length().filter(|&length| length > MOST) {
        return Err(format!("{url}: {length} bytes, and a file of this data set has at most {MOST}"));
    }
    let bar = progress::bytes(name, body.content_length());
    let result = write_atomically(folder.join(name), |file| {
        let found = copy(body.into_reader(), file, &bar)?;
        if found == md5 {
            return Ok(());
        }
        Err(io::Error::other(format!("md5 is {found}, not {md5}: the download is damaged, or another file")))
    });
    bar.finish_and_clear();
    result.map_err(|error| format!("{url}: {error}"))
}

/// Copies a stream of at most [`MOST`] bytes into a file and returns its md5.
fn copy(mut from: impl Read, file: &mut dyn Write, bar: &ProgressBar) -> io::Result<String> {
    let mut md5 = md5::Context::new();
    let mut chunk = vec![0; 64 << 10];
    let mut left = MOST;
    loop {
        let n = from.read(&mut chunk)?;
        if n == 0 {
            break;
        }
        left = left
            .checked_sub(n as u64)
            .ok_or_else(|| io::Error::other(format!("more than {MOST} bytes, which no file of this data set has")))?;
        md5.consume(&chunk[..n]);
        file.write_all(&chunk[..n])?;
        bar.inc(n as u64);
    }
    Ok(format!("{:x}", md5.finalize()))
}

fn offline(source: &str, files: &[(&str, &str)], folder: &Path, reason: &str) -> Failure {
    let mut message = format!(
        "cannot download Fashion-MNIST: {reason}\nWithout a network, fetch these from {source} on another machine and \
         put them into {}:",
        folder.display()
    );
    for (name, md5) in files {
        message.push_str(&format!("\n  {name}  (md5 {md5})"));
    }
    Failure::Run(message)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::sync::OnceLock;
    use std::thread;

    use super::*;

    const HELLO: (&str, &str) = ("hello.gz", "5d41402abc4b2a76b9719d911017c592"); // md5 of "hello"

    /// Answers this many requests with `hello`, on a free port.
    fn server(requests: usize) -> (String, thread::JoinHandle<()>) {
        answering(requests, |stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello").unwrap();
        })
    }

    /// Answers this many requests, on a free port.
    fn answering(requests: usize, answer: fn(&mut TcpStream)) -> (String, thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let source = format!("http://{}", listener.local_addr().unwrap());
        let thread = thread::spawn(move || {
            for _ in 0..requests {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).unwrap();
                answer(&mut stream);
            }
        });
        (source, thread)
    }

    /// The error of one request that is answered so; nothing may be left in the folder.
    fn refused(answer: fn(&mut TcpStream)) -> String {
        let dir = tempfile::tempdir().unwrap();
        let (source, thread) = answering(1, answer);
        let Failure::Run(message) = fetch_all(&source, &[HELLO], dir.path()).unwrap_err() else { panic!("not a run") };
        thread.join().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        message
    }

    #[test]
    fn a_redirect_is_not_followed() {
        static OTHER: OnceLock<TcpListener> = OnceLock::new();
        let other = OTHER.get_or_init(|| TcpListener::bind("127.0.0.1:0").unwrap());
        other.set_nonblocking(true).unwrap();
        let message = refused(|stream| {
            let other = OTHER.get().unwrap().local_addr().unwrap();
            let head = format!("HTTP/1.1 302 Found\r\nlocation: http://{other}/hello.gz\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
        });
        assert!(message.contains("302") && message.contains("which is not followed"), "{message}");
        assert!(other.accept().is_err(), "the other host was asked");
        let message = refused(|stream| {
            stream.write_all(b"HTTP/1.1 301 Moved\r\nlocation: https://[::1]/x\r\ncontent-length: 0\r\n\r\n").unwrap();
        });
        assert!(message.contains("https://[::1]/x"), "{message}");
    }

    #[test]
    fn a_download_is_bounded() {
        let announced = refused(|stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n").unwrap();
        });
        assert!(announced.contains("99999999999 bytes, and a file of this data set has at most"), "{announced}");
        // Without a length, and endless.
        let endless = refused(|stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n").unwrap();
            let chunk = vec![0; 1 << 20];
            while stream.write_all(&chunk).is_ok() {}
        });
        assert!(endless.contains("more than 67108864 bytes"), "{endless}");
    }

    #[test]
    fn fetches_once_and_mends_a_damaged_file() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("new/folder");
        let (source, thread) = server(2);
        fetch_all(&source, &[HELLO], &folder).unwrap();
        assert_eq!(fs::read(folder.join("hello.gz")).unwrap(), b"hello");
        fetch_all(&source, &[HELLO], &folder).unwrap(); // no request: the server counts only two
        fs::write(folder.join("hello.gz"), b"hellx").unwrap();
        fetch_all(&source, &[HELLO], &folder).unwrap();
        assert_eq!(fs::read(folder.join("hello.gz")).unwrap(), b"hello");
        thread.join().unwrap();
        fetch_all("http://127.0.0.1:1", &[HELLO], &folder).unwrap(); // whole again: no network is needed
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_wrong_md5_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (source, thread) = server(1);
        let error = fetch_all(&source, &[("hello.gz", "00000000000000000000000000000000")], dir.path()).unwrap_err();
        let Failure::Run(message) = error else { panic!("{error:?}") };
        assert!(message.contains("5d41402abc4b2a76b9719d911017c592"), "{message}");
        thread.join().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn offline_says_which_files_to_put_where() {
        let dir = tempfile::tempdir().unwrap();
        let error = fetch_all("http://127.0.0.1:1", &FILES, dir.path()).unwrap_err();
        let Failure::Run(message) = error else { panic!("{error:?}") };
        for (name, md5) in FILES {
            assert!(message.contains(name) && message.contains(md5), "{message}");
        }
        assert!(message.contains(&dir.path().display().to_string()), "{message}");
    }

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
