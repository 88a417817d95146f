//! From training to use: `anygpu train --save` and `anygpu predict`, and what they write and refuse on the way.

use std::fs;
use std::path::{Path, PathBuf};

use anygpu::data::{Array, Dataset, mnist_5k};
use anygpu::nn::Module;
use anygpu::{Device, Tensor, checkpoint, nn};

use crate::common::{fails, json_lines, output, stderr, stdout};

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Writes an image `[C, H, W]` of f32.
fn save_png(path: &Path, image: &Array) {
    let tensor = Tensor::from_slice(image.as_slice::<f32>().expect("f32"), image.shape(), None).expect("it fits");
    tensor.to_image().expect("an image").save(path).expect("our folder");
}

/// The first test digits, one file each, and their classes.
fn digits(dir: &Path, count: usize) -> (Vec<PathBuf>, Vec<u32>) {
    let test = mnist_5k().expect("the digits").test;
    let digit = |i: usize| {
        let sample = test.get(i).expect("a digit");
        let path = dir.join(format!("{i}.png"));
        save_png(&path, &sample[0]);
        (path, sample[1].as_slice::<u32>().expect("a label")[0])
    };
    (0..count).map(digit).unzip()
}

/// A rate so small that no weight changes: the figures are those of the weights.
#[test]
fn training_begins_with_given_weights() {
    let dir = tempfile::tempdir().expect("a folder");
    let [net, run, wrong] =
        ["net.safetensors", "run.safetensors", "wrong.safetensors"].map(|name| dir.path().join(name));
    let train = |epochs: &str, more: &[&str]| {
        output(&[&["train", "--devices", "cpu", "--limit", "128", "--json", "--epochs", epochs], more].concat())
    };
    let first = json_lines(&train("1", &["--save", text(&net), "--checkpoint", text(&run)]));
    let kept = ["--lr", "1e-30", "--weights"];
    for weights in [&net, &run] {
        let again = json_lines(&train("1", &[&kept[..], &[text(weights)]].concat()));
        for key in ["test_loss", "test_acc"] {
            assert_eq!(again[0][key], first[0][key], "{key} of {}", weights.display());
        }
    }
    // PyTorch's LeNet; an untrained net is right for every tenth digit.
    let pytorch = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/lenet.pt");
    let trained = json_lines(&train("1", &[&kept[..], &[text(&pytorch)]].concat()));
    let accuracy = trained[0]["test_acc"].as_f64().expect("a number");
    assert!(accuracy > 0.5, "{accuracy}");
    // The weights of a run that goes on are those of its checkpoint, and the file is not needed again.
    fs::copy(&net, &wrong).expect("our folder");
    let copied = dir.path().join("begun.safetensors");
    let begun = ["--checkpoint", text(&copied), "--resume", "--weights", text(&wrong)];
    let expected = json_lines(&train("2", &["--weights", text(&net)]));
    json_lines(&train("1", &begun));
    fs::remove_file(&wrong).expect("our file");
    assert_eq!(json_lines(&train("2", &begun))[0]["test_loss"], expected[1]["test_loss"]);
    fails(&train("2", &begun[..3]), 2, &["wrong.safetensors, but here no --weights"]);

    fails(&train("1", &["--weights", text(&wrong)]), 1, &["--weights", "wrong.safetensors"]);
    let state = checkpoint::load(&net, Device::cpu()).expect("a net");
    let other = |name: &str, tensor: Option<Tensor>| {
        let mut state = state.clone();
        match tensor {
            Some(tensor) => drop(state.insert(name, tensor)),
            None => drop(state.remove(name)),
        }
        checkpoint::save(&state, &wrong).expect("our folder");
        train("1", &["--weights", text(&wrong)])
    };
    let zeros = |shape: &[usize]| Some(Tensor::zeros(shape, None).expect("room"));
    let width = state.get("fc2.weight").expect("the last layer").shape()[1];
    fails(&other("fc2.weight", zeros(&[5, width])), 1, &["wrong.safetensors", "of another shape", "fc2.weight: [10, "]);
    fails(&other("fc2.weight", None), 1, &["missing in the state (1): fc2.weight"]);
    let more = other("fc3.weight", zeros(&[2]));
    fails(&more, 1, &["unexpected in the state (1): fc3.weight"]);
    assert!(!stderr(&more).contains("epoch"), "{}", stderr(&more));
}

