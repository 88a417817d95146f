//! What the storage bindings of a kernel hold, as numbers of tensors.

use naga::{ArraySize, Handle, Module, Type, TypeInner};

use super::reflect::element;
use crate::dtype::DType;

/// What a storage binding holds: see [`StorageBinding`](super::reflect::StorageBinding).
pub(super) struct Contents {
    pub dtype: DType,
    pub head: usize,
    pub width: usize,
    pub least: usize,
    /// Whether it is made of atomics only.
    pub atomic: bool,
}

/// Returns what a type holds, if that is numbers of tensors; its size may be left to the tensor.
pub(super) fn contents(module: &Module, ty: Handle<Type>) -> Option<Contents> {
    let mut found = Vec::new();
    collect(module, ty, &mut found)?;
    let &(dtype, _) = found.first()?;
    // Numbers of several types are the bits of u32.
    let dtype = if found.iter().all(|(other, _)| *other == dtype) { dtype } else { DType::U32 };
    let numbers = |bytes: u32| bytes as usize / if dtype == DType::F16 { 2 } else { 4 };
    let least = numbers(module.types[ty].inner.size(module.to_ctx()));
    let (head, width) = match &module.types[ty].inner {
        TypeInner::Array { size: ArraySize::Dynamic, stride, .. } => (0, numbers(*stride)),
        TypeInner::Struct { members, .. } => match members.last().map(|last| (last, &module.types[last.ty].inner)) {
            Some((last, TypeInner::Array { size: ArraySize::Dynamic, stride, .. })) => {
                (numbers(last.offset), numbers(*stride))
            }
            _ => (least, 0),
        },
        _ => (least, 0),
    };
    Some(Contents { dtype, head, width, least, atomic: found.iter().all(|(_, atomic)| *atomic) })
}

