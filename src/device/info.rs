//! Descriptions of devices: names and figures only, no handle of any driver.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// The maker of the chip.
///
/// For a software adapter, this is the maker of the program.
///
/// It parses from its name, in any case, and from a PCI vendor id. Vendors are ordered as the variants are.
///
/// ```
/// use anygpu::Vendor;
///
/// assert_eq!("nvidia".parse::<Vendor>()?, Vendor::Nvidia);
/// assert_eq!(Vendor::try_from("0x1002")?, Vendor::Amd);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Vendor {
    /// NVIDIA.
    Nvidia,
    /// AMD.
    Amd,
    /// Intel.
    Intel,
    /// Apple.
    Apple,
    /// Arm (Mali).
    Arm,
    /// Qualcomm (Adreno).
    Qualcomm,
    /// Imagination (PowerVR).
    ImgTec,
    /// Broadcom (VideoCore).
    Broadcom,
    /// Google: SwiftShader.
    Google,
    /// Mesa: lavapipe and llvmpipe.
    Mesa,
    /// Microsoft: WARP.
    Microsoft,
    /// Any other, by its PCI vendor id; 0 if there is none.
    Other(u32),
}

impl Vendor {
    /// Returns the vendor with this PCI vendor id. Vulkan extends the list of ids beyond 16 bits.
    ///
    /// ```
    /// use anygpu::Vendor;
    /// assert_eq!(Vendor::from_id(0x1002), Vendor::Amd);
    /// ```
    #[must_use]
    pub fn from_id(id: u32) -> Vendor {
        match id {
            0x10de => Vendor::Nvidia,
            0x1002 | 0x1022 => Vendor::Amd,
            0x8086 => Vendor::Intel,
            0x106b => Vendor::Apple,
            0x13b5 => Vendor::Arm,
            0x5143 => Vendor::Qualcomm,
            0x1010 => Vendor::ImgTec,
            0x14e4 => Vendor::Broadcom,
            0x1ae0 => Vendor::Google,
            0x10005 => Vendor::Mesa,
            0x1414 => Vendor::Microsoft,
            other => Vendor::Other(other),
        }
    }

    /// Returns the vendor whose name `text` contains: for the CPU, and for APIs that report no id.
    pub(crate) fn from_text(text: &str) -> Option<Vendor> {
        let text = text.to_lowercase();
        let known = [
            ("nvidia", Vendor::Nvidia),
            ("amd", Vendor::Amd),
            ("radeon", Vendor::Amd),
            ("intel", Vendor::Intel),
            ("apple", Vendor::Apple),
            ("mali", Vendor::Arm),
            ("adreno", Vendor::Qualcomm),
        ];
        known.iter().find(|(word, _)| text.contains(word)).map(|&(_, vendor)| vendor)
    }
}

/// The vendors that have names.
const NAMED: [Vendor; 12] = [
    Vendor::Nvidia,
    Vendor::Amd,
    Vendor::Intel,
    Vendor::Apple,
    Vendor::Arm,
    Vendor::Qualcomm,
    Vendor::ImgTec,
    Vendor::Broadcom,
    Vendor::Google,
    Vendor::Mesa,
    Vendor::Microsoft,
    Vendor::Other(0),
];

impl fmt::Display for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Vendor::Nvidia => "NVIDIA",
            Vendor::Amd => "AMD",
            Vendor::Intel => "Intel",
            Vendor::Apple => "Apple",
            Vendor::Arm => "Arm",
            Vendor::Qualcomm => "Qualcomm",
            Vendor::ImgTec => "Imagination",
            Vendor::Broadcom => "Broadcom",
            Vendor::Google => "Google",
            Vendor::Mesa => "Mesa",
            Vendor::Microsoft => "Microsoft",
            Vendor::Other(0) => "unknown",
            Vendor::Other(id) => return f.pad(&format!("{id:#06x}")),
        })
    }
}

impl FromStr for Vendor {
    type Err = Error;

