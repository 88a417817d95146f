//! The parameters of an optimiser and the number of their replicas.

use std::ops::Deref;

use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// The parameters that an optimiser updates: the parameters of one net, or of several equal replicas of it.
///
/// A `Vec<Tensor>` converts to the parameters of one net, so the result of
/// [`Module::parameters`](crate::nn::Module::parameters) is accepted.
/// [`DataParallel::parameters`](crate::DataParallel::parameters) returns the parameters of its net, which get the
/// gradients of all devices. For replicas that a program manages itself, use [`Parameters::replicated`]. `Parameters`
/// dereferences to a slice of tensors: the tensors of the first replica come first.
///
/// The optimiser updates every replica. Values that are equal for all replicas, such as the norm of the gradient or the
/// optimiser's state, are taken from the first replica. A state to be saved is taken from the first replica whose
/// device is not lost.
///
/// ```
/// use anygpu::nn::{Linear, Module};
/// use anygpu::optim::{Adam, Optimizer};
/// use anygpu::{DataParallel, Device};
///
/// let layer = Linear::new(3, 2)?;
/// let adam = Adam::new(layer.parameters(), 0.01);
/// assert_eq!((adam.parameters().len(), adam.parameters().num_replicas()), (2, 1));
///
/// let net = DataParallel::new(layer, &[Device::cpu()])?; // or several
/// let biases = net.parameters().filter(|parameter| parameter.rank() == 1);
/// assert_eq!(Adam::new(biases, 0.01).parameters()[0].shape(), [2]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Parameters {
    /// The parameters of all replicas, one replica after another.
    all: Vec<Tensor>,
    replicas: usize,
}

impl Parameters {
    /// Returns the parameters of equal replicas, each in the same order.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are no replicas, or if their numbers of parameters differ;
    /// [`Error::ShapeMismatch`] if parameters at the same position have different shapes.
    ///
    /// ```
    /// use anygpu::Tensor;
    /// use anygpu::optim::Parameters;
    ///
    /// let [a, b] = [Tensor::zeros([3], None)?, Tensor::zeros([3], None)?].map(|p| p.requires_grad());
    /// let parameters = Parameters::replicated(vec![vec![a], vec![b.clone()]])?;
    /// assert_eq!(parameters.num_replicas(), 2);
    /// assert!(Parameters::replicated(vec![vec![b], vec![]]).is_err());
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn replicated(replicas: Vec<Vec<Tensor>>) -> Result<Parameters> {
        let name = "Parameters";
        let first = replicas.first().ok_or_else(|| Error::argument(name, "needs at least one replica"))?;
        for other in &replicas[1..] {
            if other.len() != first.len() {
                let detail = format!("one replica has {} parameters, another {}", first.len(), other.len());
                return Err(Error::argument(name, detail));
            }
            if let Some((a, b)) = first.iter().zip(other).find(|(a, b)| a.shape() != b.shape()) {
                return Err(Error::shapes(name, a.shape(), b.shape(), "the parameters of replicas have equal shapes"));
            }
        }
        Ok(Parameters::of_replicas(replicas.iter().map(Vec::as_slice)))
    }

