//! `anygpu run`: models of `data/`, which `data/models.py` makes, with inputs of all kinds.

use std::path::Path;
use std::process::Output;

use anygpu::testing::{adapter, devices};
use anygpu::{Device, Element, Tensor};
use serde_json::{Value, json};

use crate::common::{anygpu, fails, json_lines, stderr, stdout};

/// Runs `anygpu run` with a model of ours in a folder.
fn run(folder: &Path, model: &str, device: &str, args: &[&str]) -> Output {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(model);
    let model = model.to_str().expect("UTF-8");
    let args = [&["run", model, "--device", device], args].concat();
    anygpu(&args).current_dir(folder).output().expect("it starts")
}

fn save<T: Element>(folder: &Path, name: &str, values: Vec<T>, shape: &[usize]) {
    let tensor = Tensor::from_vec(values, shape.to_vec(), Device::cpu()).expect("it fits");
    tensor.save_npy(folder.join(name)).expect("our folder");
}

/// A folder with arrays for `mixed.onnx`.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    save(path, "x.npy", vec![1.0f32, 2.0, 3.0, -1.0, 0.0, 0.5], &[2, 3]);
    save(path, "ids.npy", vec![1i32, 2, 3, -4], &[2, 2]);
    save(path, "halves.npy", vec![1.0f32, 2.0, 2.5, 4.0], &[2, 2]);
    save(path, "wide.npy", vec![0.0f32; 8], &[2, 4]);
    folder
}

const GIVEN: [&str; 6] = ["--input", "x=x.npy", "--input", "ids=ids.npy", "--input", "gain=2"];

/// tanh(x w) · 2 of the arrays of `folder()`.
fn expected() -> Vec<f64> {
    [1.0 + 1.5, 2.0 - 1.5, -1.0 + 0.25, -0.25].iter().map(|v: &f64| v.tanh() * 2.0).collect()
}

fn close(got: &Value, expected: &[f64]) {
    let got: Vec<f64> = got.as_array().expect("a list").iter().map(|v| v.as_f64().expect("a number")).collect();
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).for_each(|(a, b)| assert!((a - b).abs() < 1e-4, "{got:?}, not {expected:?}"));
}

#[test]
fn arrays_and_numbers_go_in_and_arrays_come_out() {
    let folder = folder();
    for device in devices() {
        let files = ["--output", "y=y.npy", "--output", "twice=twice.npy", "--json"];
        let lines = json_lines(&run(folder.path(), "mixed.onnx", device.name(), &[&GIVEN[..], &files].concat()));
        let [y, twice] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!((&y["output"], &y["type"], &y["shape"]), (&json!("y"), &json!("float"), &json!([2, 2])));
        close(&y["first"], &expected());
        let mean = expected().iter().sum::<f64>() / 4.0;
        close(&json!([y["least"], y["mean"], y["largest"]]), &[expected()[2], mean, expected()[0]]);
        assert_eq!((&twice["type"], &twice["first"]), (&json!("int64"), &json!([2.0, 4.0, 6.0, -8.0])));
        let read = |name: &str| Tensor::from_npy(folder.path().join(name), Device::cpu()).expect("the file");
        close(&json!(read("y.npy").to_vec::<f32>().expect("f32")), &expected());
        assert_eq!(read("twice.npy").to_vec::<i64>().expect("i64"), [2, 4, 6, -8], "{device}");
    }
    let table = run(folder.path(), "mixed.onnx", "cpu", &GIVEN);
    for word in ["twice", "int64", "[2, 2]", "2 4 6 -8", "1.97323"] {
        assert!(stdout(&table).contains(word), "'{word}' is missing in {}", stdout(&table));
    }
}

/// Lists take the sizes that others leave open, and single numbers fill the declared shape.
#[test]
fn lists_and_single_numbers_take_the_declared_shape() {
    let folder = folder();
    let first = |args: &[&str]| -> Vec<Value> {
        let args = [args, &["--input", "gain=1", "--json"]].concat();
        json_lines(&run(folder.path(), "mixed.onnx", "cpu", &args)).iter().map(|line| line["shape"].clone()).collect()
    };
    let shapes = |batch: usize| vec![json!([batch, 2]), json!([batch, 2])];
    assert_eq!(first(&["--input", "x=[1,2,3,4,5,6]", "--input", "ids=7"]), shapes(2));
    assert_eq!(first(&["--input", "x=0.5", "--input", "ids=7"]), shapes(1));
    assert_eq!(first(&["--input", "x=0.5", "--input", "ids=7", "--size", "batch=3"]), shapes(3));
    assert_eq!(first(&["--random", "--input", "ids=[1,2,3,4,5,6,7,8]"]), shapes(4));
    assert_eq!(first(&["--random", "--size", "batch=5"]), shapes(5));
}

