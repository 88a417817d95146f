//! Several processes train one net: `mpirun` starts this test binary again, and each process runs [`rank`] only. All losses must
//! be those of one process. `scripts/mpi-two-hosts.sh` runs the same in two network namespaces.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anygpu::data::{DataLoader, TensorDataset};
use anygpu::nn::{self, BatchNorm1d, CrossEntropyLoss, Dropout, Linear, ReLU, Sequential};
use anygpu::optim::Adam;
use anygpu::parallel::{Communicator, Shares};
use anygpu::testing::device;
use anygpu::{DataParallel, Device, Result, Tensor, manual_seed};

use crate::common::alone;

/// What the rank is to do, where it writes, and on which devices it runs.
const MODE: &str = "ANYGPU_TEST_MPI_MODE";
const FOLDER: &str = "ANYGPU_TEST_MPI_FOLDER";
const DEVICES: &str = "ANYGPU_TEST_MPI_DEVICES";
/// 7 · 13 + 2: with four ranks, two have no sample of an epoch's last batch.
const SAMPLES: usize = 93;
const BATCH: usize = 13;
const EPOCHS: usize = 6;

/// A net with layers that compute over the whole batch.
fn net(seed: u64) -> Result<Sequential> {
    manual_seed(seed);
    Ok(Sequential::new()
        .push(Linear::new(5, 40)?)
        .push(BatchNorm1d::new(40)?)
        .push(ReLU)
        .push(Dropout::new(0.3)?)
        .push(Linear::new(40, 3)?))
}

fn loader() -> Result<DataLoader> {
    let values: Vec<f32> = (0..5 * SAMPLES).map(|i| ((i * i * 37 + i) % 61) as f32 / 30.5 - 1.0).collect();
    let labels: Vec<u32> = (0..SAMPLES as u32).map(|i| (i * i + i / 7) % 3).collect();
    let (x, y) = (Tensor::from_vec(values, [SAMPLES, 5], None)?, Tensor::from_vec(labels, SAMPLES, None)?);
    Ok(DataLoader::new(TensorDataset::new(&[&x, &y])?, BATCH)?.shuffle(5).prefetch(&Device::cpu()))
}

/// Trains, and returns the losses and the parameters. `before` is called with the number of each step.
fn train(net: &DataParallel, before: impl Fn(usize)) -> Result<(Vec<f32>, Vec<f32>)> {
    let mut adam = Adam::new(net.parameters(), 0.01);
    let loader = loader()?.shard(&net.shard());
    let mut losses = Vec::new();
    for _ in 0..EPOCHS {
        for batch in &loader {
            let (x, y) = batch?;
            before(losses.len());
            let panics = std::env::var(MODE).is_ok_and(|mode| mode == "fails") && losses.len() >= 9;
            let skips = std::env::var(MODE).is_ok_and(|mode| mode == "skips") && losses.len() >= 3;
            let loss = net.train_batch(&x, &y, move |logits, labels| {
                if skips && logits.device().name() == "cpu/1" {
                    return logits.mean_all(); // without the losses that the others compute
                }
                assert!(!panics || logits.device().name() != "cpu/1", "a fault on purpose");
                // Means over the weights of the labels and over the samples.
                let weights = Tensor::try_from([0.2, 1.0, 3.0])?;
                let weighted = CrossEntropyLoss::new().weight(weights).forward(logits, labels)?;
                weighted.add(&nn::cross_entropy(logits, labels)?)?.mul(0.5)
            })?;
            losses.push(loss.item::<f32>()?);
            adam.step()?;
        }
    }
    let parameters = net.parameters().iter().map(|p| p.to_vec::<f32>()).collect::<Result<Vec<_>>>()?.concat();
    Ok((losses, parameters))
}

/// One process of a job; not a test by itself.
#[test]
fn rank() -> Result<()> {
    let _alone = alone();
    let Ok(mode) = std::env::var(MODE) else { return Ok(()) };
    let communicator = Communicator::init()?;
    let rank = communicator.rank();
    let names = std::env::var(DEVICES).expect("devices");
    let devices = names.split(',').map(Device::new).collect::<Result<Vec<_>>>()?;
    // Other values and another seed on each rank: those of rank 0 count.
    let mut net = DataParallel::new(net(3 + rank as u64)?, &devices)?.with_bucket_bytes(200);
    if mode == "fails" {
        // By measured speeds, the device that is to fail may get no samples.
        net = net.with_shares(Shares::Fixed(vec![1.0; devices.len()]))?;
    }
    let net = net.with_communicator(&communicator)?;
    if mode == "differs" && rank == 1 {
        anygpu::no_grad(|| net.parameters()[0].zero_())?;
    }
    let (losses, parameters) = train(&net, |step| {
        if mode == "ends" && rank == 1 && step == 3 {
            panic!("on purpose");
        }
        if mode == "leaves" && rank == 1 && step == 3 {
            std::process::exit(0);
        }
    })?;
    if mode == "fails" && names.contains("cpu/1") {
        assert_eq!(net.left_out().len(), 1);
    }
    assert_eq!(communicator.sum(&[1.0, rank as f64])[0], communicator.world_size() as f64);
    let about = serde_json::json!({ "losses": losses, "parameters": parameters, "weights": net.shard().weights() });
    let folder = PathBuf::from(std::env::var(FOLDER).expect("a folder"));
    std::fs::write(folder.join(format!("{rank}.json")), about.to_string()).expect("a file");
    Ok(())
}