#[test]
fn a_trained_lenet_reads_digits() {
    let dir = tempfile::tempdir().expect("a folder");
    let [net, plot, log] = ["net.safetensors", "curves.svg", "log"].map(|name| dir.path().join(name));
    let exported = dir.path().join("net.onnx");
    let args = ["train", "--devices", "cpu", "--epochs", "1", "--save", text(&net), "--plot", text(&plot), "--log-dir"];
    let result = output(&[&args[..], &[text(&log), "--export", text(&exported)]].concat());
    assert!(result.status.success(), "{}", stderr(&result));
    let curves = fs::read_to_string(&plot).expect("the plot");
    assert!(curves.starts_with("<svg") && curves.contains("lenet on mnist-5k"));
    let events: Vec<_> = fs::read_dir(&log).expect("the log").map(|file| file.expect("a file").path()).collect();
    assert_eq!(events.len(), 1);
    let bytes = fs::read(&events[0]).expect("the events");
    let count = |tag: &str| bytes.windows(tag.len()).filter(|part| *part == tag.as_bytes()).count();
    assert_eq!((count("step/loss"), count("step/lr"), count("loss/train"), count("accuracy/test")), (63, 63, 1, 1));

    let (files, labels) = digits(dir.path(), 20);
    let paths: Vec<&str> = files.iter().map(|path| text(path)).collect();
    let lines = json_lines(&output(&[&["predict", text(&net), "--devices", "cpu", "--json"], &paths[..]].concat()));
    let right =
        lines.iter().zip(&labels).filter(|(line, label)| line["classes"][0]["class"] == label.to_string()).count();
    assert!(right >= 17, "{right} of 20: {lines:?}");
    assert_eq!((&lines[3]["file"], lines[3]["classes"].as_array().map(Vec::len)), (&paths[3].into(), Some(5)));
    // The exported net scales the images itself.
    let scores = dir.path().join("scores.npy");
    let given = format!("image={}", paths[3]);
    let result = output(&["run", text(&exported), "--input", &given, "--output", &format!("scores={}", text(&scores))]);
    assert!(result.status.success(), "{}", stderr(&result));
    let scores = Tensor::from_npy(&scores, "cpu").expect("scores");
    let best = scores.argmax(-1).and_then(|best| best.item::<u32>()).expect("a class");
    assert_eq!(lines[3]["classes"][0]["class"], best.to_string());

    let sum = json_lines(&output(&["predict", text(&net), paths[0], "--devices", "cpu", "--json", "--top", "99"]))[0]
        ["classes"]
        .as_array()
        .expect("all ten")
        .iter()
        .map(|guess| guess["probability"].as_f64().expect("a number"))
        .sum::<f64>();
    assert!((sum - 1.0).abs() < 1e-5, "{sum}");
    let named = output(&[
        "predict",
        text(&net),
        paths[0],
        "--devices",
        "cpu",
        "--classes",
        "a,b,c,d,e,f,g,h,i,j",
        "--top",
        "1",
    ]);
    let line = stdout(&named);
    let letter = char::from(b'a' + labels[0] as u8);
    assert!(line.starts_with(&format!("{}: {letter} ", paths[0])) && line.lines().count() == 1, "{line}");
}

/// Ten dark and ten bright images in folders.
fn folders(dir: &Path) {
    for (class, level) in [("bright", 0.8), ("dark", 0.1)] {
        fs::create_dir_all(dir.join(class)).expect("our folder");
        for i in 0..10 {
            let pixels = (0..3 * 20 * 24).map(|p| level + (p * (i + 1) % 7) as f32 / 70.0).collect();
            save_png(&dir.join(class).join(format!("{i}.png")), &Array::new(pixels, [3, 20, 24]).expect("it fits"));
        }
    }
}