#[test]
fn what_does_not_fit_is_an_error() {
    let folder = folder();
    let with = |name: &str, value: &str, more: &[&str], status: i32, words: &[&str]| {
        let mut args = vec!["--input".to_owned(), format!("{name}={value}")];
        let others = GIVEN.chunks(2).filter(|given| !given[1].starts_with(&format!("{name}=")));
        args.extend(others.flatten().chain(more).map(|word| (*word).to_owned()));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        fails(&run(folder.path(), "mixed.onnx", "cpu", &args), status, words);
    };
    with("ids", "halves.npy", &[], 2, &["'ids': int64 [batch, 2]", "halves.npy has 2.5", "whole numbers"]);
    with("ids", "1.5", &[], 2, &["has 1.5", "whole numbers"]);
    with("ids", "[1,2,3]", &[], 2, &["3 numbers do not fit", "[2, 2]"]);
    with("ids", "[1,2]", &[], 2, &["2 numbers do not fit"]);
    with("ids", "none.npy", &[], 1, &["none.npy"]);
    with("ids", "ids.txt", &[], 2, &["ids.txt", "a list of numbers such as [1,2,3]"]);
    with("x", "wide.npy", &[], 2, &["'x': float [batch, 3]", "[2, 4]"]);
    with("x", "[1,2,3]", &[], 2, &["'x'", "3 numbers do not fit the shape [2, 3]"]);
    with("gain", "1", &["--size", "batch=3"], 2, &["[2, 3]", "batch is 3"]);
    with("gain", "1", &["--size", "height=3"], 2, &["--size height", "the open dimensions are: batch"]);
    with("gain", "1", &["--input", "gain=2"], 2, &["given twice"]);
    with("gain", "1", &["--input", "z=2"], 2, &["--input z=2", "'x': float", "'ids': int64", "'gain': float"]);
    with("gain", "1", &["--input", "x.npy"], 2, &["--input x.npy", "'gain': float"]);
    with("gain", "1", &["--output", "z=z.npy"], 2, &["--output z=z.npy", "'y': float", "'twice': int64"]);
    with("gain", "1", &["--output", "y=y.txt"], 2, &["ends in .npy"]);
    with("gain", "1", &["--mean", "0.5"], 2, &["--mean is for images"]);
    with("gain", "1", &["--tolerance", "1"], 2, &["--compare"]);
    fails(
        &run(folder.path(), "mixed.onnx", "cpu", &["--input", "ids=1"]),
        2,
        &["no --input for 'x', 'gain'", "'x': float [batch, 3]", "'ids': int64 [batch, 2]", "--random"],
    );
    fails(&run(folder.path(), "mixed.onnx", "cpu,cpu/1", &["--random"]), 2, &["one device"]);
    fails(&run(folder.path(), "none.onnx", "cpu", &["--random"]), 1, &["none.onnx"]);
}

#[test]
fn a_model_is_described() {
    let text = run(Path::new("."), "mixed.onnx", "cpu", &["--describe"]);
    for word in ["input 'x': float [batch, 3]", "output 'twice': int64 [batch, 2]", "6 parameters", "Tanh 1"] {
        assert!(stdout(&text).contains(word), "'{word}' is missing in {}{}", stdout(&text), stderr(&text));
    }
    let lines = json_lines(&run(Path::new("."), "pixels.onnx", "cpu", &["--describe", "--json"]));
    assert_eq!(lines[0]["inputs"], json!([{ "name": "x", "type": "uint8", "shape": ["n", "h", null, 3] }]));
    fails(&run(Path::new("."), "mixed.onnx", "cpu", &["--describe", "--random"]), 2, &["--describe", "--random"]);
}

