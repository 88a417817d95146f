//! The rules of `registry.rs`, on made-up machines.

use super::*;
use DeviceKind::{Discrete, Integrated, Software};

fn card(api: Api, kind: DeviceKind, name: &str, ids: (u32, u32), pci: &str) -> AdapterInfo {
    AdapterInfo {
        api,
        name: name.into(),
        vendor_id: ids.0,
        device_id: ids.1,
        pci: pci.into(),
        kind,
        conformant: true,
        driver: String::new(),
        driver_info: String::new(),
        memory_total: None,
        features: Vec::new(),
        limits: Limits {
            max_binding: 1 << 27,
            max_buffer: 1 << 31,
            workgroups_per_dimension: 65535,
            invocations_per_workgroup: 1024,
            workgroup_memory: 32768,
            storage_buffers: 16,
            subgroup_size: (8, 8),
        },
    }
}

fn soft(api: Api, name: &str, driver: &str, driver_info: &str) -> AdapterInfo {
    let base = card(api, Software, name, (0x10005, 0), "");
    AdapterInfo { driver: driver.into(), driver_info: driver_info.into(), ..base }
}

/// What `select` keeps, by name, for every rotation of the enumeration (they must agree).
fn selected(infos: &[AdapterInfo]) -> Vec<String> {
    let mut infos = infos.to_vec();
    let mut expected = None;
    for _ in 0..infos.len() {
        let label =
            |&i: &usize| format!("{} {} {} {}", infos[i].api.name(), infos[i].name, infos[i].pci, infos[i].driver_info);
        let names: Vec<_> = select(&infos).iter().map(|i| label(i).trim().to_string()).collect();
        assert_eq!(&names, expected.get_or_insert_with(|| names.clone()), "the order depends on the enumeration");
        infos.rotate_left(1);
    }
    expected.unwrap_or_default()
}

#[test]
fn one_card_through_three_apis_is_one_device() {
    let found = [
        card(Api::Gl, Discrete, "NVIDIA GeForce RTX 3090/PCIe/SSE2", (0x10de, 0), ""),
        card(Api::Dx12, Discrete, "NVIDIA GeForce RTX 3090", (0x10de, 0x2204), "0000:01:00.0"),
        card(Api::Vulkan, Discrete, "NVIDIA GeForce RTX 3090", (0x10de, 0x2204), "0000:01:00.0"),
    ];
    assert_eq!(selected(&found), ["Vulkan NVIDIA GeForce RTX 3090 0000:01:00.0"]);
}

#[test]
fn identical_cards_stay_distinct_and_are_ordered_by_bus() {
    let a = |api, pci| card(api, Discrete, "AMD Radeon RX 6800 (RADV NAVI21)", (0x1002, 0x73bf), pci);
    // DX12 gives both cards the bus id of the first.
    let found = [
        a(Api::Vulkan, "0000:41:00.0"),
        a(Api::Vulkan, "0000:03:00.0"),
        a(Api::Dx12, "0000:03:00.0"),
        a(Api::Dx12, "0000:03:00.0"),
        card(Api::Gl, Discrete, "AMD Radeon RX 6800 (radeonsi, navi21, LLVM 15.0.6)", (0x1002, 0), ""),
    ];
    let name = "Vulkan AMD Radeon RX 6800 (RADV NAVI21)";
    assert_eq!(selected(&found), [format!("{name} 0000:03:00.0"), format!("{name} 0000:41:00.0")]);
}

#[test]
fn two_drivers_of_one_card_are_one_device_and_an_unknown_card_is_kept() {
    let found = [
        card(Api::Vulkan, Discrete, "AMD Radeon RX 6800 (RADV NAVI21)", (0x1002, 0x73bf), "0000:03:00.0"),
        card(Api::Vulkan, Discrete, "AMD Radeon RX 6800", (0x1002, 0x73bf), "0000:03:00.0"),
        card(Api::Vulkan, Integrated, "Intel(R) UHD Graphics 620 (KBL GT2)", (0x8086, 0x5917), "0000:00:02.0"),
        card(Api::Gl, Integrated, "Mesa Intel(R) UHD Graphics 620 (KBL GT2)", (0x8086, 0), ""),
        card(Api::Gl, Integrated, "Mali-G52", (0x13b5, 0), ""),
    ];
    let kept = selected(&found);
    assert_eq!(kept.len(), 3, "{kept:?}");
    assert!(kept[0].contains("6800") && kept[1].contains("UHD") && kept[2].contains("Mali"), "{kept:?}");
}

#[test]
fn four_software_adapters_are_four_devices() {
    let lvp = "llvmpipe (LLVM 15.0.6, 256 bits)";
    let found = [
        soft(Api::Gl, lvp, "", "4.5 (Core Profile) Mesa 22.3.6"),
        soft(Api::Vulkan, "SwiftShader Device (Subzero)", "SwiftShader driver", "5.0.0"),
        soft(Api::Vulkan, "llvmpipe (LLVM 19.1.7, 256 bits)", "llvmpipe", "Mesa 25.0.7-2 (LLVM 19.1.7)"),
        soft(Api::Vulkan, lvp, "llvmpipe", "Mesa 22.3.6 (LLVM 15.0.6)"),
        soft(Api::Vulkan, lvp, "llvmpipe", "Mesa 22.3.6 (LLVM 15.0.6)"),
    ];
    let kept = selected(&found);
    let expected = ["Mesa 22.3.6 (LLVM", "Mesa 25.0.7-2", "SwiftShader", "GL llvmpipe"];
    assert_eq!(kept.len(), 4, "{kept:?}");
    assert!(kept.iter().zip(expected).all(|(name, part)| name.contains(part)), "{kept:?}");
}

