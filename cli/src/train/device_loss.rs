//! `--on-device-loss`: a run goes on from its checkpoint, on the devices that can be opened again.

use anygpu::Device;

use super::options::{Args, OnDeviceLoss};
use super::ranks::Ranks;
use super::source::Source;
use super::stop::Stop;
use super::trainer::Trainer;
use crate::devices;
use crate::failure::Failure;

/// The number of losses without a new checkpoint between them after which a run ends.
const IN_A_ROW: usize = 3;

/// The losses of devices in a run so far.
pub struct DeviceLosses<'a> {
    args: &'a Args,
    source: &'a Source,
    stop: &'a Stop,
    /// The steps of the checkpoint at the last loss, and the number of losses since it was written.
    last: Option<(u64, usize)>,
}

impl<'a> DeviceLosses<'a> {
    pub fn new(args: &'a Args, source: &'a Source, stop: &'a Stop) -> Self {
        DeviceLosses { args, source, stop, last: None }
    }

    /// Returns the run as it goes on after the loss of a device, and the number of its next epoch, from 1.
    ///
    /// # Errors
    /// [`Failure::DeviceLost`] with the message `lost` if the run is to stop then, or if devices are lost again and again; the
    /// errors of restoring the run.
    pub fn recover(&mut self, run: &Trainer, lost: String) -> Result<(Trainer, usize), Failure> {
        let mut devices = run.devices.clone();
        let mut message = lost;
        loop {
            if self.args.on_device_loss == OnDeviceLoss::Stop {
                return Err(Failure::DeviceLost(message));
            }
            let saved = run.saved();
            let losses = self.last.filter(|(steps, _)| *steps == saved).map_or(0, |(_, losses)| losses) + 1;
            self.last = Some((saved, losses));
            if losses > IN_A_ROW {
                return Err(Failure::DeviceLost(format!("{message}, for the {losses}th time after step {saved}")));
            }
            devices = opened_again(&devices);
            let from = if saved == 0 { "from its start".to_string() } else { format!("after step {saved}") };
            log::warn!("{message}: the run continues {from} on {}", devices::names(&devices));
            match self.begin(devices.clone()) {
                Err(Failure::DeviceLost(again)) => message = again,
                begun => return begun,
            }
        }
    }

    fn begin(&self, devices: Vec<Device>) -> Result<(Trainer, usize), Failure> {
        let mut trainer = Trainer::new(self.args, devices, self.source, self.stop.clone(), &Ranks::default())?;
        let epoch = trainer.resume()?;
        Ok((trainer, epoch))
    }
}

/// Returns the devices, each opened again if it is lost, without those that do not open; the CPU if none does.
fn opened_again(devices: &[Device]) -> Vec<Device> {
    let reopened =
        |device: &Device| device.reopen().map_err(|error| log::warn!("{error}: the run continues without it")).ok();
    let opened: Vec<Device> = devices.iter().filter_map(reopened).collect();
    if opened.is_empty() { vec![Device::cpu()] } else { opened }
}
