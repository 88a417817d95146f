//! NumPy's files: those that NumPy wrote (`fuzz/corpus/npy`), those of this crate, and damaged ones.

use std::fs;
use std::path::{Path, PathBuf};

use anygpu::{DType, Error, Result, Tensor, narrow_64_bits, npy};
use half::{bf16, f16};

use crate::common::devices_in_turn;

fn numpys(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/npy").join(name)
}

/// A file of version 1, as NumPy writes it.
fn file(descr: &str, fortran: bool, shape: &str, data: &[u8]) -> Vec<u8> {
    let order = if fortran { "True" } else { "False" };
    let header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n");
    [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), data].concat()
}

fn detail<T>(result: Result<T>) -> String {
    match result {
        Err(Error::Data { detail, .. }) => detail,
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("no error"),
    }
}

#[test]
fn files_of_numpy_are_read() -> Result<()> {
    for device in devices_in_turn() {
        let floats = Tensor::from_npy(numpys("floats.npy"), &device)?;
        assert_eq!(floats.to_vec2::<f32>()?, [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], "{device}");
        let columns = Tensor::from_npy(numpys("columns.npy"), &device)?; // big-endian int64
        assert_eq!(columns.to_vec2::<i64>()?, [[0, 1], [2, 3], [4, 5]], "{device}");
        let columns = narrow_64_bits(|| Tensor::from_npy(numpys("columns.npy"), &device))?;
        assert_eq!(columns.to_vec2::<i32>()?, [[0, 1], [2, 3], [4, 5]], "{device}");
        let double = narrow_64_bits(|| Tensor::from_npy(numpys("doubles.npy"), &device))?;
        assert_eq!((double.rank(), double.item::<f32>()?), (0, 1.5), "{device}");
        match Tensor::from_npy(numpys("doubles.npy"), &device) {
            Ok(double) => assert_eq!(double.to_vec_f64()?, [1.5]),
            refused => assert!(!device.is_cpu() && detail(refused).contains("narrow_64_bits"), "{device}"),
        }
        let truth = Tensor::from_npy(numpys("truth.npy"), &device)?;
        assert_eq!(truth.to_vec::<bool>()?, [true, false, true], "{device}");
        let two = npy::load_npz(numpys("two.npz"), &device)?;
        assert_eq!(two.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["x", "y"]);
        assert_eq!((two[0].1.dtype(), two[0].1.shape()), (DType::F16, &[2, 2][..]));
        assert_eq!(two[1].1.to_vec::<u8>()?, [0, 1, 2], "{device}");
    }
    assert!(detail(npy::load_npz(numpys("compressed.npz"), None)).contains("compressed"));
    assert!(detail(npy::load_npz(numpys("floats.npy"), None)).contains("zip"));
    assert!(detail(Tensor::from_npy(numpys("two.npz"), None)).contains("not a .npy file"));
    Ok(())
}

