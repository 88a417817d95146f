//! Systems of equations, determinants and factorisations of matrices.

use super::prelude::*;

pub(super) fn cases() -> Vec<Case> {
    [systems(), inverses(), determinants(), triangles(), orthogonal(), singular_values()]
        .into_iter()
        .flatten()
        .collect()
}

fn x(shape: &[usize]) -> Nd {
    signed(shape, 301)
}

/// Matrices with a large diagonal, which are far from singular ones.
fn regular(shape: &[usize]) -> Nd {
    let x = uniform(shape, -1.0, 1.0, 302);
    let (i, j) = (shape.len() - 2, shape.len() - 1);
    let far = shape[j] as f64 / 2.0 + 0.5;
    Nd::from_fn(shape, |index| x.at(index) + if index[i] == index[j] { far } else { 0.0 })
}

/// Replaces each matrix by `f` of it, with its rows and columns, whose result has another shape.
fn each(x: &Nd, shape: impl Fn(usize, usize) -> Vec<usize>, f: impl Fn(&[f64], usize, usize) -> Vec<f64>) -> Nd {
    let (batch, sizes) = x.shape.split_at(x.shape.len() - 2);
    let (m, n) = (sizes[0], sizes[1]);
    let shape = [batch, &shape(m, n)].concat();
    let count = batch.iter().product::<usize>();
    let part = m * n;
    Nd::new(&shape, (0..count).flat_map(|i| f(&x.data[i * part..][..part], m, n)).collect())
}

/// Solves A X = B by elimination, with B next to A.
fn eliminate(a: &[f64], b: &[f64], n: usize) -> Vec<f64> {
    let k = b.len() / n;
    let mut rows: Vec<Vec<f64>> = (0..n).map(|i| [&a[i * n..][..n], &b[i * k..][..k]].concat()).collect();
    for c in 0..n {
        let pivot = (c..n).fold(c, |best, r| if rows[r][c].abs() > rows[best][c].abs() { r } else { best });
        rows.swap(c, pivot);
        let row = rows[c].clone();
        for (_, other) in rows.iter_mut().enumerate().filter(|(r, _)| *r != c) {
            let factor = other[c] / row[c];
            other.iter_mut().zip(&row).for_each(|(x, y)| *x -= factor * y);
        }
    }
    (0..n).flat_map(|i| (0..k).map(move |j| (i, j))).map(|(i, j)| rows[i][n + j] / rows[i][i]).collect()
}

fn solve(a: &Nd, b: &Nd) -> Nd {
    let (n, k) = (b.shape[b.shape.len() - 2], b.shape[b.shape.len() - 1]);
    let batch = |x: &Nd| Nd::from_fn(&x.shape[..x.shape.len() - 2], |_| 0.0);
    let joint = oracle::binary(&batch(a), &batch(b), |_, _| 0.0).shape;
    let a = oracle::broadcast(a, &[&joint[..], &[n, n]].concat());
    let b = oracle::broadcast(b, &[&joint[..], &[n, k]].concat());
    let parts = a.data.chunks(n * n).zip(b.data.chunks(n * k));
    Nd::new(&b.shape, parts.flat_map(|(a, b)| eliminate(a, b, n)).collect())
}

fn systems() -> Vec<Case> {
    let mut cases = Vec::new();
    for (a, b) in [
        (dense(regular(&[1, 1])), dense(x(&[1, 1]))),
        (dense(regular(&[5, 5])), dense(x(&[5, 3]))),
        (transposed(regular(&[7, 7]), 0, 1), narrowed(x(&[7, 2]), 1)),
        (narrowed(regular(&[2, 3, 3]), 2), transposed(x(&[2, 3, 4]), 1, 2)),
        (dense(regular(&[3, 3])), dense(x(&[2, 2, 3, 2]))),
        (dense(regular(&[2, 1, 3, 3])), dense(x(&[4, 3, 1]))),
        (broadcast(regular(&[3, 3]), &[2, 3, 3]), broadcast(x(&[3, 1]), &[3, 2])),
        (dense(regular(&[0, 3, 3])), dense(x(&[0, 3, 2]))),
    ] {
        cases.push(Case::new("solve", [a, b], |t| t[0].solve(&t[1]), |x| solve(x[0], x[1])));
    }
    for (a, b) in [(regular(&[6, 6]), x(&[6])), (regular(&[2, 3, 3]), x(&[2, 3])), (regular(&[2, 3, 3]), x(&[3]))] {
        let oracle = |x: &[&Nd]| {
            let columns = Nd::new(&[&x[1].shape[..], &[1]].concat(), x[1].data.clone());
            let mut out = solve(x[0], &columns);
            out.shape.pop();
            out
        };
        cases.push(Case::new("solve vectors", [dense(a), dense(b)], |t| t[0].solve(&t[1]), oracle));
    }
    cases
}

