//! `anygpu train --kernels`.

use crate::common::{fails, json_lines, output, stderr};

#[test]
fn a_second_run_compiles_the_kernels_of_the_first() {
    if !anygpu::testing::devices().iter().any(|device| device.name() == "soft:0") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("kernels.txt");
    let path = path.to_str().expect("a path in UTF-8");
    let train = ["train", "--devices", "soft:0", "--epochs", "1", "--limit", "128", "--json", "--kernels", path];
    let run = || {
        let result = output(&train);
        assert!(result.status.success(), "{}", stderr(&result));
        let losses = json_lines(&result).last().expect("a summary")["step_losses"].clone();
        let text = std::fs::read_to_string(path).expect("the list");
        (losses, text.parse::<anygpu::KernelList>().expect("a list"))
    };
    let (first, second) = (run(), run());
    assert_eq!(first.0, second.0);
    assert!(first.1.len() > 10);
    let mut both = second.1.clone();
    both.merge(&first.1);
    assert_eq!(both, second.1, "the second list has all kernels of the first");
}

#[test]
fn a_file_that_is_no_list_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("other.txt");
    std::fs::write(&path, "something else\n").expect("a file");
    let path = path.to_str().expect("a path in UTF-8");
    fails(&output(&["train", "--devices", "cpu", "--kernels", path]), 1, &["--kernels", "# kernels of anygpu"]);
    fails(&output(&["train", "--devices", "cpu", "--kernels", "list.json"]), 2, &["--kernels list.json", ".txt"]);
}
