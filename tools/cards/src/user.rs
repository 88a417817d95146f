//! The kernel of a file.

use std::error::Error;
use std::path::Path;

use anygpu::Device;
use anygpu::interop::launches::{BoundBuffer, KernelSource, Launch, ParamsPlace};
use naga::AddressSpace;

use crate::memory::{WIDTHS, figures, sites};
use crate::trace::Machine;
use crate::{Args, explain};

/// The longest source that is read.
const MOST_BYTES: u64 = 16 << 20;

/// Reads the value of an override.
///
/// # Errors
///
/// A message, if it is not `NAME=NUMBER`.
pub fn constant(text: &str) -> Result<(String, f64), String> {
    let parts = text.split_once('=').and_then(|(name, value)| Some((name.to_owned(), value.parse().ok()?)));
    parts.ok_or_else(|| "it must be NAME=NUMBER".to_owned())
}

/// The bindings of a kernel: of its storage buffers, with whether it writes them, and of its uniform.
#[derive(Debug, Default, PartialEq)]
struct Bindings {
    buffers: Vec<(u32, bool)>,
    uniform: Option<u32>,
    immediates: bool,
    entries: Vec<String>,
}

fn bindings(text: &str) -> Result<Bindings, String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|error| error.emit_to_string(text))?;
    let mut all = Bindings::default();
    for (_, global) in module.global_variables.iter() {
        match (global.space, global.binding.as_ref()) {
            (AddressSpace::Immediate, _) => all.immediates = true,
            (AddressSpace::Storage { access }, Some(binding)) if binding.group == 0 => {
                all.buffers.push((binding.binding, access.contains(naga::StorageAccess::STORE)));
            }
            (AddressSpace::Uniform, Some(binding)) if binding.group == 0 && all.uniform.is_none() => {
                all.uniform = Some(binding.binding);
            }
            (AddressSpace::Storage { .. } | AddressSpace::Uniform | AddressSpace::Handle, _) => {
                return Err("a kernel has storage buffers and one uniform, all in group 0".to_owned());
            }
            _ => {}
        }
    }
    all.buffers.sort_unstable();
    all.entries = module.entry_points.iter().map(|point| point.name.clone()).collect();
    Ok(all)
}

/// Returns lines with what a kernel of a file does.
///
/// # Errors
///
/// The errors of the file and of the adapter; an error for a kernel that cannot be traced.
pub fn report(file: &Path, args: &Args, device: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let text = anygpu::read_text(file, MOST_BYTES).map_err(|error| format!("{}: {error}", file.display()))?;
    let found = bindings(&text)?;
    let entry = match (&args.entry, &found.entries[..]) {
        (Some(entry), _) => entry.clone(),
        (None, [only]) => only.clone(),
        (None, several) => return Err(format!("--entry: name one of [{}]", several.join(", ")).into()),
    };
    if args.buffers.len() != found.buffers.len() {
        return Err(format!("--buffers: the kernel has {}, not {}", found.buffers.len(), args.buffers.len()).into());
    }
    let groups = match args.groups[..] {
        [x] => [x, 1, 1],
        [x, y] => [x, y, 1],
        [x, y, z] => [x, y, z],
        _ => return Err("--groups: give one, two or three numbers".into()),
    };
    if groups.contains(&0) {
        return Err("--groups: none may be 0".into());
    }
    let device = Device::new(device)?;
    let (raw, queue) = device.as_wgpu()?;
    let most = raw.limits().max_storage_buffer_binding_size;
    if let Some(bytes) = args.buffers.iter().find(|bytes| **bytes == 0 || **bytes % 4 != 0 || **bytes > most) {
        return Err(format!("--buffers: {bytes} is no multiple of 4 from 4 to {most}").into());
    }
    let buffers = args.buffers.iter().map(|&size| {
        use wgpu::BufferUsages as Usages;
        let usage = Usages::STORAGE | Usages::COPY_SRC | Usages::COPY_DST;
        raw.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
    });
    let buffers: Vec<wgpu::Buffer> = buffers.collect();
    let bound = found.buffers.iter().zip(&buffers).zip(&args.buffers);
    let launch = Launch {
        op: "",
        name: &entry,
        source: &KernelSource { text, entry: entry.clone(), constants: args.overrides.clone() },
        params: &args.params,
        params_at: match found {
            Bindings { immediates: true, .. } => ParamsPlace::Immediates,
            Bindings { uniform: Some(binding), .. } => ParamsPlace::Uniform(binding),
            _ => ParamsPlace::Nowhere,
        },
        buffers: bound
            .map(|((&(binding, written), raw), &bytes)| BoundBuffer {
                binding,
                written,
                raw,
                offset: 0,
                bytes,
                used: bytes,
            })
            .collect(),
        groups,
        device: raw,
        queue,
    };
    let trace = Machine::default().trace(&launch)?;
    let mut lines = vec![entry.clone()];
    lines.extend(explain(groups, &figures(&trace)));
    lines.push("    the accesses, by subgroups of 32:".to_owned());
    for (site, requests, banks) in sites(&trace) {
        let what = format!("{:?} of {} bytes, {}", site.kind, site.bytes, site.name);
        let lanes = 100.0 * requests.lanes(WIDTHS[0]);
        lines.push(match banks {
            Some(banks) => format!("        {what}: lanes {lanes:.0} %, {banks:.2} cycles of banks"),
            None => {
                format!("        {what}: lanes {lanes:.0} %, {:.1} % of sectors used", 100.0 * requests.efficiency())
            }
        });
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bindings_are_in_the_order_of_their_numbers() {
        let text = "
            @group(0) @binding(7) var<storage, read_write> y: array<f32>;
            @group(0) @binding(3) var<storage, read> x: array<f32>;
            @group(0) @binding(1) var<uniform> n: u32;
            @compute @workgroup_size(1) fn one() { y[n] = x[n]; }";
        let found = bindings(text).expect("valid");
        assert_eq!(found.buffers, [(3, false), (7, true)]);
        assert_eq!((found.uniform, found.entries), (Some(1), vec!["one".to_owned()]));
        assert!(bindings("@group(1) @binding(0) var<storage> x: array<f32>;").is_err());
        assert_eq!(constant("N=4"), Ok(("N".to_owned(), 4.0)));
        assert!(constant("N").is_err());
    }
}