    /// Returns the parameters of replicas that are known to be equal.
    pub(crate) fn of_replicas<'a>(replicas: impl ExactSizeIterator<Item = &'a [Tensor]>) -> Parameters {
        Parameters { replicas: replicas.len().max(1), all: replicas.flatten().cloned().collect() }
    }

    /// Returns the number of replicas; 1 for a net without replicas.
    #[must_use]
    pub fn num_replicas(&self) -> usize {
        self.replicas
    }

    /// Returns the parameters of each replica, in the same order.
    #[must_use]
    pub fn replicas(&self) -> impl ExactSizeIterator<Item = &[Tensor]> {
        let each = self.all.len() / self.replicas;
        (0..self.replicas).map(move |i| &self.all[i * each..(i + 1) * each])
    }

    /// Returns the parameters of the first replica.
    #[must_use]
    pub fn first_replica(&self) -> &[Tensor] {
        &self.all[..self.all.len() / self.replicas]
    }

    /// Returns the parameters of the first replica whose devices are not lost, or of the first one if there is none.
    pub(crate) fn living_replica(&self) -> &[Tensor] {
        let lives = |replica: &&[Tensor]| {
            // One check per device, not per parameter.
            replica.chunk_by(|a, b| a.device() == b.device()).all(|part| !part[0].device().is_lost())
        };
        self.replicas().find(lives).unwrap_or(self.first_replica())
    }

    /// Returns the parameters of the first replica for which `keep` returns true, and the parameters at the same
    /// positions in the other replicas.
    ///
    /// Use it for an optimiser of a part of a net.
    #[must_use]
    pub fn filter(&self, mut keep: impl FnMut(&Tensor) -> bool) -> Parameters {
        let kept: Vec<bool> = self.first_replica().iter().map(&mut keep).collect();
        let of = |replica: &[Tensor]| -> Vec<Tensor> {
            replica.iter().zip(&kept).filter(|(_, kept)| **kept).map(|(parameter, _)| parameter.clone()).collect()
        };
        Parameters { all: self.replicas().flat_map(of).collect(), replicas: self.replicas }
    }

    /// Clears all gradients.
    pub fn zero_grad(&self) {
        self.all.iter().for_each(|parameter| parameter.set_grad(None));
    }
}

/// Dereferences to all parameters; the first replica comes first.
impl Deref for Parameters {
    type Target = [Tensor];

    fn deref(&self) -> &[Tensor] {
        &self.all
    }
}

impl IntoIterator for Parameters {
    type Item = Tensor;
    type IntoIter = std::vec::IntoIter<Tensor>;

    fn into_iter(self) -> Self::IntoIter {
        self.all.into_iter()
    }
}

impl<'a> IntoIterator for &'a Parameters {
    type Item = &'a Tensor;
    type IntoIter = std::slice::Iter<'a, Tensor>;

    fn into_iter(self) -> Self::IntoIter {
        self.all.iter()
    }
}

/// Returns the parameters of one net.
impl From<Vec<Tensor>> for Parameters {
    fn from(all: Vec<Tensor>) -> Parameters {
        Parameters { all, replicas: 1 }
    }
}

impl From<&[Tensor]> for Parameters {
    fn from(all: &[Tensor]) -> Parameters {
        all.to_vec().into()
    }
}

impl From<&Vec<Tensor>> for Parameters {
    fn from(all: &Vec<Tensor>) -> Parameters {
        all.clone().into()
    }
}

impl<const N: usize> From<[Tensor; N]> for Parameters {
    fn from(all: [Tensor; N]) -> Parameters {
        Vec::from(all).into()
    }
}

impl<const N: usize> From<&[Tensor; N]> for Parameters {
    fn from(all: &[Tensor; N]) -> Parameters {
        all.to_vec().into()
    }
}

impl From<&Parameters> for Parameters {
    fn from(parameters: &Parameters) -> Parameters {
        parameters.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(sizes: &[usize]) -> Vec<Tensor> {
        sizes.iter().map(|&size| Tensor::zeros([size], None).unwrap().requires_grad()).collect()
    }

    #[test]
    fn replicas_are_alike() {
        let parameters = Parameters::replicated(vec![leaves(&[2, 3]), leaves(&[2, 3])]).unwrap();
        assert_eq!((parameters.len(), parameters.num_replicas(), parameters.replicas().len()), (4, 2, 2));
        assert!(parameters.replicas().zip(parameters.chunks(2)).all(|(replica, two)| replica[1].is_same(&two[1])));
        let kept = parameters.filter(|parameter| parameter.elem_count() == 3);
        assert_eq!((kept.len(), kept.num_replicas()), (2, 2));
        assert!(kept[0].is_same(&parameters[1]) && kept[1].is_same(&parameters[3]));
        assert!(matches!(Parameters::replicated(vec![]), Err(Error::InvalidArgument { .. })));
        let shapes = Parameters::replicated(vec![leaves(&[2, 3]), leaves(&[3, 2])]);
        assert!(matches!(shapes, Err(Error::ShapeMismatch { .. })));
        let none = Parameters::from(Vec::new());
        assert_eq!((none.first_replica().len(), none.replicas().len()), (0, 1));
    }
}