/// Times and comparisons on every device. Random numbers are those of the seed, on all of them.
#[test]
fn devices_are_measured_and_compared() {
    let folder = folder();
    for device in devices() {
        let args = ["--random", "--size", "batch=6", "--bench", "3", "--profile", "--compare", "--json"];
        let lines = json_lines(&run(folder.path(), "mixed.onnx", device.name(), &args));
        let [y, _, bench, profile, compared, whole] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!(y["shape"], json!([6, 2]));
        let bench = &bench["bench"];
        let times = ["least_seconds", "median_seconds", "first_seconds"].map(|key| bench[key].as_f64().expect(key));
        assert!(times[0] > 0.0 && times[0] <= times[1], "{bench}");
        assert_eq!((&bench["runs"], &bench["rate"]["unit"]), (&json!(3), &json!("rows/s")));
        let rate = bench["rate"]["value"].as_f64().expect("a rate");
        assert!((rate * times[1] / 6.0 - 1.0).abs() < 1e-6, "{bench}");
        let ops = profile["profile"].as_array().expect("ops");
        assert!(ops.iter().any(|op| op["op"].as_str().is_some_and(|op| op.contains("matmul"))), "{device}: {ops:?}");
        assert!(compared["relative"].as_f64().expect("a share") < 1e-3, "{compared}");
        assert_eq!((&whole["compare"], &whole["absolute"]), (&json!("twice"), &json!(0.0)));
    }
    let seeds = |seed: &str| {
        let args = ["--random", "--seed", seed, "--json"];
        json_lines(&run(folder.path(), "mixed.onnx", "cpu", &args))[0]["first"].clone()
    };
    assert_eq!(seeds("1"), seeds("1"));
    assert_ne!(seeds("1"), seeds("2"));
    let Some(device) = adapter() else { return };
    // Of 4000 hyperbolic tangents, one at least is rounded differently.
    let args = ["--random", "--size", "batch=2000", "--compare", "--tolerance", "1e-20"];
    let result = run(folder.path(), "mixed.onnx", device.name(), &args);
    assert_eq!(result.status.code(), Some(1), "{}", stdout(&result));
    assert!(stderr(&result).contains("differ from cpu by more than") && stderr(&result).contains("'y' by"));
}

/// Writes an image whose channels are red = 1, green = 128/255 and blue = 0.
fn save_picture(path: &Path, height: usize, width: usize) {
    let plane = height * width;
    let values = [vec![1.0f32; plane], vec![128.0 / 255.0; plane], vec![0.0; plane]].concat();
    let image = Tensor::from_vec(values, [3, height, width], Device::cpu()).expect("it fits");
    image.to_image().expect("an image").save(path).expect("our folder");
}

