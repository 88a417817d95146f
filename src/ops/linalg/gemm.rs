//! Matrix products of strided matrices on the host, by the crate `gemm`.

/// The threads that a product on the host may use.
#[derive(Clone, Copy, PartialEq)]
pub(in crate::ops) enum Threads {
    One,
    All,
}

/// The types of which `gemm` multiplies matrices here.
pub(in crate::ops) trait Factor: From<u8> + Copy + 'static {}
impl Factor for f32 {}
impl Factor for f64 {}

/// A strided matrix on the host.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Matrix<'a, T = f32> {
    pub data: &'a [T],
    pub start: usize,
    pub strides: [usize; 2],
}

impl<'a, T> Matrix<'a, T> {
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
pub(in crate::ops) fn gemm<T: Factor>(
    out: &mut [T],
    a: Matrix<T>,
    b: Matrix<T>,
    [m, k, n]: [usize; 3],
    add: bool,
    threads: Threads,
) {
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
