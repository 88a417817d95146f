//! The reductions of all elements to one: a tensor of rank 0.

use crate::error::Result;
use crate::ops::named;
use crate::tensor::Tensor;

/// Defines methods that reduce all dimensions, by the method that takes dimensions.
macro_rules! over_all {
    ($($(#[$doc:meta])* $name:ident => $method:ident($($argument:expr)?);)*) => {
        impl Tensor {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                #[doc = concat!("Same as [`Tensor::", stringify!($method), "`].")]
                pub fn $name(&self) -> Result<Tensor> {
                    named(stringify!($name), || self.$method(&self.all_dims(), $($argument,)? false))
                }
            )*
        }
    };
}

over_all! {
    /// Returns the sum of all elements, of rank 0.
    sum_all => sum();
    /// Returns the product of all elements, of rank 0.
    prod_all => prod();
    /// Returns the largest of all elements, of rank 0.
    max_all => max();
    /// Returns the smallest of all elements, of rank 0.
    min_all => min();
    /// Returns the mean of all elements, of rank 0.
    mean_all => mean();
    /// Returns the variance of all elements with a correction of 1, of rank 0.
    var_all => var(1.0);
    /// Returns the standard deviation of all elements with a correction of 1, of rank 0.
    std_all => std(1.0);
    /// Returns whether any element is not 0, as bool of rank 0.
    any_all => any();
    /// Returns whether no element is 0, as bool of rank 0.
    all_all => all();
}
