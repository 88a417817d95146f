//! The devices of the machine in menus, and which of them is the window's.

use std::sync::{Arc, OnceLock};

use anygpu::{Device, DeviceKind, wgpu};
use eframe::{egui, egui_wgpu};

/// The faults of the window's device that no call returns: the first message of each kind.
#[derive(Default)]
pub struct Faults {
    /// A command that wgpu refused.
    pub refused: OnceLock<String>,
    /// The loss of the device. Then the window cannot be drawn any more.
    pub lost: OnceLock<String>,
}

/// Returns how eframe opens its device: on the fastest kind of adapter that can draw windows, with everything that
/// the adapter can do. By default it asks for little, and more limits let more of anygpu's kernels run.
///
/// The environment variable `WGPU_ADAPTER_NAME` chooses an adapter by a part of its name or of its driver's version.
pub fn setup() -> egui_wgpu::WgpuSetupCreateNew {
    let wanted = wgpu::Features::SHADER_F16 | wgpu::Features::SUBGROUP | wgpu::Features::SUBGROUP_BARRIER;
    egui_wgpu::WgpuSetupCreateNew {
        device_descriptor: Arc::new(move |adapter| wgpu::DeviceDescriptor {
            label: Some("window"),
            required_features: adapter.features() & wanted,
            required_limits: adapter.limits(),
            ..Default::default()
        }),
        native_adapter_selector: Some(Arc::new(select)),
        ..egui_wgpu::WgpuSetupCreateNew::without_display_handle()
    }
}

/// Returns the first adapter that can draw on the surface, GPUs before software adapters.
///
/// Adapters are asked one after another until one can. SwiftShader is the last: Chrome's build of it ends the
/// process with a segmentation fault when it is asked about a window of X11.
fn select(adapters: &[wgpu::Adapter], surface: Option<&wgpu::Surface<'_>>) -> Result<wgpu::Adapter, String> {
    let wanted = std::env::var("WGPU_ADAPTER_NAME").unwrap_or_default().to_lowercase();
    let mut adapters: Vec<(wgpu::AdapterInfo, &wgpu::Adapter)> =
        adapters.iter().map(|adapter| (adapter.get_info(), adapter)).collect();
    adapters.retain(|(info, _)| format!("{} {}", info.name, info.driver_info).to_lowercase().contains(&wanted));
    adapters.sort_by_key(|(info, _)| match info.device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu | wgpu::DeviceType::Other => 2,
        wgpu::DeviceType::Cpu if !info.name.contains("SwiftShader") => 3,
        wgpu::DeviceType::Cpu => 4,
    });
    let draws = |adapter: &&wgpu::Adapter| surface.is_none_or(|surface| adapter.is_surface_supported(surface));
    let found = adapters.into_iter().map(|(_, adapter)| adapter).find(draws);
    found.cloned().ok_or_else(|| "there is no adapter that can draw a window: install a graphics driver".into())
}

/// Returns the faults of the window's device, to which later ones are added. Without these handlers, wgpu panics. They
/// must not call anygpu.
pub fn faults(device: &wgpu::Device, context: &egui::Context) -> Arc<Faults> {
    let faults = Arc::new(Faults::default());
    let (refused, lost, context) = (faults.clone(), faults.clone(), context.clone());
    device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
        refused.refused.set(error.to_string()).ok();
    }));
    device.set_device_lost_callback(move |reason, message| {
        // The end of the program destroys the device too.
        if reason != wgpu::DeviceLostReason::Destroyed {
            lost.lost.set(format!("the device that draws the window is lost: {message}")).ok();
            context.request_repaint();
        }
    });
    faults
}

/// Returns the devices of the machine, after the devices of `others` that are not among them.
pub fn with<'a>(others: impl IntoIterator<Item = &'a Device>) -> Vec<Device> {
    let all = Device::all();
    let others = others.into_iter().filter(|device| !all.contains(device)).cloned();
    others.chain(all.iter().cloned()).collect()
}

/// Returns the text of a device in a menu.
pub fn label(device: &Device) -> String {
    let info = device.info();
    let note = if info.name.starts_with("wgpu:") { ", the window's own" } else { "" };
    format!("{}: {} ({}{note})", info.name, info.adapter, info.api)
}

/// Returns the device that trains if the user names none: a GPU that does not draw the window, or `cpu`.
pub fn for_training(window: Option<&Device>) -> Device {
    let draws = |device: &Device| {
        window.is_some_and(|window| {
            let (a, b) = (device.info(), window.info());
            (&a.adapter, &a.pci_bus_id) == (&b.adapter, &b.pci_bus_id)
        })
    };
    let all = Device::all();
    let other = all.iter().find(|device| device.info().kind < DeviceKind::Software && !draws(device));
    other.cloned().unwrap_or_default()
}

/// Shows a menu of the devices. Returns the one that was chosen now, also if it was chosen before.
pub fn menu(ui: &mut egui::Ui, chosen: &Device, window: Option<&Device>) -> Option<Device> {
    let width = ui.available_width() - ui.spacing().item_spacing.x;
    let menu = egui::ComboBox::from_id_salt("device").width(width).truncate().selected_text(label(chosen));
    let list = |ui: &mut egui::Ui| {
        let devices = with(window.into_iter().chain([chosen]));
        devices.into_iter().find(|device| ui.selectable_label(device == chosen, label(device)).clicked())
    };
    menu.show_ui(ui, list).inner.flatten()
}