/// Adds the types of all numbers of a type, each once, and whether they are atomics; `None` if it holds anything else.
fn collect(module: &Module, ty: Handle<Type>, found: &mut Vec<(DType, bool)>) -> Option<()> {
    let mut add = |scalar, atomic| {
        let entry = (element(scalar)?, atomic);
        if !found.contains(&entry) {
            found.push(entry);
        }
        Some(())
    };
    match &module.types[ty].inner {
        TypeInner::Scalar(scalar) | TypeInner::Vector { scalar, .. } | TypeInner::Matrix { scalar, .. } => {
            add(*scalar, false)
        }
        TypeInner::Atomic(scalar) => add(*scalar, true),
        TypeInner::Array { base, size: ArraySize::Dynamic | ArraySize::Constant(_), .. } => {
            collect(module, *base, found)
        }
        TypeInner::Struct { members, .. } => members.iter().try_for_each(|member| collect(module, member.ty, found)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Output, WgslKernel};
    use crate::{DType, Device, Result, Tensor};

    #[test]
    fn arrays_of_vectors_are_bound_to_whole_numbers_of_them() -> Result<()> {
        let source = "
            @group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
            @group(0) @binding(1) var<storage, read> y: array<vec2<i32>>;
            @group(0) @binding(2) var<storage, read_write> z: array<vec4<f32>>;
            @compute @workgroup_size(64)
            fn reversed(@builtin(global_invocation_id) id: vec3<u32>) {
                if id.x < arrayLength(&z) { z[id.x] = x[id.x].wzyx + vec4<f32>(y[id.x].xyxy) + f32(arrayLength(&x)); }
            }";
        let kernel = WgslKernel::new(source, "reversed")?;
        for device in Device::all().into_iter().filter(|device| !device.is_cpu()) {
            let x = Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], [8], &device)?;
            let y = Tensor::from_slice(&[10i32, 20, 30, 40], [2, 2], &device)?;
            let run = |x: &Tensor, len: usize| kernel.run(&[x, &y], &[([len], DType::F32)], &[], [1, 1, 1]);
            let z = run(&x, 8)?[0].to_vec::<f32>()?;
            assert_eq!(z, [16.0, 25.0, 14.0, 23.0, 40.0, 49.0, 38.0, 47.0], "{device}");
            let wrong = run(&x.narrow(0, 0, 6)?, 8).map(drop).unwrap_err().to_string();
            assert!(wrong.contains("input 'x' takes 4 numbers for each element, got 6"), "{wrong}");
            let wrong = run(&x, 7).map(drop).unwrap_err().to_string();
            assert!(wrong.contains("output 'z' takes 4 numbers for each element, got 7"), "{wrong}");
        }
        Ok(())
    }

    #[test]
    fn halves_are_bound_as_they_are_stored() -> Result<()> {
        let source = "
            enable f16;
            struct Pair { half: f16, whole: f32 }
            @group(0) @binding(0) var<storage, read> x: array<f16>;
            @group(0) @binding(1) var<storage, read> y: array<vec2<f16>>;
            @group(0) @binding(2) var<storage, read> pairs: array<Pair>; // 8 bytes: two numbers of u32
            @group(0) @binding(3) var<storage, read_write> z: array<f16>;
            @compute @workgroup_size(64)
            fn sums(@builtin(global_invocation_id) id: vec3<u32>) {
                if id.x >= arrayLength(&z) { return; }
                let pair = y[id.x % arrayLength(&y)];
                z[id.x] = z[id.x] + x[id.x] * pair.x + pair.y + pairs[0].half * f16(pairs[0].whole);
            }";
        let kernel = WgslKernel::new(source, "sums")?;
        for device in Device::all().into_iter().filter(|device| !device.is_cpu()) {
            let halves = |values: Vec<f32>| Tensor::from_vec(values, [7], &device)?.to_dtype(DType::F16);
            let all = halves((0..7).map(|i| i as f32).collect())?;
            let y = Tensor::new([2.0, 0.5], &device)?.to_dtype(DType::F16)?;
            let pairs = Tensor::new([0x4200u32, 2f32.to_bits()], &device)?; // 3 as f16, and 2
            let start = halves(vec![100.0; 7])?;
            let run = |x: &Tensor, y: &Tensor| {
                let launch = kernel.on(&device).input("x", x).input("y", y).input("pairs", &pairs);
                launch.output("z", Output::copy_of(&start.narrow(0, 0, x.elem_count())?)).dispatch(x.elem_count())
            };
            if !device.info().features.iter().any(|feature| feature == "f16") {
                let wrong = run(&all, &y).map(drop).unwrap_err().to_string();
                assert!(wrong.contains("f16") && wrong.contains(device.name()), "{wrong}");
                continue;
            }
            // An odd number of elements, and a view that begins in the middle of a word.
            let z = &run(&all, &y)?[0];
            let expected = |first: usize| (first..7).map(|i| 106.5 + 2.0 * i as f32).collect::<Vec<_>>();
            assert_eq!((z.dtype(), z.to_dtype(DType::F32)?.to_vec::<f32>()?), (DType::F16, expected(0)), "{device}");
            let z = &run(&all.narrow(0, 3, 4)?, &y)?[0];
            assert_eq!(z.to_dtype(DType::F32)?.to_vec::<f32>()?, expected(3), "{device}");
            let wrong = run(&all, &all).map(drop).unwrap_err().to_string();
            assert!(wrong.contains("input 'y' takes 2 numbers for each element, got 7"), "{wrong}");
            let wrong = run(&all.to_dtype(DType::F32)?, &y).map(drop).unwrap_err().to_string();
            assert!(wrong.contains("input 'x' is of f16, got a tensor of f32"), "{wrong}");
        }
        Ok(())
    }

    #[test]
    fn arrays_of_structs_and_of_vec3_have_their_padding() -> Result<()> {
        let source = "
            struct Ball { place: vec3<f32>, mass: f32, speed: vec2<f32> } // 32 bytes: 8 numbers, of which 6 are used
            struct Tag { number: u32, weight: f32 }
            @group(0) @binding(0) var<storage, read> balls: array<Ball>;
            @group(0) @binding(1) var<storage, read> tags: array<Tag>;
            @group(0) @binding(2) var<storage, read_write> places: array<vec3<f32>>; // 4 numbers each
            @compute @workgroup_size(64)
            fn moved(@builtin(global_invocation_id) id: vec3<u32>) {
                if id.x >= arrayLength(&places) { return; }
                let ball = balls[id.x];
                let tag = tags[id.x];
                places[id.x] = ball.place + vec3<f32>(ball.speed, ball.mass * tag.weight * f32(tag.number));
            }";
        let kernel = WgslKernel::new(source, "moved")?;
        for device in Device::all().into_iter().filter(|device| !device.is_cpu()) {
            let balls = Tensor::arange(0.0, 16.0, 1.0, &device)?.reshape([2, 8])?;
            let tags = Tensor::from_slice(&[2u32, 0.5f32.to_bits(), 3, 10f32.to_bits()], [2, 2], &device)?;
            let run = |balls: &Tensor, tags: &Tensor| {
                let launch = kernel.on(&device).input("balls", balls).input("tags", tags);
                launch.output("places", ([2, 4], DType::F32)).dispatch(2)
            };
            let places = run(&balls, &tags)?[0].narrow(1, 0, 3)?.to_vec::<f32>()?;
            assert_eq!(places, [4.0, 6.0, 5.0, 20.0, 22.0, 340.0], "{device}");
            let wrong = run(&balls.narrow(1, 0, 6)?, &tags).map(drop).unwrap_err().to_string();
            assert!(wrong.contains("input 'balls' takes 8 numbers for each element, got 12"), "{wrong}");
            let wrong = run(&balls, &tags.to_dtype(DType::F32)?).map(drop).unwrap_err().to_string();
            assert!(wrong.contains("input 'tags' is of u32"), "{wrong}");
        }
        Ok(())
    }

    #[test]
    fn structs_may_hold_the_array() -> Result<()> {
        let source = "
            struct Matrix { size: vec2<f32>, numbers: array<f32> }
            struct Ends { first: u32, last: u32 }
            @group(0) @binding(0) var<storage, read> a: Matrix;
            @group(0) @binding(1) var<storage, read_write> b: Matrix;
            @group(0) @binding(2) var<storage, read_write> ends: Ends;
            @group(0) @binding(3) var<storage, read> weights: array<f32, 3>;
            @compute @workgroup_size(1)
            fn transposed() {
                b.size = a.size.yx;
                let n = u32(a.size.x * a.size.y);
                for (var i = 0u; i < n; i++) {
                    b.numbers[i] = weights[2] * a.numbers[i % u32(a.size.x) * u32(a.size.y) + i / u32(a.size.x)];
                }
                ends = Ends(u32(b.numbers[0]), u32(b.numbers[n - 1u]));
            }";
        let kernel = WgslKernel::new(source, "transposed")?;
        for device in Device::all().into_iter().filter(|device| !device.is_cpu()) {
            let a = Tensor::from_slice(&[2f32, 3.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 8, &device)?;
            let weights = Tensor::from_slice(&[0f32, 0.0, 2.0], 3, &device)?;
            let run = |a: &Tensor, weights: &Tensor, len: usize, ends: usize| {
                let launch = kernel.on(&device).input("a", a).input("weights", weights);
                let launch = launch.output("b", Output::zeros([len], DType::F32));
                launch.output("ends", ([ends], DType::U32)).dispatch(1)
            };
            let results = run(&a, &weights, 8, 2)?;
            let expected = [3.0, 2.0, 2.0, 8.0, 4.0, 10.0, 6.0, 12.0];
            assert_eq!(results[0].to_vec::<f32>()?, expected, "{device}");
            assert_eq!(results[1].to_vec::<u32>()?, [2, 12], "{device}");
            let fails = |results: Result<Vec<Tensor>>, expected: &str| {
                let error = results.map(drop).unwrap_err().to_string();
                assert!(error.contains(expected), "{device}: {error}");
            };
            fails(
                run(&a.narrow(0, 0, 2)?, &weights, 8, 2),
                "input 'a' takes 2 numbers and then 1 for each element, 4 at least, got 2",
            );
            fails(run(&a, &a, 8, 2), "input 'weights' takes 3 numbers, got 8");
            fails(run(&a, &weights, 8, 1), "output 'ends' takes 2 numbers, got 1");
            // WGSL rounds the size of the struct up.
            fails(
                run(&a.narrow(0, 0, 3)?, &weights, 8, 2),
                "input 'a' takes 2 numbers and then 1 for each element, 4 at least",
            );
            assert_eq!(run(&a, &weights, 8, 2)?[1].to_vec::<u32>()?, [2, 12], "{device}");
        }
        Ok(())
    }

    /// Elements are not listed one by one: this size has no place in memory.
    #[test]
    fn huge_arrays_of_a_fixed_size_are_read_at_once() -> Result<()> {
        let source = "
            struct Pair { a: u32, b: array<vec2<u32>, 3> }
            @group(0) @binding(0) var<storage, read> x: array<Pair, 60000000>;
            @group(0) @binding(1) var<storage, read_write> y: array<u32>;
            @compute @workgroup_size(1) fn f() { y[0] = x[59999999].b[2].y; }";
        assert_eq!(WgslKernel::new(source, "f")?.inputs(), ["x"]);
        Ok(())
    }

    #[test]
    fn structs_of_atomics_start_as_zeros() -> Result<()> {
        let source = "
            struct Counts { all: atomic<u32>, parts: array<atomic<u32>, 2> }
            @group(0) @binding(0) var<storage, read_write> counts: Counts;
            @compute @workgroup_size(8) fn f(@builtin(local_invocation_index) i: u32) {
                atomicAdd(&counts.all, 1u);
                atomicAdd(&counts.parts[i % 2u], i);
            }";
        let kernel = WgslKernel::new(source, "f")?;
        for device in Device::all().into_iter().filter(|device| !device.is_cpu()) {
            let counts = kernel.on(&device).output("counts", ([3], DType::U32)).dispatch(8)?;
            assert_eq!(counts[0].to_vec::<u32>()?, [8, 12, 16], "{device}");
        }
        Ok(())
    }
}