fn inverses() -> Vec<Case> {
    let inverse = |x: &[&Nd]| {
        let n = x[0].shape[x[0].shape.len() - 1];
        let identity = Nd::from_fn(&[n, n], |i| f64::from(u8::from(i[0] == i[1])));
        solve(x[0], &oracle::broadcast(&identity, &x[0].shape))
    };
    let inputs = [
        dense(regular(&[1, 1])),
        dense(regular(&[7, 7])),
        transposed(regular(&[4, 4]), 0, 1),
        narrowed(regular(&[2, 3, 3, 3]), 2),
        broadcast(regular(&[3, 3]), &[2, 3, 3]),
    ];
    inputs.into_iter().map(|a| Case::new("inv", [a], |t| t[0].inv(), inverse)).collect()
}

/// The determinant by its first row.
fn determinant(a: &[f64], n: usize) -> f64 {
    let minor = |c: usize| -> Vec<f64> { (n..n * n).filter(|at| at % n != c).map(|at| a[at]).collect() };
    let sign = |c: usize| if c.is_multiple_of(2) { 1.0 } else { -1.0 };
    if n == 0 { 1.0 } else { (0..n).map(|c| sign(c) * a[c] * determinant(&minor(c), n - 1)).sum() }
}

fn determinants() -> Vec<Case> {
    let det = |x: &[&Nd]| each(x[0], |_, _| vec![], |a, n, _| vec![determinant(a, n)]);
    // Of rank 2 and 1: their cofactors are not 0, and 0.
    let singular = Nd::new(
        &[2, 3, 3],
        [[1.0, 2.0, 3.0, 2.0, 4.0, 6.0, 0.5, -1.0, 1.0], [1.0, 2.0, 3.0, 2.0, 4.0, 6.0, -1.0, -2.0, -3.0]].concat(),
    );
    let mut cases = Vec::new();
    for a in [
        dense(regular(&[1, 1])),
        dense(regular(&[5, 5])),
        transposed(x(&[4, 4]), 0, 1),
        narrowed(x(&[2, 3, 3, 3]), 1),
        broadcast(x(&[3, 3]), &[2, 3, 3]),
        dense(Nd::new(&[1, 1], vec![0.0])),
        dense(Nd::new(&[2, 0, 0], vec![])),
    ] {
        cases.push(Case::new("det", [a], |t| t[0].det(), det));
    }
    cases.push(Case::new("det of singular matrices", [dense(singular)], |t| t[0].det(), det));
    let negative = |shape: &[usize]| regular(shape).map(|v| -v);
    for a in [dense(regular(&[5, 5])), transposed(negative(&[3, 3]), 0, 1), narrowed(negative(&[2, 2, 3, 3]), 3)] {
        let log = |x: &[&Nd]| each(x[0], |_, _| vec![], |a, n, _| vec![determinant(a, n).abs().ln()]);
        let sign = |x: &[&Nd]| each(x[0], |_, _| vec![], |a, n, _| vec![determinant(a, n).signum()]);
        cases.push(Case::new("slogdet", [a.clone()], |t| Ok(t[0].slogdet()?.1), log));
        cases.push(Case::new("slogdet sign", [a], |t| Ok(t[0].slogdet()?.0), sign).exact().no_gradient());
    }
    cases
}

