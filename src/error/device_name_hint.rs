//! What the user may have meant by a device name that this machine does not have.

/// Names of devices in other libraries, in full or before the colon, and their counterparts here.
const FOREIGN: [(&str, &[&str]); 2] = [
    (
        "gpu",
        &[
            "cuda", "hip", "rocm", "mps", "metal", "xpu", "vulkan", "vk", "dx12", "d3d12", "dml", "directml", "opengl",
            "gl", "opencl", "webgpu", "wgpu", "nvidia", "amd", "intel", "apple",
        ],
    ),
    ("soft", &["lavapipe", "llvmpipe", "swiftshader", "warp", "software"]),
];

/// Returns what the user may have meant by a device's name.
pub(super) fn hint(name: &str, available: &[String]) -> String {
    let name = name.trim().to_ascii_lowercase();
    let (family, index) = match name.split_once(':') {
        Some(parts) => parts,
        None if !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit()) => ("cuda", &*name),
        None => (&*name, "0"),
    };
    let ours = FOREIGN.iter().find(|(_, names)| names.contains(&family)).map(|(ours, _)| *ours);
    let mut hint = ours.map_or_else(String::new, |ours| {
        format!("; a GPU of any maker is gpu:N and a software adapter soft:N, so write '{ours}:{index}'")
    });
    if name.split_once('/').is_some_and(|(base, _)| available.iter().any(|name| name == base)) {
        hint.push_str("; its logical devices are /0 to /15");
    }
    if ours.unwrap_or(family) == "gpu" && !available.iter().any(|name| name.starts_with("gpu")) {
        hint.push_str("; there is no GPU here, and try_gpu(0) returns cpu then");
    }
    hint
}

#[cfg(test)]
mod tests {
    use crate::error::Error;

    fn unknown(name: &str, available: &[&str]) -> String {
        Error::UnknownDevice { name: name.into(), available: available.iter().map(ToString::to_string).collect() }
            .to_string()
    }

    #[test]
    fn names_of_other_libraries_are_translated() {
        for (name, meant) in [("cuda:1", "'gpu:1'"), ("mps", "'gpu:0'"), ("Vulkan:0", "'gpu:0'"), ("3", "'gpu:3'")] {
            let text = unknown(name, &["gpu:0", "cpu"]);
            assert!(text.starts_with(&format!("unknown device '{name}': this machine has gpu:0, cpu; ")), "{text}");
            assert!(text.ends_with(meant), "{text}");
        }
        assert!(unknown("llvmpipe", &["soft:0", "cpu"]).ends_with("'soft:0'"));
        let none = unknown("cuda", &["cpu"]);
        assert!(
            none.contains("'gpu:0'") && none.ends_with("there is no GPU here, and try_gpu(0) returns cpu then"),
            "{none}"
        );
        assert!(unknown("soft:0/99", &["soft:0", "cpu"]).ends_with("cpu; its logical devices are /0 to /15"));
        assert!(unknown("gpu:0", &["cpu"]).ends_with("try_gpu(0) returns cpu then"));
        assert_eq!(unknown("tpu", &["cpu"]), "unknown device 'tpu': this machine has cpu");
        assert_eq!(unknown("gpu:7", &["gpu:0", "cpu"]), "unknown device 'gpu:7': this machine has gpu:0, cpu");
    }
}