    fn from_str(name: &str) -> Result<Vendor> {
        let id = name.strip_prefix("0x").and_then(|digits| u32::from_str_radix(digits, 16).ok());
        id.map_or_else(|| named("Vendor", name, &NAMED), |id| Ok(Vendor::from_id(id)))
    }
}

crate::error::try_from_str!(Vendor);

/// Returns the value with this name, in any case.
fn named<T: Copy + fmt::Display>(what: &'static str, name: &str, all: &[T]) -> Result<T> {
    let found = all.iter().find(|value| value.to_string().eq_ignore_ascii_case(name.trim()));
    found.copied().ok_or_else(|| {
        let names: Vec<String> = all.iter().map(T::to_string).collect();
        Error::argument(what, format!("unknown name '{name}': it is one of {}", names.join(", ")))
    })
}

/// The kind of a device.
///
/// The order of the variants is the order of `gpu:0`, `gpu:1`, … It parses from its name, in any case.
///
/// ```
/// use anygpu::DeviceKind;
///
/// assert_eq!("discrete".parse::<DeviceKind>()?, DeviceKind::Discrete);
/// assert_eq!(DeviceKind::Cpu.to_string(), "cpu");
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceKind {
    /// A graphics card with its own memory.
    Discrete,
    /// A GPU that shares the memory of the CPU.
    Integrated,
    /// A GPU that the host of a virtual machine provides.
    Virtual,
    /// A driver that computes on the CPU: lavapipe, llvmpipe, SwiftShader, WARP.
    Software,
    /// The host itself, in native code.
    Cpu,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DeviceKind::Discrete => "discrete",
            DeviceKind::Integrated => "integrated",
            DeviceKind::Virtual => "virtual",
            DeviceKind::Software => "software",
            DeviceKind::Cpu => "cpu",
        })
    }
}

/// All kinds.
const KINDS: [DeviceKind; 5] =
    [DeviceKind::Discrete, DeviceKind::Integrated, DeviceKind::Virtual, DeviceKind::Software, DeviceKind::Cpu];

impl FromStr for DeviceKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<DeviceKind> {
        named("DeviceKind", name, &KINDS)
    }
}

crate::error::try_from_str!(DeviceKind);

/// The limits of one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes of a buffer that a kernel can bind (`max_storage_buffer_binding_size`). Many ops compute
    /// larger [tensors](crate::Tensor) in parts.
    pub max_binding: u64,
    /// The most bytes of a buffer: no tensor can be larger.
    pub max_buffer: u64,
    /// Workgroups in each of the three dimensions of a dispatch.
    pub workgroups_per_dimension: u32,
    /// Invocations of one workgroup.
    pub invocations_per_workgroup: u32,
    /// Bytes of `var<workgroup>` memory.
    pub workgroup_memory: u32,
    /// Storage buffers that one kernel can bind.
    pub storage_buffers: u32,
    /// Smallest and largest subgroup, 0 where there are none.
    pub subgroup_size: (u32, u32),
}

/// A device's name, kind, driver, features and limits.
///
/// This is known without opening the device.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its name in this crate: `cpu`, `gpu:0`, `soft:1`, …
    pub name: String,
    /// Its maker.
    pub vendor: Vendor,
    /// Its kind.
    pub kind: DeviceKind,
    /// The chip's own name, for instance `NVIDIA GeForce RTX 4090`.
    pub adapter: String,
    /// The API through which it is used: `Vulkan`, `Metal`, `DX12`, `GL`, or `native` for `cpu`.
    pub api: String,
    /// The driver and its version.
    pub driver: String,
    /// `false` if a Vulkan driver says that it has not passed Khronos' conformance tests. Run `anygpu check` or
    /// [`check`](crate::check) to find out whether its results are right. Other APIs do not report it: it is `true`
    /// for them.
    pub conformant: bool,
    /// The vendor's id, as the driver reports it: the PCI vendor id if the chip is a PCI device; 0 if there is
    /// none.
    pub vendor_id: u32,
    /// The vendor's id of the model; 0 if there is none.
    pub device_id: u32,
    /// The PCI bus id of the card, such as `0000:01:00.0`, if the driver reports it. It tells two cards of one
    /// model apart. A program that opens an adapter with wgpu itself can find its device by it.
    pub pci_bus_id: Option<String>,
    /// Bytes of memory, if the driver reports them.
    pub memory_total: Option<u64>,
    /// Some of `f16`, `subgroups`, `cooperative-matrix`, `timestamps`.
    pub features: Vec<String>,
    /// The limits of one kernel.
    pub limits: Limits,
}