fn triangle(a: &[f64], n: usize, _: usize) -> Vec<f64> {
    let mut l = vec![0.0; n * n];
    for i in 0..n {
        for j in 0..=i {
            let rest = a[i * n + j] - (0..j).map(|c| l[i * n + c] * l[j * n + c]).sum::<f64>();
            l[i * n + j] = if i == j { rest.sqrt() } else { rest / l[j * n + j] };
        }
    }
    l
}

/// `A Aᵀ + 1`.
fn positive(a: &Nd) -> Nd {
    let rank = a.shape.len();
    let product = oracle::matmul(a, &oracle::transpose(a, rank - 2, rank - 1));
    Nd::from_fn(&product.shape, |i| product.at(i) + f64::from(u8::from(i[rank - 2] == i[rank - 1])))
}

fn triangles() -> Vec<Case> {
    let lower = |x: &[&Nd]| each(x[0], |m, n| vec![m, n], triangle);
    let mut cases = Vec::new();
    for a in [
        transposed(positive(&x(&[5, 5])), 0, 1),
        narrowed(positive(&x(&[2, 3, 3])), 2),
        broadcast(positive(&x(&[3, 3])), &[2, 3, 3]),
    ] {
        // Its gradient is the gradient of a change on both sides of the diagonal.
        cases.push(Case::new("cholesky", [a], |t| t[0].cholesky(), lower).no_gradient());
    }
    for a in [dense(x(&[1, 1])), dense(x(&[6, 6])), dense(x(&[2, 3, 3]))] {
        let op = |t: &[Tensor]| {
            let n = t[0].shape()[t[0].rank() - 1];
            t[0].matmul(&t[0].transpose(-1, -2)?)?.add(&Tensor::eye(n, t[0].device())?)?.cholesky()
        };
        cases.push(Case::new("cholesky of products", [a], op, move |x| lower(&[&positive(x[0])])));
    }
    cases
}

/// Orthonormal columns by Gram and Schmidt, of the first k columns of a matrix, one after the other.
fn basis(a: &[f64], m: usize, n: usize) -> Vec<Vec<f64>> {
    let mut all: Vec<Vec<f64>> = Vec::new();
    for c in 0..m.min(n) {
        let mut column: Vec<f64> = (0..m).map(|i| a[i * n + c]).collect();
        for _ in 0..2 {
            for other in &all {
                let along: f64 = other.iter().zip(&column).map(|(a, b)| a * b).sum();
                column.iter_mut().zip(other).for_each(|(x, y)| *x -= along * y);
            }
        }
        let length = column.iter().map(|x| x * x).sum::<f64>().sqrt();
        all.push(column.iter().map(|x| x / length).collect());
    }
    all
}

/// Q, and R, of which the diagonal is positive.
fn gram_schmidt(a: &[f64], m: usize, n: usize) -> [Vec<f64>; 2] {
    let (basis, k) = (basis(a, m, n), m.min(n));
    let q = (0..m).flat_map(|i| (0..k).map(move |c| (i, c))).map(|(i, c)| basis[c][i]).collect();
    let along = |c: usize, j: usize| (0..m).map(|i| basis[c][i] * a[i * n + j]).sum();
    let r = (0..k).flat_map(|c| (0..n).map(move |j| (c, j))).map(|(c, j)| if c <= j { along(c, j) } else { 0.0 });
    [q, r.collect()]
}

/// The factors of an op, where the diagonal of R is positive, as in the oracle.
fn normed(x: &Tensor) -> Result<[Tensor; 2]> {
    let (q, r) = x.qr()?;
    let sign = r.detach().diagonal(0, -2, -1)?.sign()?;
    Ok([q.mul(&sign.unsqueeze(-2)?)?, r.mul(&sign.unsqueeze(-1)?)?])
}

/// Matrices of every shape, in several layouts.
fn matrices(make: fn(&[usize]) -> Nd) -> [Input; 6] {
    [
        dense(make(&[1, 1])),
        dense(make(&[5, 5])),
        transposed(make(&[6, 3]), 0, 1),
        dense(make(&[3, 5])),
        narrowed(make(&[2, 4, 3]), 1),
        broadcast(make(&[2, 3]), &[2, 2, 3]),
    ]
}

