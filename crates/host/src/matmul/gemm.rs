//! Matrix products of strided matrices on the host, by the crate `gemm`.

/// The threads that a product on the host may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// The calling thread.
    One,
    /// All that are free.
    All,
}

/// The types of which `gemm` multiplies matrices here.
pub trait Factor: From<u8> + Copy + 'static {}
impl Factor for f32 {}
impl Factor for f64 {}

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
    // In a browser, the crate does not look for vectors: the build says whether there are any. It keeps what is set at its first call.
    if cfg!(target_feature = "simd128") {
        gemm::set_wasm_simd128(true);
    }
    let parallelism = if threads == Threads::All { gemm::Parallelism::Rayon(0) } else { gemm::Parallelism::None };
    let [ars, acs] = a.strides.map(|s| s as isize);
    let [brs, bcs] = b.strides.map(|s| s as isize);
    #[expect(unsafe_code, reason = "the crate's interface takes pointers; the assertion above keeps them in bounds")]
    // SAFETY: every element that the strides reach lies within its slice (asserted), and `out` is borrowed mutably.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            add,
            a.data.as_ptr().add(a.start),
            acs,
            ars,
            b.data.as_ptr().add(b.start),
            bcs,
            brs,
            T::from(1),
            T::from(1),
            false,
            false,
            false,
            parallelism,
        );
    }
}