/// Without the marks of conformance, the first of each pair would be the other one.
#[test]
fn drivers_that_are_not_conformant_come_after_the_others() {
    let new = |api, name, ids, pci| AdapterInfo { conformant: false, ..card(api, Discrete, name, ids, pci) };
    // Two cards.
    let found = [
        new(Api::Vulkan, "NVIDIA GeForce RTX 5090 (NVK GB202)", (0x10de, 0x2b85), "0000:01:00.0"),
        card(Api::Vulkan, Discrete, "AMD Radeon RX 6800 (RADV NAVI21)", (0x1002, 0x73bf), "0000:41:00.0"),
    ];
    let kept = selected(&found);
    assert!(kept[0].contains("AMD") && kept[1].contains("NVK") && kept.len() == 2, "{kept:?}");

    // One card through two drivers of Vulkan, and through Vulkan and OpenGL.
    let found = [
        new(Api::Vulkan, "NVIDIA GeForce RTX 5090 (NVK GB202)", (0x10de, 0x2b85), "0000:01:00.0"),
        card(Api::Vulkan, Discrete, "NVIDIA GeForce RTX 5090 by NVIDIA", (0x10de, 0x2b85), "0000:01:00.0"),
    ];
    assert_eq!(selected(&found), ["Vulkan NVIDIA GeForce RTX 5090 by NVIDIA 0000:01:00.0"]);
    let haswell =
        card(Api::Vulkan, Integrated, "Intel(R) HD Graphics 4600 (HSW GT2)", (0x8086, 0x0412), "0000:00:02.0");
    let found = [
        AdapterInfo { conformant: false, ..haswell },
        card(Api::Gl, Integrated, "Mesa Intel(R) HD Graphics 4600 (HSW GT2)", (0x8086, 0), ""),
    ];
    assert_eq!(selected(&found), ["GL Mesa Intel(R) HD Graphics 4600 (HSW GT2)"]);
    assert_eq!(
        selected(&found[..1]),
        ["Vulkan Intel(R) HD Graphics 4600 (HSW GT2) 0000:00:02.0"],
        "it is listed alone"
    );

    // WSL: Mesa's Vulkan and OpenGL on DirectX.
    let found = [
        new(Api::Vulkan, "Microsoft Direct3D12 (NVIDIA GeForce RTX 3090)", (0x10de, 0x2204), ""),
        card(Api::Gl, Discrete, "D3D12 (NVIDIA GeForce RTX 3090)", (0, 0), ""),
    ];
    assert_eq!(selected(&found), ["Vulkan Microsoft Direct3D12 (NVIDIA GeForce RTX 3090)"]);

    // Software adapters.
    let llvmpipe = "llvmpipe (LLVM 15.0.6, 256 bits)";
    let found = [
        AdapterInfo { conformant: false, ..soft(Api::Vulkan, llvmpipe, "llvmpipe", "Mesa 22.3.6") },
        soft(Api::Gl, llvmpipe, "", "4.5 (Core Profile) Mesa 25.0.7"),
    ];
    assert!(selected(&found)[0].starts_with("GL"), "{:?}", selected(&found));
}

fn names(slots: &[Slot]) -> Vec<(&str, usize, usize)> {
    slots.iter().map(|s| (&*s.name, s.adapter, s.logical)).collect()
}

#[test]
fn visible_devices_hide_reorder_and_renumber() {
    let kinds = [Discrete, Integrated, Software, Software];
    let (slots, warnings) = name_slots(&kinds, None);
    assert_eq!(names(&slots), [("gpu:0", 0, 0), ("gpu:1", 1, 0), ("soft:0", 2, 0), ("soft:1", 3, 0)]);
    assert!(warnings.is_empty());

    let (slots, warnings) = name_slots(&kinds, Some("soft:1, gpu:0,gpu:9,nonsense,gpu:0,cpu,soft:0/1"));
    assert_eq!(names(&slots), [("gpu:0", 3, 0), ("gpu:1", 0, 0), ("gpu:2", 2, 1)]);
    assert_eq!(warnings, ["there is no 'gpu:9'", "there is no 'nonsense'", "'gpu:0' is named twice"]);
    let look = |name| Name::parse(name).and_then(|name| lookup(&slots, &kinds, name));
    assert_eq!(look("soft:0"), Some((3, 0)), "the first software adapter of the list");
    assert_eq!(look("soft:1"), Some((2, 1)));
    assert_eq!(look("gpu:3"), None);

    assert!(name_slots(&kinds, Some("")).0.is_empty(), "an empty list hides all");
}

#[test]
fn a_logical_device_has_one_name() {
    let kinds = [Software];
    let (slots, _) = name_slots(&kinds, None);
    assert_eq!(canonical_name(&slots, 0, 0), "soft:0");
    assert_eq!(canonical_name(&slots, 0, 2), "soft:0/2");
    assert_eq!(lookup(&slots, &kinds, Name::Soft { index: 0, logical: MAX_LOGICAL }), None);

    let (slots, _) = name_slots(&kinds, Some("soft:0,soft:0/1"));
    assert_eq!(canonical_name(&slots, 0, 1), "gpu:1", "not gpu:0/1");
    assert_eq!(canonical_name(&slots, 0, 2), "gpu:1/1");
}