fn orthogonal() -> Vec<Case> {
    let mut cases = Vec::new();
    for a in matrices(regular) {
        let q = |x: &[&Nd]| each(x[0], |m, n| vec![m, m.min(n)], |a, m, n| gram_schmidt(a, m, n)[0].clone());
        let r = |x: &[&Nd]| each(x[0], |m, n| vec![m.min(n), n], |a, m, n| gram_schmidt(a, m, n)[1].clone());
        cases.push(Case::new("qr Q", [a.clone()], |t| Ok(normed(&t[0])?[0].clone()), q));
        cases.push(Case::new("qr R", [a], |t| Ok(normed(&t[0])?[1].clone()), r));
    }
    cases
}

/// The square roots of the eigenvalues of the smaller one of `A Aᵀ` and `Aᵀ A`, by Jacobi's rotations.
fn roots(a: &[f64], m: usize, n: usize) -> Vec<f64> {
    let k = m.min(n);
    let element = |i: usize, j: usize| if m < n { a[i * n + j] } else { a[j * n + i] };
    let mut g: Vec<f64> =
        (0..k * k).map(|at| (0..m.max(n)).map(|c| element(at / k, c) * element(at % k, c)).sum()).collect();
    for _ in 0..50 {
        for p in 0..k {
            for q in p + 1..k {
                if g[p * k + q] == 0.0 {
                    continue;
                }
                let angle = 0.5 * (2.0 * g[p * k + q]).atan2(g[q * k + q] - g[p * k + p]);
                let (sin, cos) = angle.sin_cos();
                for i in 0..k {
                    let (a, b) = (g[i * k + p], g[i * k + q]);
                    (g[i * k + p], g[i * k + q]) = (cos * a - sin * b, sin * a + cos * b);
                }
                for i in 0..k {
                    let (a, b) = (g[p * k + i], g[q * k + i]);
                    (g[p * k + i], g[q * k + i]) = (cos * a - sin * b, sin * a + cos * b);
                }
            }
        }
    }
    let mut roots: Vec<f64> = (0..k).map(|i| g[i * k + i].max(0.0).sqrt()).collect();
    roots.sort_by(|a, b| b.total_cmp(a));
    roots
}

/// `U Vᵀ`, the nearest orthonormal matrix. For a square matrix, by Newton's iteration `X ← ½ (X + X⁻ᵀ)`.
fn nearest(a: &[f64], m: usize, n: usize) -> Vec<f64> {
    let turn = |a: &[f64], m: usize, n: usize| -> Vec<f64> { (0..m * n).map(|at| a[at % m * n + at / m]).collect() };
    if m < n {
        return turn(&nearest(&turn(a, m, n), n, m), n, m);
    }
    let [q, mut x] = gram_schmidt(a, m, n);
    let identity: Vec<f64> = (0..n * n).map(|at| f64::from(u8::from(at % (n + 1) == 0))).collect();
    for _ in 0..40 {
        let other = turn(&eliminate(&x, &identity, n), n, n);
        x.iter_mut().zip(other).for_each(|(x, y)| *x = 0.5 * (*x + y));
    }
    oracle::matmul(&Nd::new(&[m, n], q), &Nd::new(&[n, n], x)).data
}

fn singular_values() -> Vec<Case> {
    let mut cases = Vec::new();
    for a in matrices(x) {
        let values = |x: &[&Nd]| each(x[0], |m, n| vec![m.min(n)], roots);
        cases.push(Case::new("svd values", [a.clone()], |t| Ok(t[0].svd()?.1), values));
        let polar = |t: &[Tensor]| {
            let (u, _, vt) = t[0].svd()?;
            u.matmul(&vt)
        };
        cases.push(Case::new("svd vectors", [a], polar, |x| each(x[0], |m, n| vec![m, n], nearest)));
    }
    cases
}
