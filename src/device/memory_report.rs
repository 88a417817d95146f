//! Who holds a device's memory. Each large tensor is counted for the method that made it and for the program's label.
//!
//! A tensor is counted in one account of its device, from its allocation to its drop. There are as many accounts as there
//! are labels and methods, and small tensors have none: what this costs is a lookup for each large tensor.
//!
//! All tensors of less than 1 MiB are reported as one sum.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::Device;
use super::memory::MemoryStats;
use crate::context::slot;
use crate::util::sync;
use crate::util::units::bytes;

/// Tensors of fewer bytes are not counted one by one.
const LARGE: u64 = 1 << 20;
/// The most accounts of a device before those that hold nothing are removed.
const MOST_ACCOUNTS: usize = 1024;
/// The method of tensors that no method with a name made.
const NO_METHOD: &str = "creation";

slot! {
    /// The label under which this thread's tensors are counted.
    LABEL: Option<Arc<str>> = None
}

thread_local! {
    static METHOD: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Runs `f`, and counts the large tensors that it allocates under a label, for [`Device::memory_report`].
///
/// The label also applies to the threads that work for this one, such as the threads of a
/// [`DataParallel`](crate::DataParallel). If `f` calls `memory_label` itself, the inner label counts.
///
/// ```
/// use anygpu::{Device, Tensor, memory_label};
///
/// let device = Device::cpu();
/// let replay = memory_label("replay buffer", || Tensor::zeros([1000, 1024], &device))?;
/// let report = device.memory_report();
/// let held = report.held.iter().find(|held| held.label.as_deref() == Some("replay buffer")).unwrap();
/// assert_eq!((held.tensors, held.method), (1, "zeros"));
/// assert!(held.bytes >= 4 * 1000 * 1024);
/// drop(replay);
/// assert!(device.memory_report().held.iter().all(|held| held.label.is_none()));
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn memory_label<T>(label: impl Into<String>, f: impl FnOnce() -> T) -> T {
    labelled(Some(label.into().into()), f)
}

/// Runs `f` with a label of this crate, unless the program has set one.
pub(crate) fn labelled_by_default<T>(label: &'static str, f: impl FnOnce() -> T) -> T {
    labelled(current_label().or_else(|| Some(label.into())), f)
}

/// Runs `f` with a label, or with none.
fn labelled<T>(label: Option<Arc<str>>, f: impl FnOnce() -> T) -> T {
    let _restore = LABEL.set(label);
    f()
}

/// Returns the label of this thread.
fn current_label() -> Option<Arc<str>> {
    LABEL.get()
}

/// Says which method this thread is in, or that it is in none. Returns the one before.
pub(crate) fn set_method(method: Option<&'static str>) -> Option<&'static str> {
    METHOD.replace(method)
}

/// The large tensors of one label and one method.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldMemory {
    /// The label of [`memory_label`]. The crate itself uses three: `parameters`, `gradients` and `optimizer state`.
    pub label: Option<String>,
    /// The method that allocated them.
    pub method: &'static str,
    /// The number of tensors. Views share the memory of one tensor.
    pub tensors: u64,
    /// The bytes that were allocated for them.
    pub bytes: u64,
}

/// `3 tensors of conv2d (gradients): 12.0 MiB`.
impl fmt::Display for HeldMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HeldMemory { label, method, tensors, bytes: size } = self;
        let s = if *tensors == 1 { "" } else { "s" };
        write!(f, "{tensors} tensor{s} of {method}")?;
        label.iter().try_for_each(|label| write!(f, " ({label})"))?;
        write!(f, ": {}", bytes(*size))
    }
}

/// The tensors that hold the memory of a device: the result of [`Device::memory_report`].
///
/// `Display` prints a table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryReport {
    /// The device's name.
    pub device: String,
    /// The counts of all its tensors.
    pub stats: MemoryStats,
    /// The tensors of at least 1 MiB, those with the most bytes first.
    pub held: Vec<HeldMemory>,
}

impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryStats { live, peak, reserved } = self.stats;
        let [live_text, peak, reserved] = [live, peak, reserved].map(bytes);
        writeln!(f, "{}: {live_text} held by tensors, {peak} at the peak, {reserved} reserved", self.device)?;
        self.held.iter().try_for_each(|held| writeln!(f, "  {held}"))?;
        let small = live.saturating_sub(self.held.iter().map(|held| held.bytes).sum());
        write!(f, "  tensors of less than {}: {}", bytes(LARGE), bytes(small))
    }
}

