//! Downloads Fashion-MNIST: four files, once, into the user's cache directory, verified by their MD5 sums.
//!
//! Plain HTTP, as in torchvision: the checksum, not the transport, ensures that a file is the right one. No redirect is
//! followed, and no more than [`MOST`] bytes are read. So a server can neither choose another address, nor fill the
//! disk.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::fashion::SOURCE;
use super::limits::damaged;
use crate::error::Result;
use crate::util::atomic::write_atomically;
use crate::util::cache_dir::cache_dir;
use crate::util::regular_file;

/// The most bytes of a file; the largest of [`FILES`] has 26 421 880.
const MOST: u64 = 64 << 20;

/// File names and md5 sums.
const FILES: [(&str, &str); 4] = [
    ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
    ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
    ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
];

/// Called with the progress: the name of a file, the bytes of it that have arrived, and its length if that is known.
type Progress<'a> = dyn FnMut(&str, u64, Option<u64>) + 'a;

/// Returns the folder of Fashion-MNIST in the user's cache directory.
///
/// Downloads files that are missing there or damaged. [`fashion_mnist`](super::fashion_mnist) reads the folder.
///
/// The folder is `anygpu/fashion-mnist` in `XDG_CACHE_HOME`, or else in the system's cache folder (`~/.cache` on
/// Linux).
///
/// # Errors
/// [`Error::Data`](crate::Error::Data) if a file cannot be downloaded. The message lists the four files and the folder
/// to put them into.
///
/// ```no_run
/// use anygpu::data;
///
/// let (train, test) = data::fashion_mnist(data::download_fashion_mnist()?)?.loaders(256, 0)?;
/// assert_eq!((train.len(), test.len()), (60_000, 10_000));
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn download_fashion_mnist() -> Result<PathBuf> {
    download_fashion_mnist_with(|_, _, _| ())
}

/// Does the same as [`download_fashion_mnist`], and calls `progress` with the name of the current file, the number of
/// its bytes that have arrived, and its length if that is known.
///
/// # Errors
/// The errors of [`download_fashion_mnist`].
pub fn download_fashion_mnist_with(mut progress: impl FnMut(&str, u64, Option<u64>)) -> Result<PathBuf> {
    let folder = cache_dir(|name| std::env::var_os(name))
        .ok_or_else(|| {
            damaged(
                "fashion-mnist",
                "no cache directory, since HOME and XDG_CACHE_HOME are not set: set one of them, or name the folder of the \
                 four files (data::fashion_mnist, --data DIR)",
            )
        })?
        .join("fashion-mnist");
    fetch_all(SOURCE, &FILES, &folder, &mut progress)?;
    Ok(folder)
}

fn fetch_all(source: &str, files: &[(&str, &str)], folder: &Path, progress: &mut Progress) -> Result<()> {
    let missing: Vec<_> = files.iter().filter(|(name, md5)| !is_whole(&folder.join(name), md5)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let cannot = |detail: String| damaged(&folder.display().to_string(), detail);
    fs::create_dir_all(folder).map_err(|e| cannot(format!("this folder cannot be created: {e}")))?;
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .max_redirects(0)
        .timeout_connect(Some(Duration::from_secs(15)))
        .timeout_recv_response(Some(Duration::from_secs(30)))
        .timeout_recv_body(Some(Duration::from_secs(600)))
        .build()
        .into();
    for (name, md5) in missing {
        // A file that a link points to must not be replaced.
        let path = folder.join(name);
        if path.is_symlink() {
            let what = "it is a link to a file that is missing or is another one: remove the link";
            return Err(damaged(&path.display().to_string(), what));
        }
        fetch(&agent, source, name, md5, folder, progress).map_err(|reason| cannot(offline(source, files, &reason)))?;
    }
    Ok(())
}

fn is_whole(path: &Path, md5: &str) -> bool {
    let found = || copy(regular_file::open(path)?.0, &mut io::sink(), &mut |_| ());
    found().is_ok_and(|found| found == md5)
}

/// Downloads a file. It gets its final name only after its MD5 sum is verified. So a partial file is never used as a
/// whole one, even if two programs download at once.
fn fetch(
    agent: &ureq::Agent,
    source: &str,
    name: &str,
    md5: &str,
    folder: &Path,
    progress: &mut Progress,
) -> Result<(), String> {
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
    let length = body.content_length();
    let result = write_atomically(folder.join(name), |file| {
        let found = copy(body.into_reader(), file, &mut |arrived| progress(name, arrived, length))?;
        if found == md5 {
            return Ok(());
        }
        Err(io::Error::other(format!("md5 is {found}, not {md5}: the download is damaged, or another file")))
    });
    result.map_err(|error| format!("{url}: {error}"))
}

/// Copies a stream of at most [`MOST`] bytes into a file and returns its MD5 sum. `progress` is called with the number
/// of bytes that have arrived.
fn copy(mut from: impl Read, file: &mut dyn Write, progress: &mut dyn FnMut(u64)) -> io::Result<String> {
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
        progress(MOST - left);
    }
    Ok(format!("{:x}", md5.finalize()))
}