#[test]
fn what_is_written_is_read_again() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.npy");
    for device in devices_in_turn() {
        for shape in [vec![], vec![1], vec![3], vec![2, 3], vec![0, 4], vec![2, 1, 5]] {
            let count = shape.iter().product::<usize>() as i32;
            let whole: Vec<i32> = (0..count).map(|i| 3 - 2 * i).collect();
            let x = Tensor::from_slice(&whole, shape.clone(), &device)?;
            let mut all = Vec::new();
            for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != DType::F64 || device.is_cpu()) {
                let tensor = if dtype == DType::U8 || dtype == DType::U32 { x.abs()? } else { x.clone() };
                all.push(tensor.to_dtype(dtype)?);
            }
            for tensor in &all {
                tensor.save_npy(&path)?;
                let again = Tensor::from_npy(&path, &device)?;
                let dtype = match tensor.dtype() {
                    DType::BF16 => DType::F32,
                    same => same,
                };
                assert_eq!((again.dtype(), again.shape()), (dtype, &shape[..]), "{device}");
                assert_eq!(again.to_dtype(DType::F32)?.to_vec::<f32>()?, tensor.to_dtype(DType::F32)?.to_vec::<f32>()?);
            }
            let names: Vec<String> = all.iter().map(|x| x.dtype().to_string()).collect();
            let named: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&all).collect();
            npy::save_npz(folder.path().join("x.npz"), &named)?;
            let arrays = npy::load_npz(folder.path().join("x.npz"), &device)?;
            assert_eq!(arrays.iter().map(|(name, _)| name).collect::<Vec<_>>(), names.iter().collect::<Vec<_>>());
        }
    }
    let halves = Tensor::from_slice(&[bf16::from_f32(1.5)], 1, None)?;
    halves.save_npy(&path)?;
    assert_eq!(Tensor::from_npy(&path, None)?.to_vec::<f32>()?, [1.5]);
    let view = Tensor::try_from([[1.0, 2.0], [3.0, 4.0]])?.t()?;
    view.save_npy(&path)?;
    assert_eq!(Tensor::from_npy(&path, None)?.to_vec2::<f32>()?, [[1.0, 3.0], [2.0, 4.0]]);
    let twice = npy::save_npz(folder.path().join("y.npz"), &[("a", &view), ("a", &view)]);
    assert!(matches!(twice, Err(Error::InvalidArgument { op: "save_npz", .. })));
    Ok(())
}

#[test]
fn every_type_is_converted_as_stated() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.npy");
    let read = |bytes: &[u8]| {
        fs::write(&path, bytes).expect("our folder");
        narrow_64_bits(|| Tensor::from_npy(&path, None))
    };
    let floats =
        |descr: &str, data: &[u8]| read(&file(descr, false, "(2,)", data))?.to_dtype(DType::F32)?.to_vec::<f32>();
    let pair = |a: &[u8], b: &[u8]| [a, b].concat();
    assert_eq!(floats("<f4", &pair(&1.5f32.to_le_bytes(), &(-2f32).to_le_bytes()))?, [1.5, -2.0]);
    assert_eq!(floats(">f4", &pair(&1.5f32.to_be_bytes(), &(-2f32).to_be_bytes()))?, [1.5, -2.0]);
    assert_eq!(floats(">f2", &pair(&f16::from_f32(0.25).to_be_bytes(), &[0, 0]))?, [0.25, 0.0]);
    let doubles = floats("<f8", &pair(&0.1f64.to_le_bytes(), &f64::INFINITY.to_le_bytes()))?;
    assert_eq!(doubles, [0.1, f32::INFINITY]);
    assert_eq!(floats("|i1", &[0xff, 3])?, [-1.0, 3.0]);
    assert_eq!(floats(">i2", &[0xff, 0xfe, 1, 0])?, [-2.0, 256.0]);
    assert_eq!(floats("<u2", &[0xff, 0xff, 1, 0])?, [65535.0, 1.0]);
    assert_eq!(floats(">i8", &pair(&(-7i64).to_be_bytes(), &9i64.to_be_bytes()))?, [-7.0, 9.0]);
    assert_eq!(floats("<u8", &pair(&5u64.to_le_bytes(), &u64::from(u32::MAX).to_le_bytes()))?[0], 5.0);
    assert_eq!(floats("|b1", &[0, 2])?, [0.0, 1.0]);
    let large = floats("<i8", &pair(&0i64.to_le_bytes(), &(1i64 << 31).to_le_bytes()));
    assert_eq!(detail(large), "element 1: 2147483648 is beyond i32");
    assert!(detail(floats("<f8", &pair(&1e300f64.to_le_bytes(), &[0; 8]))).contains("beyond f32"));
    assert!(detail(floats("<u8", &pair(&u64::MAX.to_le_bytes(), &[0; 8]))).contains("beyond u32"));
    let wide = Tensor::from_npy(&path, None);
    assert!(detail(wide).contains("beyond i64"));
    fs::write(&path, file("<u8", false, "(2,)", &pair(&(1u64 << 40).to_le_bytes(), &[0; 8]))).expect("our folder");
    assert_eq!(Tensor::from_npy(&path, None)?.to_vec::<i64>()?, [1 << 40, 0]);
    let columns: Vec<u8> = (0..24u8).collect();
    let cube = read(&file("|u1", true, "(2, 3, 4)", &columns))?;
    assert_eq!(
        (cube.shape(), cube.i((1, 2, 3))?.item::<u8>()?, cube.i((1, 0, 0))?.item::<u8>()?),
        (&[2, 3, 4][..], 23, 1)
    );
    Ok(())
}