#[test]
fn a_resnet_learns_a_folder_of_images_and_knows_its_classes() {
    let dir = tempfile::tempdir().expect("a folder");
    let (images, net) = (dir.path().join("images"), dir.path().join("net.safetensors"));
    folders(&images);
    let args =
        ["train", "resnet18", "--devices", "cpu", "--resize", "32", "--epochs", "3", "--batch-size", "4", "--json"];
    let lines =
        json_lines(&output(&[&args[..], &["--data", text(&images), "--save", text(&net), "--lr", "0.003"]].concat()));
    let summary = lines.last().expect("a summary");
    assert_eq!((lines.len(), &summary["model"]), (4, &"resnet18".into()));
    assert!(summary["memory_peak"][0].as_u64().is_some_and(|bytes| bytes > 40 << 20), "{summary}");
    let loss = |epoch: usize| lines[epoch]["train_loss"].as_f64().expect("a number");
    assert!(loss(1).min(loss(2)) < loss(0), "{lines:?}");

    let bright = images.join("bright/3.png");
    let line = &json_lines(&output(&["predict", text(&net), text(&bright), "--devices", "cpu", "--json"]))[0];
    assert_eq!(line["classes"].as_array().map(Vec::len), Some(2));
    assert_eq!(line["classes"][0]["class"], "bright", "{line}");
    fs::write(images.join("dark/5.png"), "no image").expect("our file");
    let broken = output(&[&args[..], &["--data", text(&images)]].concat());
    assert_eq!(broken.status.code(), Some(1));
    assert!(stderr(&broken).contains("5.png"), "{}", stderr(&broken));
    assert!(stderr(&broken).contains("take it out of the folder"), "{}", stderr(&broken));
    let other = output(&["predict", text(&net), text(&bright), "--devices", "cpu", "--model", "lenet"]);
    fails(&other, 2, &["--model lenet", "net.safetensors says that it is a resnet18", "leave --model out"]);
    let same = output(&["predict", text(&net), text(&bright), "--devices", "cpu", "--model", "resnet18"]);
    assert!(same.status.success(), "{}", stderr(&same));
}

#[test]
fn files_without_a_card_need_to_be_told_what_they_are() {
    let dir = tempfile::tempdir().expect("a folder");
    let (net, image) = (dir.path().join("net.safetensors"), dir.path().join("x.png"));
    let lenet = nn::models::lenet().expect("a net");
    let names = lenet.state_dict().add_prefix("_orig_mod.").add_prefix("module."); // of torch.compile and DataParallel
    checkpoint::save(&names, &net).expect("our folder");
    save_png(&image, &Array::new(vec![0.5f32; 40 * 30], [1, 40, 30]).expect("it fits"));
    let predict = |more: &[&str]| output(&[&["predict", text(&net), text(&image), "--devices", "cpu"], more].concat());
    fails(&predict(&[]), 2, &["does not say what net it is", "--model lenet"]);
    let told = predict(&["--model", "lenet", "--mean", "0.13", "--std", "0.31", "--invert"]);
    assert!(told.status.success(), "{}", stderr(&told));
    assert!(!stderr(&told).contains("normalised"), "{}", stderr(&told));
    let guessed = predict(&["--model", "lenet", "--mean", "0.13"]);
    assert!(guessed.status.success() && stderr(&guessed).contains("--std"), "{}", stderr(&guessed));
    fails(&predict(&["--model", "resnet18"]), 1, &["net.safetensors", "resnet18", "fc.weight"]);
    fails(&predict(&["--model", "lenet", "--classes", "a,b"]), 2, &["2 classes", "10"]);
    fails(&predict(&["--model", "lenet", "--mean", "1,2,3"]), 2, &["--mean", "1 channels"]);
    fails(&predict(&["--model", "lenet", "--resize", "96"]), 2, &["28 × 28"]);
    fails(&predict(&["--model", "lenet", "--shorter", "20"]), 2, &["--shorter 20", "28 × 28"]);
    fails(&predict(&["--model", "lenet", "--std=-1"]), 2, &["--std", "above 0"]);
    let two = output(&["predict", text(&net), text(&image), "--model", "lenet", "--device", "cpu,gpu:99"]);
    fails(&two, 2, &["gpu:99"]);
    fs::write(&image, "no image").expect("our file");
    fails(&predict(&["--model", "lenet"]), 1, &["x.png"]);
    fs::write(&net, "no net").expect("our file");
    fails(&predict(&["--model", "lenet"]), 1, &["net.safetensors"]);
    fails(&output(&["predict", "nowhere.safetensors", text(&image)]), 1, &["nowhere.safetensors"]);
    fails(&output(&["predict", text(&net)]), 2, &["IMAGES"]);
}

