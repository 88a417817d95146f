//! Selects the cases that a device runs. Several software adapters share the cases of many operations.

use super::case::Case;
use crate::device::{Device, DeviceKind};

/// The most scalar operations of a case in a quick check.
pub(super) const QUICK: u64 = 50_000;

/// Returns the most scalar operations of a case that runs on every device of a kind.
fn budget(kind: DeviceKind) -> u64 {
    match kind {
        DeviceKind::Software => 30_000_000,
        DeviceKind::Cpu | DeviceKind::Discrete | DeviceKind::Integrated | DeviceKind::Virtual => u64::MAX,
    }
}

/// The part of the table that one device runs.
///
/// Of n software adapters that can run a case, the k-th runs the shared cases whose position in their family is k
/// modulo n. So each case runs on at least one adapter, whatever the names of the adapters are. Shared cases are
/// the cases above the budget, and the cases of variants that the adapters never choose themselves, since these
/// take long to compile there.
pub(super) struct Load {
    device: Device,
    thorough: bool,
    budget: u64,
    /// The machine's software adapters, for one of them; a second logical device of an adapter is not among them.
    adapters: Vec<Device>,
}

impl Load {
    /// Returns the load of a device. With `thorough`, no case is above the budget.
    pub fn of(device: &Device, thorough: bool) -> Load {
        let kind = device.info().kind;
        let budget = if thorough { u64::MAX } else { budget(kind) };
        let adapters = Device::all().into_iter().filter(|other| other.info().kind == kind).collect();
        Load { device: device.clone(), thorough, budget, adapters }
    }

    /// Returns whether the device runs the case, which is at `position` in its family.
    pub fn takes(&self, case: &Case, position: usize) -> bool {
        let on_demand = || self.is_software() && !self.thorough && case.is_on_demand(&self.device);
        if case.cost() <= self.budget && !on_demand() {
            return true;
        }
        let able: Vec<&Device> = match case.variant {
            None => self.adapters.iter().collect(),
            Some(_) => self.adapters.iter().filter(|adapter| case.runs_on(adapter)).collect(),
        };
        let place = able.iter().position(|&adapter| *adapter == self.device);
        place.is_some_and(|place| position % able.len() == place)
    }

    fn is_software(&self) -> bool {
        self.device.info().kind == DeviceKind::Software
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::case::dense;
    use crate::check::nd::uniform;

    fn case(operations: usize) -> Case {
        let input = dense(uniform(&[3], 0.0, 1.0, 1));
        Case::new("test", [input], |t| Ok(t[0].clone()), |x| x[0].clone()).no_gradient().operations(operations)
    }

    #[test]
    fn a_case_above_the_budget_runs_on_one_of_several_adapters() {
        // Logical devices of the host stand for adapters.
        let adapters: Vec<Device> = (0..3).map(|i| Device::new(&format!("cpu/{i}")).expect("the host")).collect();
        let of =
            |device: &Device| Load { device: device.clone(), thorough: false, budget: 100, adapters: adapters.clone() };
        let loads: Vec<Load> = adapters.iter().map(of).collect();
        for position in 0..7 {
            assert!(loads.iter().all(|load| load.takes(&case(100), position)));
            let takes: Vec<bool> = loads.iter().map(|load| load.takes(&case(101), position)).collect();
            assert_eq!(takes.iter().position(|takes| *takes), Some(position % 3), "{position}");
            assert_eq!(takes.iter().filter(|takes| **takes).count(), 1, "{position}");
        }
        let logical = of(&Device::new("cpu/5").expect("the host"));
        assert!(logical.takes(&case(100), 0) && !logical.takes(&case(101), 0));
    }

    #[test]
    fn the_host_runs_everything() {
        let load = Load::of(&Device::cpu(), false);
        assert!((0..5).all(|position| load.takes(&case(usize::MAX), position)));
    }

    #[test]
    fn a_gradient_costs_twice_its_value() {
        assert_eq!(case(0).cost(), 3);
        assert_eq!(case(50).cost(), 50);
        let input = dense(uniform(&[3], 0.0, 1.0, 1));
        assert_eq!(Case::new("test", [input], |t| Ok(t[0].clone()), |x| x[0].clone()).cost(), 9);
    }
}