#[test]
fn pictures_are_resized_and_normalised() {
    let folder = tempfile::tempdir().expect("a folder");
    save_picture(&folder.path().join("photo.png"), 9, 5);
    std::fs::write(folder.path().join("damaged.png"), b"no picture").expect("our folder");
    std::fs::write(folder.path().join("names.txt"), "red\ngreen\nblue\n").expect("our folder");
    let green = 128.0 / 255.0;
    let scores = |model: &str, args: &[&str]| {
        let args = [args, &["--json"]].concat();
        json_lines(&run(folder.path(), model, "cpu", &args))
    };
    let photo = ["--input", "photo.png"];
    let planes = |args: &[&str]| scores("planes.onnx", &[&photo[..], args].concat())[0]["first"].clone();
    close(&planes(&[]), &[1.0, green, 0.0]);
    close(&planes(&["--bgr"]), &[0.0, green, 1.0]);
    close(&planes(&["--mean", "0.5", "--std", "0.25"]), &[2.0, (green - 0.5) / 0.25, -2.0]);
    close(&planes(&["--mean", "1,0,0", "--std", "1,2,1", "--bgr"]), &[0.0, green / 2.0, 0.0]);
    close(&planes(&["--scale", "255"]), &[255.0, 128.0, 0.0]);
    let lines = scores("pixels.onnx", &photo);
    close(&lines[0]["first"], &[255.0, 128.0, 0.0]);
    assert_eq!(lines[1]["first"], json!([1.0, 9.0, 5.0, 3.0]));
    let lines = scores("pixels.onnx", &[&photo[..], &["--size", "height=4", "--size", "width=8"]].concat());
    assert_eq!(lines[1]["first"], json!([1.0, 4.0, 8.0, 3.0]));
    let args = [&photo[..], &["--top", "2", "--labels", "names.txt"]].concat();
    let result = run(folder.path(), "planes.onnx", "cpu", &args);
    let shown = stdout(&result);
    assert!(shown.contains("scores[0]: red 1") && shown.contains(", green 0.50196"), "{shown}{}", stderr(&result));
    let top = &scores("planes.onnx", &args)[0]["top"][0];
    assert_eq!((&top[1]["class"], &top[1]["label"]), (&json!(1), &json!("green")));

    let refused = |model: &str, args: &[&str], status: i32, words: &[&str]| {
        fails(&run(folder.path(), model, "cpu", args), status, words);
    };
    refused("planes.onnx", &["--input", "damaged.png"], 1, &["damaged.png"]);
    refused("planes.onnx", &[&photo[..], &["--mean", "1,2"]].concat(), 2, &["--mean has 2 numbers"]);
    refused("planes.onnx", &[&photo[..], &["--size", "height=5"]].concat(), 2, &["has the height 4"]);
    refused("planes.onnx", &[&photo[..], &["--layout", "nhwc"]].concat(), 2, &["6 channels", "--layout"]);
    refused("pixels.onnx", &[&photo[..], &["--mean", "0.5"]].concat(), 2, &["whole numbers from 0 to 255"]);
    refused("mixed.onnx", &["--random", "--input", "x=photo.png"], 2, &["takes no image"]);
    let result = run(folder.path(), "mixed.onnx", "cpu", &["--random", "--top", "1", "--labels", "names.txt"]);
    assert_eq!(result.status.code(), Some(1));
    assert!(stderr(&result).contains("3 lines, and the output 2 classes"), "{}", stderr(&result));
}

/// The next token of `decoder.onnx` is the sum of the tokens, the mask and the last position, modulo 7: so caches, masks and positions
/// are those of all tokens before.
#[test]
fn a_decoder_continues_a_prompt() {
    let (folder, prompt) = (folder(), ["--input", "input_ids=[1,2,3]"]);
    let mut text: Vec<usize> = vec![1, 2, 3];
    for _ in 0..6 {
        text.push((text.iter().sum::<usize>() + text.len() + text.len() - 1) % 7);
    }
    let with = |device: &str, args: &[&str]| run(folder.path(), "decoder.onnx", device, &[&prompt[..], args].concat());
    for device in devices() {
        let lines = json_lines(&with(device.name(), &["--generate", "6", "--bench", "2", "--profile", "--json"]));
        let [generated, profile] = &lines[..] else { panic!("{lines:?}") };
        let generated = &generated["generate"];
        assert_eq!((&generated["tokens"], &generated["prompt_tokens"]), (&json!(text[3..]), &json!(3)), "{device}");
        for key in ["prompt_seconds", "tokens_per_second", "weights_bytes", "peak_bytes"] {
            assert!(generated[key].as_f64().is_some_and(|number| number > 0.0), "{key}: {generated}");
        }
        assert!(profile["profile"].as_array().is_some_and(|lines| !lines.is_empty()), "{profile}");
    }
    let table = with("cpu", &["--generate", "1"]);
    for word in [format!("tokens: {}", text[3]), "prompt of 3 tokens".into(), "weights".into()] {
        assert!(stdout(&table).contains(&word), "'{word}' is missing in {}", stdout(&table));
    }
    fails(&with("cpu", &["--generate", "0"]), 2, &["--generate"]);
    fails(&with("cpu", &["--generate", "2", "--compare"]), 2, &["--generate", "--compare"]);
    let mask = ["--input", "attention_mask=1", "--generate", "2"];
    fails(&with("cpu", &mask), 2, &["attention_mask", "leave it out"]);
    let alone = |args: &[&str]| run(folder.path(), "decoder.onnx", "cpu", args);
    fails(&alone(&["--generate", "2"]), 2, &["no --input for 'input_ids'"]);
    fails(&alone(&["--generate", "2", "--input", "input_ids=[]"]), 2, &["input_ids"]);
    fails(&run(folder.path(), "mixed.onnx", "cpu", &["--generate", "2"]), 2, &["no input 'input_ids'", "'x': float"]);
}