impl DeviceInfo {
    /// Returns whether the device has this feature, one of [`features`](DeviceInfo::features).
    #[must_use]
    pub fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|f| f == feature)
    }
}

/// A fault or a peculiarity of a driver that the probe found when the device was opened.
///
/// This crate's kernels avoid it; your own kernels may have to avoid it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Quirk {
    /// The driver leaves all loops of an invocation, without an error, after this many iterations in total. Nested
    /// and sequential loops share the budget. Lavapipe and llvmpipe of Mesa 22 have this fault.
    LoopBudget {
        /// Iterations that the probe counted before the driver left its loop.
        iterations: u32,
    },
    /// The driver replaces subnormal f32 numbers, those below 2⁻¹²⁶, by 0: in operands, in results, or in both.
    /// WebGPU allows it. SwiftShader does it.
    FlushesSubnormals,
    /// On DirectX 12, wgpu found no `dxcompiler.dll` and compiles with the system's FXC. FXC takes longer, and has
    /// neither f16 nor subgroups. Kernel variants that it refuses are not used.
    Fxc,
}

impl Quirk {
    /// Returns a remedy for the quirk, if there is one.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Quirk::LoopBudget { .. } | Quirk::FlushesSubnormals => None,
            Quirk::Fxc => Some(
                "put dxcompiler.dll from https://github.com/microsoft/DirectXShaderCompiler/releases (1.8.2502 or newer) beside the \
                 program, or build it with the feature static-dxc",
            ),
        }
    }
}

impl fmt::Display for Quirk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Quirk::LoopBudget { iterations } => write!(f, "loop-budget-{iterations}"),
            Quirk::FlushesSubnormals => f.pad("flushes-subnormals"),
            Quirk::Fxc => f.pad("fxc"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command() {
        assert_eq!(DeviceKind::Software.to_string(), "software");
        assert_eq!(Vendor::from_id(0x10de).to_string(), "NVIDIA");
        assert_eq!(Vendor::from_id(0xabcd).to_string(), "0xabcd");
        assert_eq!(Vendor::from_text("AMD EPYC 7763"), Some(Vendor::Amd));
        assert_eq!(Quirk::LoopBudget { iterations: 65535 }.to_string(), "loop-budget-65535");
        assert_eq!(Quirk::FlushesSubnormals.to_string(), "flushes-subnormals");
        assert_eq!((Quirk::Fxc.to_string(), Quirk::FlushesSubnormals.remedy()), ("fxc".into(), None));
        assert!(Quirk::Fxc.remedy().is_some_and(|remedy| remedy.contains("dxcompiler.dll")));
    }

    #[test]
    fn names_are_read_back() -> Result<()> {
        for vendor in NAMED {
            assert_eq!(vendor.to_string().to_lowercase().parse::<Vendor>()?, vendor);
        }
        for kind in KINDS {
            assert_eq!(DeviceKind::try_from(&*kind.to_string())?, kind);
        }
        assert_eq!((Vendor::Amd.to_string(), DeviceKind::Software.to_string()), ("AMD".into(), "software".into()));
        let other = Vendor::from_id(0xabcd);
        assert_eq!(other.to_string().parse::<Vendor>()?, other);
        assert!(Vendor::Nvidia < Vendor::Amd && DeviceKind::Discrete < DeviceKind::Cpu);
        let error = "gpu".parse::<DeviceKind>().unwrap_err().to_string();
        assert_eq!(error, "DeviceKind: unknown name 'gpu': it is one of discrete, integrated, virtual, software, cpu");
        assert!("0xzz".parse::<Vendor>().is_err());
        Ok(())
    }
}