#[test]
fn a_checkpoint_is_used_as_the_saved_net_is() {
    let dir = tempfile::tempdir().expect("a folder");
    let [net, run] = ["net.safetensors", "run.safetensors"].map(|name| dir.path().join(name));
    let args = ["train", "--devices", "cpu", "--epochs", "1", "--limit", "1000", "--save", text(&net)];
    let trained = output(&[&args[..], &["--checkpoint", text(&run)]].concat());
    assert!(trained.status.success(), "{}", stderr(&trained));
    let (files, _) = digits(dir.path(), 10);
    let images: Vec<&str> = files.iter().map(|path| text(path)).collect();
    let predict = |file: &Path| json_lines(&output(&[&["predict", text(file), "--json"], &images[..]].concat()));
    assert_eq!(predict(&run), predict(&net));
    let (_, metadata) = checkpoint::load_with_metadata(&run, Device::cpu()).expect("our file");
    let card = &metadata["anygpu.card"];
    for key in [r#""model":"lenet""#, r#""classes":["0","1""#, r#""mean":["#, r#""std":["#] {
        assert!(card.contains(key), "{key}: {card}");
    }
}

#[test]
fn what_a_net_does_not_take_is_said_before_training() {
    let train = |more: &[&str]| output(&[&["train", "--devices", "cpu"], more].concat());
    fails(&train(&["lenet", "--resize", "96"]), 2, &["28 × 28", "resnet18"]);
    fails(&train(&["--save", "net.pt"]), 2, &["net.pt", ".safetensors"]);
    fails(&train(&["--save", "/no/such/folder/net.safetensors"]), 1, &["/no/such/folder"]);
    fails(&train(&["vgg"]), 2, &["vgg", "resnet18"]);
    fails(&train(&["--limit", "0"]), 2, &["--limit"]);
}

#[test]
fn a_folder_is_split_as_its_folders_say() {
    let dir = tempfile::tempdir().expect("a folder");
    folders(&dir.path().join("train"));
    let args = ["train", "resnet18", "--devices", "cpu", "--resize", "16", "--epochs", "1", "--batch-size", "4"];
    let train = |more: &[&str]| output(&[&args[..], &["--data", text(dir.path()), "--json"], more].concat());
    let net = dir.path().join("net.safetensors");
    json_lines(&train(&["--limit", "4", "--save", text(&net)]));
    let (_, card) = checkpoint::load_with_metadata(&net, Device::cpu()).expect("our file");
    assert!(card["anygpu.card"].contains(r#""classes":["bright","dark"]"#), "{card:?}");

    fs::create_dir_all(dir.path().join("validation/bright")).expect("our folder");
    let image = Array::new(vec![0.5f32; 3 * 8 * 8], [3, 8, 8]).expect("it fits");
    save_png(&dir.path().join("validation/bright/a.png"), &image);
    fails(&train(&[]), 1, &["to train on", "to test on"]);
    fs::write(dir.path().join("t10k-labels-idx1-ubyte"), "damaged").expect("our folder");
    fails(&train(&[]), 1, &["train-images-idx3-ubyte"]);
    fs::remove_file(dir.path().join("t10k-labels-idx1-ubyte")).expect("our file");
    fs::remove_dir_all(dir.path().join("train/dark")).expect("our folder");
    fails(&train(&[]), 1, &["one class only", "bright"]);
}

#[test]
fn the_limits_of_files_are_options() {
    let dir = tempfile::tempdir().expect("a folder");
    let (files, _) = digits(dir.path(), 1);
    let net = dir.path().join("net.safetensors");
    checkpoint::save(&nn::models::lenet().expect("a net").state_dict(), &net).expect("our folder");
    let args = ["predict", text(&net), text(&files[0]), "--model", "lenet", "--devices", "cpu", "--max-pixels"];
    let small = output(&[&args[..], &["783"]].concat());
    fails(&small, 1, &["0.png: an image of 28 × 28 pixels, and the limit is 783 pixels", "--max-pixels"]);
    assert!(output(&[&args[..], &["784"]].concat()).status.success());

    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/mnist-5k");
    let args = ["train", "--devices", "cpu", "--limit", "1", "--epochs", "1", "--data", text(&digits)];
    let few = output(&[&args[..], &["--max-bytes", "1000000"]].concat());
    fails(&few, 1, &["it decodes to 3136000 bytes, and the limit is 1000000", "--max-bytes"]);
    let small = output(&[&args[..], &["--max-pixels", "100"]].concat());
    fails(&small, 1, &["an image of 28 × 28 pixels, and the limit is 100 pixels"]);
}
