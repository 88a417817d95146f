//! Matrix products of strided matrices on the host, by the crates of `gemm`.

use gemm_common::Parallelism;

/// The threads that a product on the host may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// The calling thread.
    One,
    /// All that are free.
    All,
}

/// The function of `gemm` that suits this processor: sizes m, n and k; the output, its strides (of columns, then of rows) and whether
/// it is added to; the two operands with their strides; factors of the output and of the product; which of the three are conjugated.
type Product<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    Parallelism,
);

/// The types of which `gemm` multiplies matrices here.
pub trait Factor: From<u8> + Copy + private::Product + 'static {}
impl Factor for f32 {}
impl Factor for f64 {}

/// No other type can be a [`Factor`]: there is a crate for each.
mod private {
    pub trait Product: Sized {
        fn product() -> super::Product<Self>;
    }

    impl Product for f32 {
        fn product() -> super::Product<f32> {
            gemm_f32::gemm::f32::get_gemm_fn()
        }
    }

    impl Product for f64 {
        fn product() -> super::Product<f64> {
            gemm_f64::gemm::f64::get_gemm_fn()
        }
    }
}

/// A strided matrix on the host.
#[derive(Clone, Copy)]
pub struct Matrix<'a, T = f32> {
    /// All elements.
    pub data: &'a [T],
    /// The place of the first element.
    pub start: usize,
    /// The distances between rows and between columns. A negative one wraps around.
    pub strides: [usize; 2],
}

impl<'a, T> Matrix<'a, T> {
    /// Returns the matrix of these elements.
    pub fn new(data: &'a [T], start: usize, strides: [usize; 2]) -> Self {
        Matrix { data, start, strides }
    }

    /// Returns the rows from `row` on.
    pub fn from(self, row: usize) -> Self {
        Matrix { start: self.start + row * self.strides[0], ..self }
    }

    /// Returns whether a `rows × columns` matrix lies within the data.
    fn holds(&self, rows: usize, columns: usize) -> bool {
        let last = self.start + (rows - 1) * self.strides[0] + (columns - 1) * self.strides[1];
        last < self.data.len()
    }
}

/// Computes `out [m, n] ← A [m, k] · B [k, n]`, or `out ← out + A · B` if `add`. `out` is row-major without gaps.
pub fn gemm<T: Factor>(out: &mut [T], a: Matrix<T>, b: Matrix<T>, [m, k, n]: [usize; 3], add: bool, threads: Threads) {
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        if !add {
            out.fill(T::from(0));
        }
        return;
    }
    assert!(out.len() >= m * n && a.holds(m, k) && b.holds(k, n), "a matrix reaches past its storage");
    let parallelism = if threads == Threads::All { Parallelism::Rayon(0) } else { Parallelism::None };
    let [ars, acs] = a.strides.map(|s| s as isize);
    let [brs, bcs] = b.strides.map(|s| s as isize);
    #[expect(unsafe_code, reason = "the crate's interface takes pointers; the assertion above keeps them in bounds")]
    // SAFETY: every element that the strides reach lies within its slice (asserted), and `out` is borrowed mutably.
    unsafe {
        // The kernels write columns. So this is the product of the transposed matrices, Bᵀ · Aᵀ, whose columns are the rows of `out`.
        T::product()(
            n,
            m,
            k,
            out.as_mut_ptr(),
            n as isize,
            1,
            add,
            b.data.as_ptr().add(b.start),
            brs,
            bcs,
            a.data.as_ptr().add(a.start),
            ars,
            acs,
            T::from(1),
            T::from(1),
            false,
            false,
            false,
            parallelism,
        );
    }
}
