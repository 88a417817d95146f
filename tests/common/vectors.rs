//! ONNX's test vectors, from `tests/data/onnx-node*.tar.gz`, which `scripts/onnx_vectors.py` makes.

use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::GzDecoder;

/// The files of one test, by name: `model.onnx`, `test_data_set_0/input_0.pb`, …
pub type Files = BTreeMap<String, Vec<u8>>;

/// The files of all tests, by the name of the test.
pub fn tests() -> BTreeMap<String, Files> {
    let archives: [&[u8]; 2] =
        [include_bytes!("../data/onnx-node.tar.gz"), include_bytes!("../data/onnx-node-newer.tar.gz")];
    let mut all: BTreeMap<String, Files> = BTreeMap::new();
    for archive in archives {
        for entry in tar::Archive::new(GzDecoder::new(archive)).entries().expect("an archive") {
            let mut entry = entry.expect("a file of the archive");
            let path = entry.path().expect("its name").to_string_lossy().into_owned();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).expect("its bytes");
            let (test, file) = path.split_once('/').expect("a folder for each test");
            all.entry(test.to_owned()).or_default().insert(file.to_owned(), bytes);
        }
    }
    all
}
