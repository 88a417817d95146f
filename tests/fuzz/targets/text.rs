//! Texts: kernels, equations, indices, names of devices.

use anygpu::kernel::WgslKernel;
use anygpu::{Device, Index, NewAxis, Tensor};

/// A kernel's source. It is parsed, validated and reflected; no adapter compiles it, since a driver's faults are not this
/// crate's.
pub fn wgsl(bytes: &[u8]) {
    let source = String::from_utf8_lossy(bytes);
    let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let entries: Vec<String> = source.split("fn ").skip(1).map(name).take(3).collect();
    if let Ok(found) = WgslKernel::entry_points(&source) {
        assert!(found.iter().all(|entry| source.contains(entry.as_str())), "{found:?}");
    }
    if let (Some(entry), Some(constant)) = (entries.first(), source.split("override ").nth(1).map(name)) {
        let _ = WgslKernel::with_overrides(&source, entry, &[(&constant, 2.0)]).is_ok();
    }
    for entry in entries.iter().map(String::as_str).chain(["main"]) {
        if let Err(error) = WgslKernel::new(&source, entry) {
            assert!(error.to_string().starts_with("kernel "), "{error}");
        }
    }
}

/// An equation, and below it a line for each operand, with a byte for each of its sizes.
pub fn einsum(bytes: &[u8]) {
    let mut lines = bytes.split(|&byte| byte == b'\n');
    let equation = String::from_utf8_lossy(lines.next().unwrap_or_default());
    let shapes: Vec<Vec<usize>> =
        lines.take(5).map(|line| line.iter().map(|size| usize::from(size % 4)).collect()).collect();
    let elements = shapes.iter().flatten().try_fold(1usize, |product, &size| product.checked_mul(size.max(1)));
    if elements.is_none_or(|elements| elements > 1 << 14) {
        return;
    }
    let operands: Vec<Tensor> = shapes.iter().map(|shape| Tensor::full(shape, 0.5f32, None).expect("small")).collect();
    if let Ok(result) = Tensor::einsum(&equation, &operands.iter().collect::<Vec<_>>()) {
        assert_eq!(result.to_vec::<f32>().map(|values| values.len()), Ok(result.elem_count()));
    }
}

/// Takes bytes from the front.
pub struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    pub fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// A number, mostly small.
    fn number(&mut self) -> Option<i64> {
        Some(match self.byte()? {
            byte @ 0..=239 => i64::from(byte % 12) - 4,
            240..=247 => i64::from_le_bytes(std::array::from_fn(|_| self.byte().unwrap_or(0))),
            248..=251 => i64::MAX,
            _ => i64::MIN,
        })
    }

    fn index(&mut self) -> Option<Index> {
        let kind = self.byte()?;
        let step = |bytes: &mut Self| Some(bytes.number()? as usize);
        Some(match kind % 7 {
            0 => Index::At(self.number()?),
            1 => NewAxis.into(),
            2 => Index::Ellipsis,
            3 => Index::from(..).step_by(step(self)?),
            4 => Index::Slice { start: Some(self.number()?), end: None, step: step(self)? },
            5 => Index::Slice { start: None, end: Some(self.number()?), step: 1 },
            _ => Index::Slice { start: Some(self.number()?), end: Some(self.number()?), step: step(self)? },
        })
    }
}

/// A shape, then indices and views of a tensor of that shape. Each view that is accepted can be read.
pub fn index(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let rank = usize::from(bytes.byte().unwrap_or(0) % 5);
    let shape: Vec<usize> = (0..rank).map(|_| usize::from(bytes.byte().unwrap_or(1) % 5)).collect();
    let mut x = Tensor::full(shape, 1.0f32, None).expect("small");
    while let Some(kind) = bytes.byte() {
        let (Some(a), Some(b), Some(c)) = (bytes.number(), bytes.number(), bytes.number()) else { break };
        let [ua, ub, uc] = [a, b, c].map(|n| n as usize);
        let view = match kind % 10 {
            0 => x.reshape([ua, ub, uc]),
            1 => x.transpose(a, b),
            2 => x.narrow(a, ub, uc),
            3 => x.permute([a, b, c]),
            4 => x.broadcast_to([&[ua % 4][..], x.shape()].concat()),
            5 => x.slice(a, ub, uc, 2),
            6 => x.diagonal(a, b, c),
            7 => x.unsqueeze(a).and_then(|x| x.squeeze(b)),
            8 => x.roll(a, b),
            _ => {
                let list: Vec<Index> = std::iter::from_fn(|| bytes.index()).take(ua % 6).collect();
                x.i(list)
            }
        };
        if let Ok(view) = view
            && view.elem_count() <= 1 << 12
            && view.rank() <= 8
        {
            assert_eq!(view.to_vec::<f32>(), Ok(vec![1.0; view.elem_count()]));
            x = view;
        }
    }
}

/// A device has the name by which it is found, and a list of names is one of devices.
pub fn device_name(bytes: &[u8]) {
    let name = String::from_utf8_lossy(bytes);
    // A device that takes as long as its name says is no fault.
    let slow = name.to_lowercase();
    let mut values =
        slow.split("slow=").skip(1).map(|rest| rest.split(['&', ',']).next().unwrap_or(rest).parse::<u64>());
    if values.any(|value| value.is_ok_and(|millis| millis > 9)) {
        return;
    }
    match Device::new(&name) {
        Ok(device) => assert_eq!(Device::new(device.name()).as_ref().map(Device::name), Ok(device.name())),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match Device::list(&name) {
        Ok(devices) => assert!(!devices.is_empty()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