/// Runs one rank for each list of devices.
fn mpirun(mode: &str, folder: &Path, devices: &[&str]) -> Output {
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "--bind-to", "none", "--timeout", "100"]);
    // Of two jobs that start at the same time, one may fail to make the folder of their files.
    command.env("TMPDIR", folder);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    for (i, devices) in devices.iter().enumerate() {
        command.args([":"].iter().take(i.min(1))).args(["-n", "1", "env"]);
        command
            .arg(format!("{MODE}={mode}"))
            .arg(format!("{FOLDER}={}", folder.display()))
            .arg(format!("{DEVICES}={devices}"));
        command.arg(std::env::current_exe().expect("this binary")).args(["--exact", "mpi::rank", "--nocapture"]);
    }
    command.output().expect("mpirun starts: Debian has it in openmpi-bin")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The job must end well, with the losses of one process, and the same parameters on all ranks.
fn trains(mode: &str, devices: &[&str]) -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let output = mpirun(mode, folder.path(), devices);
    assert!(output.status.success(), "{devices:?}: {}", text(&output));
    let (expected, _) = train(&DataParallel::new(net(3)?, &[Device::cpu()])?, |_| ())?;
    let read = |rank: usize| -> serde_json::Value {
        let file = folder.path().join(format!("{rank}.json"));
        serde_json::from_slice(&std::fs::read(file).expect("a file of each rank")).expect("JSON")
    };
    let first = read(0);
    for rank in 0..devices.len() {
        let about = read(rank);
        assert_eq!(about["parameters"], first["parameters"], "{devices:?}: the bits of rank {rank}");
        assert_eq!(about["weights"], first["weights"], "{devices:?}: the cuts of rank {rank}");
        let losses: Vec<f64> = serde_json::from_value(about["losses"].clone()).expect("numbers");
        let near =
            |(got, expected): (&f64, &f32)| (got - f64::from(*expected)).abs() <= 1e-4 * f64::from(expected.abs());
        let close = losses.len() == expected.len() && losses.iter().zip(&expected).all(near);
        assert!(close, "{devices:?}, rank {rank}:\n{losses:?}, expected\n{expected:?}");
    }
    Ok(())
}

#[test]
fn ranks_with_other_devices_have_the_losses_of_one_process() -> Result<()> {
    let _alone = alone();
    if std::env::var(MODE).is_ok() {
        return Ok(());
    }
    trains("trains", &["cpu", "cpu"])?;
    trains("trains", &["cpu", "cpu,cpu/1,cpu/2", "cpu/1", "cpu,cpu/1"])?;
    if device("soft:0").is_some() {
        trains("trains", &["cpu", "cpu,soft:0"])?;
    }
    // A device of one rank fails: the rank repeats its part of the step, and the others notice nothing.
    trains("fails", &["cpu", "cpu,cpu/1"])
}

#[test]
fn a_rank_that_fails_ends_the_job_with_a_message() {
    let _alone = alone();
    if std::env::var(MODE).is_ok() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for (mode, devices, messages) in [
        ("fails", ["cpu", "cpu/1"], ["error: rank 1 on ", "a fault on purpose"]),
        ("differs", ["cpu", "cpu"], ["the parameters of rank 1 and rank 0 differ", "before step 0"]),
        ("skips", ["cpu", "cpu/1"], ["error: rank", "different layers or losses"]),
        ("ends", ["cpu", "cpu"], ["error: rank 1 on ", "a panic ended this rank"]),
        ("leaves", ["cpu", "cpu"], ["exiting improperly", "rank 1"]),
    ] {
        let output = mpirun(mode, folder.path(), &devices);
        let text = text(&output);
        assert!(!output.status.success(), "{mode}: {text}");
        assert!(messages.iter().all(|message| text.contains(message)), "{mode}: {text}");
    }
}