/// Headers of NumPy for Python 2 and of other writers, and files of several arrays.
#[test]
fn headers_of_other_writers_are_read_and_refusals_name_a_remedy() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.npy");
    let read = |bytes: &[u8]| {
        fs::write(&path, bytes).expect("our folder");
        Tensor::from_npy(&path, None)
    };
    let data: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_ne_bytes()).collect();
    let own = file("=f4", false, "(3L, 2L)", &data);
    assert_eq!(read(&own)?.to_vec2::<f32>()?, [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]);
    let quoted: Vec<u8> = own.iter().map(|&byte| if byte == b'\'' { b'"' } else { byte }).collect();
    assert_eq!(read(&quoted)?.to_vec2::<f32>()?, [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]);

    let two = detail(read(&[&own[..], &own[..]].concat()));
    assert!(two.contains("several arrays") && two.contains("numpy.savez") && two.contains("npy::load_npz"), "{two}");
    let refused = |descr: &str| detail(read(&file(descr, false, "(2,)", &[0; 16])));
    assert!(refused("<c8").contains("save numpy.stack([x.real, x.imag], -1).astype('float32')"));
    assert!(refused("|O").contains("save numpy.array(x.tolist(), dtype='float32')"));
    let header = "{'descr': [('a', '<f4'), ('b', '<i4')], 'fortran_order': False, 'shape': (2,), }\n";
    let length = (header.len() as u16).to_le_bytes();
    let record = detail(read(&[b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), &[0; 16]].concat()));
    assert!(
        record.contains("type [('a', '<f4'), ('b', '<i4')], a record array") && !record.contains("shape"),
        "{record}"
    );
    assert!(record.contains("numpy.savez(path, **{name: x[name] for name in x.dtype.names})"), "{record}");
    Ok(())
}

#[test]
fn damaged_files_are_errors() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x");
    for name in ["floats.npy", "two.npz"] {
        let whole = fs::read(numpys(name)).expect("a file");
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).expect("our folder");
            let failed = if name == "two.npz" {
                npy::load_npz(&path, None).is_err()
            } else {
                Tensor::from_npy(&path, None).is_err()
            };
            assert!(failed, "{name} cut at {cut}");
        }
    }
    // A changed element of an archive does not match its checksum.
    let mut whole = fs::read(numpys("two.npz")).expect("a file");
    let at = whole.windows(6).position(|part| part == b"\x93NUMPY").expect("an array") + 128;
    whole[at] ^= 1;
    fs::write(&path, &whole).expect("our folder");
    assert!(detail(npy::load_npz(&path, None)).contains("damaged"));
    for (descr, shape, data, expected) in [
        ("<f4", "(1000000000000,)", 8, "does not fit"),
        ("<f4", "(0, 18446744073709551615, 18446744073709551615)", 0, "fit"),
        ("<c8", "(1,)", 8, "type <c8"),
        ("|O", "(1,)", 8, "type |O"),
    ] {
        fs::write(&path, file(descr, false, shape, &vec![0; data])).expect("our folder");
        let error = Tensor::from_npy(&path, None).expect_err(shape).to_string();
        assert!(error.contains(expected), "{shape}: {error}");
    }
    assert!(detail(Tensor::from_npy(folder.path(), None)).contains("folder"));
    assert!(Tensor::from_npy(folder.path().join("none.npy"), None).is_err());
    Ok(())
}