impl Device {
    /// Returns the large tensors that hold the memory of the device.
    ///
    /// They are grouped by the method that made them and by the program's [label](memory_label()).
    ///
    /// ```
    /// use anygpu::{Device, Tensor};
    ///
    /// let x = Tensor::zeros([1024, 1024], None)?;
    /// let y = x.matmul(&x)?;
    /// let report = Device::cpu().memory_report();
    /// let products: u64 = report.held.iter().filter(|held| held.method == "matmul").map(|held| held.bytes).sum();
    /// assert!(products >= 4 << 20);
    /// println!("{report}");
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    #[must_use]
    pub fn memory_report(&self) -> MemoryReport {
        MemoryReport { device: self.name().to_owned(), stats: self.memory(), held: self.held_memory() }
    }
}

/// The accounts of a device.
#[derive(Debug, Default)]
pub(crate) struct Accounts(Mutex<HashMap<Owner, Arc<Account>>>);

type Owner = (Option<Arc<str>>, &'static str);

#[derive(Debug, Default)]
struct Account {
    tensors: AtomicU64,
    bytes: AtomicU64,
}

/// Bytes in an account until it is dropped.
#[derive(Debug)]
pub(crate) struct Entry {
    account: Arc<Account>,
    bytes: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.account.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.account.tensors.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Accounts {
    /// Counts an allocation of this thread, if it is large.
    pub(crate) fn enter(&self, bytes: u64) -> Option<Entry> {
        if bytes < LARGE {
            return None;
        }
        let owner = (current_label(), METHOD.get().unwrap_or(NO_METHOD));
        let mut accounts = sync::lock(&self.0);
        if accounts.len() >= MOST_ACCOUNTS {
            accounts.retain(|_, account| Arc::strong_count(account) > 1);
        }
        let account = accounts.entry(owner).or_default().clone();
        drop(accounts);
        account.tensors.fetch_add(1, Ordering::Relaxed);
        account.bytes.fetch_add(bytes, Ordering::Relaxed);
        Some(Entry { account, bytes })
    }

    /// Returns what is held, the most bytes first.
    pub(crate) fn held(&self) -> Vec<HeldMemory> {
        let accounts = sync::lock(&self.0);
        let of = |((label, method), account): (&Owner, &Arc<Account>)| HeldMemory {
            label: label.as_deref().map(str::to_owned),
            method,
            tensors: account.tensors.load(Ordering::Relaxed),
            bytes: account.bytes.load(Ordering::Relaxed),
        };
        let mut held: Vec<_> = accounts.iter().map(of).filter(|held| held.tensors > 0).collect();
        held.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| (&a.label, a.method).cmp(&(&b.label, b.method))));
        held
    }

    /// Returns what holds the most, for errors.
    pub(crate) fn most(&self) -> Vec<String> {
        self.held().iter().take(3).map(ToString::to_string).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_count_until_their_entries_are_dropped() {
        let accounts = Accounts::default();
        assert!(accounts.enter(LARGE - 1).is_none());
        let enter = |bytes| accounts.enter(bytes).expect("large");
        let before = set_method(Some("conv2d"));
        let (a, b) = (enter(LARGE), memory_label("outer", || memory_label("inner", || enter(3 * LARGE))));
        set_method(before);
        let c = enter(2 * LARGE);
        let (one, three) = ("1 tensor of conv2d: 1.0 MiB", "1 tensor of conv2d (inner): 3.0 MiB");
        assert_eq!(accounts.most(), [three, "1 tensor of creation: 2.0 MiB", one]);
        drop((b, c));
        let d = {
            let before = set_method(Some("conv2d"));
            let d = enter(LARGE);
            set_method(before);
            d
        };
        assert_eq!(accounts.most(), ["2 tensors of conv2d: 2.0 MiB"]);
        drop((a, d));
        assert_eq!(accounts.held(), []);
        assert_eq!(current_label(), None);
    }

    #[test]
    fn accounts_of_forgotten_labels_are_removed() {
        let accounts = Accounts::default();
        let kept = memory_label("kept", || accounts.enter(LARGE));
        for i in 0..3 * MOST_ACCOUNTS {
            drop(memory_label(format!("label {i}"), || accounts.enter(LARGE)));
        }
        assert!(sync::lock(&accounts.0).len() <= MOST_ACCOUNTS);
        assert_eq!(accounts.held().len(), 1);
        drop(kept);
    }
}