fn offline(source: &str, files: &[(&str, &str)], reason: &str) -> String {
    let mut message = format!(
        "cannot download Fashion-MNIST: {reason}\nWithout a network, fetch these from {source} on another machine and put \
         them into this folder:"
    );
    for (name, md5) in files {
        message.push_str(&format!("\n  {name}  (md5 {md5})"));
    }
    message
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::sync::OnceLock;
    use std::thread;

    use super::*;

    const HELLO: (&str, &str) = ("hello.gz", "5d41402abc4b2a76b9719d911017c592"); // md5 of "hello"

    fn fetched(source: &str, folder: &Path) -> Result<()> {
        fetch_all(source, &[HELLO], folder, &mut |_, _, _| ())
    }

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

    #[cfg(unix)]
    #[test]
    fn a_file_behind_a_link_is_not_replaced() {
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let document = elsewhere.path().join("letter");
        fs::write(&document, "Dear").unwrap();
        std::os::unix::fs::symlink(&document, dir.path().join(HELLO.0)).unwrap();
        let message = fetched("http://127.0.0.1:1", dir.path()).unwrap_err().to_string();
        assert!(message.contains("a link"), "{message}");
        assert_eq!(fs::read_to_string(&document).unwrap(), "Dear");
        // A link to the right file is as good as the file.
        fs::write(&document, "hello").unwrap();
        fetched("http://127.0.0.1:1", dir.path()).unwrap();
    }

    /// The error of one request that is answered so; nothing may be left in the folder.
    fn refused(answer: fn(&mut TcpStream)) -> String {
        let dir = tempfile::tempdir().unwrap();
        let (source, thread) = answering(1, answer);
        let message = fetched(&source, dir.path()).unwrap_err().to_string();
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
        let mut told = Vec::new();
        let mut tell = |name: &str, arrived: u64, length: Option<u64>| told.push((name.to_string(), arrived, length));
        fetch_all(&source, &[HELLO], &folder, &mut tell).unwrap();
        assert_eq!(told, [("hello.gz".to_string(), 5, Some(5))]);
        assert_eq!(fs::read(folder.join("hello.gz")).unwrap(), b"hello");
        fetched(&source, &folder).unwrap(); // no request: the server counts only two
        fs::write(folder.join("hello.gz"), b"hellx").unwrap();
        fetched(&source, &folder).unwrap();
        assert_eq!(fs::read(folder.join("hello.gz")).unwrap(), b"hello");
        thread.join().unwrap();
        fetched("http://127.0.0.1:1", &folder).unwrap(); // whole again: no network is needed
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_wrong_md5_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (source, thread) = server(1);
        let wrong = [("hello.gz", "00000000000000000000000000000000")];
        let message = fetch_all(&source, &wrong, dir.path(), &mut |_, _, _| ()).unwrap_err().to_string();
        assert!(message.contains("5d41402abc4b2a76b9719d911017c592"), "{message}");
        thread.join().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn offline_says_which_files_to_put_where() {
        let dir = tempfile::tempdir().unwrap();
        let error = fetch_all("http://127.0.0.1:1", &FILES, dir.path(), &mut |_, _, _| ()).unwrap_err();
        let message = error.to_string();
        for (name, md5) in FILES {
            assert!(message.contains(name) && message.contains(md5), "{message}");
        }
        assert!(message.contains(&dir.path().display().to_string()), "{message}");
    }
}
