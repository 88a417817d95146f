//! Compares the arguments of a kernel with what its source declares.

use super::WgslKernel;
use super::output::{Output, Start};
use super::reflect::StorageBinding;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::checked_elem_count;
use crate::tensor::Tensor;

/// Describes a name that the kernel does not have.
pub(super) fn unknown(what: &str, name: &str, known: &[&str]) -> String {
    format!("it has no {what} '{name}': its {what}s are [{}]", known.join(", "))
}

/// Checks that each name is known and given once.
pub(super) fn check_names<T>(what: &str, given: &[(&str, T)], known: &[&str]) -> Result<(), String> {
    for (i, (name, _)) in given.iter().enumerate() {
        if !known.contains(name) {
            return Err(unknown(what, name, known));
        }
        if given[..i].iter().any(|(other, _)| other == name) {
            return Err(format!("{what} '{name}' is given twice"));
        }
    }
    Ok(())
}

impl WgslKernel {
    /// Checks arguments in the order of their bindings.
    pub(super) fn check_arguments(
        &self,
        device: &Device,
        inputs: &[&Tensor],
        outputs: &[Output],
        params: &[u32],
    ) -> Result<()> {
        let copied = outputs.iter().filter_map(|output| match output.start {
            Start::CopyOf(tensor) => Some(tensor),
            _ => None,
        });
        if let Some(stranger) = inputs.iter().copied().chain(copied).find(|tensor| tensor.device() != device) {
            let (left, right) = (device.to_string(), stranger.device().to_string());
            return Err(Error::DeviceMismatch { op: "WgslKernel::run", left, right });
        }
        let words = self.reflection.params.as_ref().map_or(0, |uniform| uniform.words);
        if params.len() != words {
            return Err(self.error(format!("its uniform has {words} words, {} params were given", params.len())));
        }
        let given_inputs = inputs.iter().map(|input| (input.dtype(), input.elem_count()));
        let count = |output: &Output| checked_elem_count("WgslKernel::run", output.shape.dims());
        let given_outputs = outputs.iter().map(|output| Ok((output.dtype, count(output)?)));
        self.check_side("input", false, given_inputs.collect())?;
        self.check_side("output", true, given_outputs.collect::<Result<_>>()?)?;
        let written = self.reflection.bindings.iter().filter(|arg| arg.written);
        match written.zip(outputs).find(|(arg, output)| arg.read && matches!(output.start, Start::Unspecified)) {
            Some((StorageBinding { name, .. }, _)) => Err(self.error(format!(
                "it reads the output '{name}', which needs starting elements: pass Output::copy_of(&tensor), or \
                 Output::zeros(shape, dtype)"
            ))),
            None => Ok(()),
        }
    }

    /// Compares the bindings of one direction with the tensors given for them.
    fn check_side(&self, side: &str, written: bool, given: Vec<(DType, usize)>) -> Result<()> {
        let args: Vec<&StorageBinding> = self.reflection.bindings.iter().filter(|arg| arg.written == written).collect();
        if args.len() != given.len() {
            let names: Vec<_> = args.iter().map(|arg| &*arg.name).collect();
            let (takes, got) = (names.join(", "), given.len());
            return Err(self.error(format!("it has the {side} bindings [{takes}], {got} {side}s were given")));
        }
        for (arg, (dtype, len)) in args.iter().zip(given) {
            if arg.dtype != dtype {
                return Err(self.error(format!("{side} '{}' is of {}, got a tensor of {dtype}", arg.name, arg.dtype)));
            }
            if len == 0 {
                return Err(self.error(format!("{side} '{}' got an empty tensor, which cannot be bound", arg.name)));
            }
            let (name, head, width) = (&arg.name, arg.head, arg.width);
            let fits = match width {
                0 => len == head,
                _ => len > head && len >= arg.least && (len - head).is_multiple_of(width),
            };
            if fits {
                continue;
            }
            let takes = match (head, width) {
                (_, 0) => format!("{head} numbers"),
                (0, _) => format!("{width} numbers for each element"),
                _ => format!("{head} numbers and then {width} for each element, {} at least", arg.least),
            };
            return Err(self.error(format!("{side} '{name}' takes {takes}, got {len}")));
        }
        Ok(())
    }

    /// Returns the arguments of one direction in the order of their bindings.
    pub(super) fn in_order<'g, T>(&self, what: &str, written: bool, given: &'g [(&str, T)]) -> Result<Vec<&'g T>> {
        let bindings = self.reflection.bindings.iter().filter(|arg| arg.written == written);
        let names: Vec<&str> = bindings.map(|arg| &*arg.name).collect();
        check_names(what, given, &names).map_err(|wrong| self.error(wrong))?;
        let argument = |name: &&str| {
            let found = given.iter().find(|(given, _)| given == name);
            let missing = || self.error(format!("{what} '{name}' is not given: use .{what}(\"{name}\", …)"));
            found.map(|(_, argument)| argument).ok_or_else(missing)
        };
        names.iter().map(argument).collect()
    }
}
