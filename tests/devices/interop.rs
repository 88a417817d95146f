//! Programs that use wgpu themselves: shared devices, buffers and textures, the order of commands, and errors.

use anygpu::check::{Options, Table};
use anygpu::interop::wgpu;
use anygpu::testing::adapters;
use anygpu::{DType, Device, Error, Result, Tensor};

const USAGES: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

/// A program's own adapter and device.
struct Program {
    adapter: wgpu::Adapter,
    device: wgpu::Device,
    queue: wgpu::Queue,
}

/// Opens each adapter of the machine as a program does, with these limits.
fn programs(limits: fn(&wgpu::Adapter) -> wgpu::Limits) -> Vec<Program> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()));
    let open = |adapter: wgpu::Adapter| {
        let wanted = wgpu::DeviceDescriptor { required_limits: limits(&adapter), ..Default::default() };
        let (device, queue) = pollster::block_on(adapter.request_device(&wanted)).ok()?;
        Some(Program { adapter, device, queue })
    };
    let found: Vec<Program> = adapters.into_iter().filter_map(open).collect();
    let adapters = Device::all().len() - 1; // without `cpu`
    assert!(found.len() >= adapters, "{} of {adapters} adapters were opened", found.len());
    found
}

fn shared(program: &Program) -> Result<Device> {
    Device::from_wgpu(&program.adapter, &program.device, &program.queue)
}

fn buffer(device: &wgpu::Device, size: u64, usage: wgpu::BufferUsages) -> wgpu::Buffer {
    device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
}

fn texture(device: &wgpu::Device, size: [u32; 3], format: wgpu::TextureFormat) -> wgpu::Texture {
    let [width, height, depth_or_array_layers] = size;
    device.create_texture(&wgpu::TextureDescriptor {
        label: None,
        size: wgpu::Extent3d { width, height, depth_or_array_layers },
        mip_level_count: 1,
        sample_count: 1,
        dimension: wgpu::TextureDimension::D2,
        format,
        usage: wgpu::TextureUsages::COPY_SRC | wgpu::TextureUsages::COPY_DST | wgpu::TextureUsages::TEXTURE_BINDING,
        view_formats: &[],
    })
}

/// A device with few limits and features computes what the host does: products, convolutions, sums, and their gradients.
#[test]
fn devices_of_programs_compute() -> Result<()> {
    let limits: [fn(&wgpu::Adapter) -> wgpu::Limits; 3] =
        [|_| wgpu::Limits::downlevel_defaults(), |_| wgpu::Limits::default(), wgpu::Adapter::limits];
    for (i, limits) in limits.into_iter().enumerate() {
        for program in &programs(limits) {
            let device = shared(program)?;
            assert!(device.name().starts_with("wgpu:") && !Device::all().contains(&device));
            assert_eq!(device.info().adapter, program.adapter.get_info().name);
            assert!(Device::new(device.name()).is_err());
            let results = |device: &Device| -> Result<Vec<Vec<f32>>> {
                let values = |count: usize| (0..count).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect::<Vec<_>>();
                let image = Tensor::from_slice(&values(3 * 5 * 12 * 13), [3, 5, 12, 13], device)?.requires_grad();
                let weight = Tensor::from_slice(&values(7 * 5 * 9), [7, 5, 3, 3], device)?.requires_grad();
                let y = image.conv2d(&weight, None, anygpu::Conv::new().padding(1))?.relu()?.max_pool2d(2)?;
                let flat = y.flatten(1)?;
                let logits = flat.matmul(&flat.t()?)?.softmax(-1)?;
                (&logits * &logits)?.sum_all()?.backward()?;
                [y.detach(), logits.detach(), image.grad().expect("a gradient"), weight.grad().expect("a gradient")]
                    .iter()
                    .map(Tensor::to_vec)
                    .collect()
            };
            for (got, expected) in results(&device)?.iter().zip(&results(&Device::cpu())?) {
                let most = expected.iter().fold(1e-3f32, |most, v| most.max(v.abs()));
                let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * most;
                assert!(got.iter().zip(expected).all(close), "{} ({i})", device.info().adapter);
            }
        }
    }
    Ok(())
}

/// The program's commands and this crate's ops read each other's results in the order of the calls.
#[test]
fn commands_and_ops_take_turns() -> Result<()> {
    for program in &programs(wgpu::Adapter::limits) {
        let device = shared(program)?;
        let raw = buffer(&program.device, 64, USAGES);
        let tensor = Tensor::from_wgpu_buffer(&raw, [4, 3], DType::F32, &device)?;
        for round in 0..20 {
            let start = round as f32;
            let written: Vec<f32> = (0..12).map(|i| start + i as f32).collect();
            device.flush()?;
            program.queue.write_buffer(&raw, 0, bytemuck::cast_slice(&written));
            program.queue.submit([]);
            let doubled = (&tensor * 2.0)?;
            tensor.fill_(-1.0)?;

            let view = doubled.narrow(0, 1, 2)?; // from byte 12 on
            let (from, to) = (view.as_wgpu_buffer()?, tensor.as_wgpu_buffer()?);
            assert_eq!((from.offset(), from.size(), to.offset(), to.size()), (12, 24, 0, 48));
            let mut commands = program.device.create_command_encoder(&Default::default());
            commands.copy_buffer_to_buffer(from.buffer(), from.offset(), to.buffer(), 0, from.size());
            program.queue.submit([commands.finish()]);

            let expected: Vec<f32> =
                (0..12).map(|i| if i < 6 { 2.0 * (start + 3.0 + i as f32) } else { -1.0 }).collect();
            assert_eq!(tensor.to_vec::<f32>()?, expected, "{}", device.info().adapter);
        }
        assert!(to_binding_is_refused(&device)?);
        assert_eq!(device.memory().live, 0, "the program's buffer is not the pool's");
    }
    Ok(())
}

/// Elements that begin at byte 12 cannot be bound, and those of a copy can.
fn to_binding_is_refused(device: &Device) -> Result<bool> {
    let rows = Tensor::ones([4, 3], device)?;
    let row = rows.narrow(0, 1, 1)?;
    assert!(rows.as_wgpu_buffer()?.binding().is_ok() && row.copy()?.as_wgpu_buffer()?.binding().is_ok());
    assert!(Tensor::zeros([0], device)?.as_wgpu_buffer()?.binding().is_err());
    Ok(matches!(row.as_wgpu_buffer()?.binding(), Err(Error::InvalidArgument { .. })))
}

/// Dropping the tensor leaves the program's buffer alone: the pool gives it to nobody.
#[test]
fn a_buffer_stays_the_programs() -> Result<()> {
    for device in &adapters() {
        let (raw, queue) = device.as_wgpu()?;
        let own = buffer(raw, 1024, USAGES);
        queue.write_buffer(&own, 0, &[7; 1024]);
        queue.submit([]);
        let bytes = Tensor::from_wgpu_buffer(&own, 1000, DType::U8, device)?;
        assert_eq!(bytes.to_dtype(DType::F32)?.sum_all()?.item::<f32>()?, 7000.0);
        drop(bytes);
        let others: Vec<Tensor> = (0..8).map(|i| Tensor::full(256, i, device)).collect::<Result<_>>()?;
        device.synchronize()?;
        let again = Tensor::from_wgpu_buffer(&own, 1024, DType::U8, device)?;
        assert!(again.to_vec::<u8>()?.iter().all(|&byte| byte == 7), "{device}");
        assert_eq!(others[5].to_vec::<i32>()?, [5; 256]);
    }
    Ok(())
}

#[test]
fn texels_are_elements() -> Result<()> {
    for device in &adapters() {
        let (raw, _) = device.as_wgpu()?;
        use wgpu::TextureFormat as Format;
        let formats = [
            (Format::Rgba8Unorm, DType::U8, 4),
            (Format::Bgra8UnormSrgb, DType::U8, 4),
            (Format::R8Unorm, DType::U8, 1),
            (Format::Rg8Uint, DType::U8, 2),
            (Format::Rgba16Float, DType::F16, 4),
            (Format::R32Float, DType::F32, 1),
            (Format::Rgba32Float, DType::F32, 4),
            (Format::R32Uint, DType::U32, 1),
        ];
        for (format, dtype, channels) in formats {
            // Rows of one texel, of rows that need padding, and of rows that do not.
            for (width, height) in [(1, 1), (7, 5), (64, 3), (256, 2)] {
                let own = texture(raw, [width, height, 1], format);
                let shape = [height as usize, width as usize, channels];
                let count = shape.iter().product::<usize>();
                let values =
                    Tensor::from_slice(&(0..count).map(|i| (i % 251) as f32).collect::<Vec<_>>(), shape, device)?;
                let values = values.to_dtype(dtype)?;
                values.copy_to_texture(&own)?;
                let back = Tensor::from_texture(&own, device)?;
                assert_eq!((back.shape(), back.dtype()), (&shape[..], dtype));
                assert!(back.equal(&values)?, "{format:?} {shape:?} on {device}");
                // A view that is not in row-major order.
                let turned = values.permute([1, 0, 2])?.contiguous()?.permute([1, 0, 2])?;
                Tensor::full(shape, 9.0f32, device)?.to_dtype(dtype)?.copy_to_texture(&own)?;
                turned.copy_to_texture(&own)?;
                assert!(Tensor::from_texture(&own, device)?.equal(&values)?, "{format:?} {shape:?} on {device}");
            }
        }
        let gray = texture(raw, [3, 2, 1], Format::R8Unorm);
        Tensor::from_slice(&[1u8, 2, 3, 4, 5, 6], [2, 3], device)?.copy_to_texture(&gray)?;
        assert_eq!(Tensor::from_texture(&gray, device)?.to_vec::<u8>()?, [1, 2, 3, 4, 5, 6]);
    }
    Ok(())
}

/// Whatever does not fit is an error of the call, and everything after it works.
#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let adapters = adapters();
    for (i, device) in adapters.iter().enumerate() {
        let (raw, _) = device.as_wgpu()?;
        let small = buffer(raw, 60, USAGES);
        let fits = buffer(raw, 64, USAGES);
        let storage_only = buffer(raw, 64, wgpu::BufferUsages::STORAGE);
        let argument = |result: Result<Tensor>, text: &str| match result {
            Err(Error::InvalidArgument { detail, .. }) => assert!(detail.contains(text), "{detail}"),
            other => panic!("{other:?} on {device}"),
        };
        argument(Tensor::from_wgpu_buffer(&small, 15, DType::F32, device), "needs 64 bytes");
        argument(Tensor::from_wgpu_buffer(&fits, 17, DType::F32, device), "the buffer has 64");
        argument(Tensor::from_wgpu_buffer(&storage_only, 16, DType::F32, device), "COPY_DST");
        argument(Tensor::from_wgpu_buffer(&fits, 16, DType::F32, &Device::cpu()), "cpu");
        let layers = texture(raw, [4, 4, 2], wgpu::TextureFormat::R32Float);
        argument(Tensor::from_texture(&layers, device), "one layer");
        let plane = texture(raw, [4, 4, 1], wgpu::TextureFormat::R32Float);
        argument(Tensor::from_texture(&plane, &Device::cpu()), "cpu");
        let depth = texture(raw, [4, 4, 1], wgpu::TextureFormat::Depth32Float);
        argument(Tensor::from_texture(&depth, device), "Depth32Float");
        let ones = Tensor::ones([4, 4], device)?;
        assert!(matches!(ones.to_dtype(DType::U8)?.copy_to_texture(&plane), Err(Error::DTypeMismatch { .. })));
        assert!(matches!(ones.narrow(0, 0, 3)?.copy_to_texture(&plane), Err(Error::InvalidArgument { .. })));
        assert!(matches!(ones.cpu()?.copy_to_texture(&plane), Err(Error::InvalidArgument { .. })));
        assert!(matches!(ones.cpu()?.as_wgpu_buffer(), Err(Error::InvalidArgument { .. })));
        assert!(matches!(Tensor::ones([2, 3], device)?.t()?.as_wgpu_buffer(), Err(Error::InvalidArgument { .. })));
        assert!(matches!(Device::cpu().as_wgpu(), Err(Error::InvalidArgument { .. })));
        // What belongs to another device is known to wgpu only.
        let other = &adapters[(i + 1) % adapters.len()];
        if other != device {
            let theirs = buffer(other.as_wgpu()?.0, 64, USAGES);
            assert!(matches!(Tensor::from_wgpu_buffer(&theirs, 16, DType::F32, device), Err(Error::Gpu { .. })));
            let theirs = texture(other.as_wgpu()?.0, [4, 4, 1], wgpu::TextureFormat::R32Float);
            assert!(matches!(ones.copy_to_texture(&theirs), Err(Error::Gpu { .. })));
            assert!(matches!(Tensor::from_texture(&theirs, device), Err(Error::Gpu { .. })));
        }
        ones.copy_to_texture(&plane)?;
        assert_eq!(Tensor::from_texture(&plane, device)?.to_vec::<f32>()?, [1.0; 16]);
    }
    Ok(())
}

/// Two tensors of one buffer are known to be in the same memory.
#[test]
fn a_buffer_is_one_memory() -> Result<()> {
    for device in &adapters() {
        let own = buffer(device.as_wgpu()?.0, 64, USAGES);
        let long = Tensor::from_wgpu_buffer(&own, 16, DType::F32, device)?;
        let short = Tensor::from_wgpu_buffer(&own, [2, 2], DType::F32, device)?;
        long.fill_(3.0)?;
        let sum = short.add(&short)?;
        long.copy_(&Tensor::ones(16, device)?)?;
        assert_eq!((sum.to_vec::<f32>()?, short.to_vec::<f32>()?), (vec![6.0; 4], vec![1.0; 4]), "{device}");
        drop(long);
        drop(short);
        let short = Tensor::from_wgpu_buffer(&own, 4, DType::F32, device)?;
        assert!(matches!(Tensor::from_wgpu_buffer(&own, 16, DType::F32, device), Err(Error::Gpu { .. })));
        assert_eq!(short.to_vec::<f32>()?, [1.0; 4]);
    }
    Ok(())
}

/// A submit that wgpu refuses because of the program's buffer is an error of that call, and the device goes on.
#[test]
fn a_refused_submit_is_no_loss() -> Result<()> {
    for program in &programs(wgpu::Adapter::limits) {
        let device = shared(program)?;
        let own = buffer(&program.device, 64, USAGES);
        let tensor = Tensor::from_wgpu_buffer(&own, 16, DType::F32, &device)?;
        let doubled = (&tensor * 2.0)?;
        own.destroy();
        let refused = doubled.to_vec::<f32>().unwrap_err();
        assert!(matches!(refused, Error::Gpu { .. }), "{refused} on {}", device.info().adapter);
        let later = |y: Tensor| pollster::block_on(y.to_vec_async::<f32>());
        let refused = (&tensor * 3.0).and_then(later).unwrap_err();
        assert!(matches!(refused, Error::Gpu { .. }), "{refused} on {}", device.info().adapter);
        assert!(!device.is_lost());
        drop((doubled, tensor));
        device.synchronize().ok(); // what could not be computed is tried again as long as somebody has it
        assert_eq!(Tensor::ones([3], &device)?.to_vec::<f32>()?, [1.0; 3]);
    }
    Ok(())
}

/// Ops on a tensor whose buffer is destroyed are errors, and nothing else is: neither what waits to be recorded, nor what gets
/// memory later.
#[test]
fn a_destroyed_buffer_is_an_error_of_its_own_ops() -> Result<()> {
    for device in &adapters() {
        let (x, other) = (Tensor::ones([777], device)?, Tensor::ones([777], device)?);
        let own = buffer(device.as_wgpu()?.0, 64, USAGES);
        let adopted = Tensor::from_wgpu_buffer(&own, 16, DType::F32, device)?;
        let sum = (&other + 1.0)?;
        x.as_wgpu_buffer()?.buffer().destroy();
        own.destroy();
        let waiting = (&sum + 1.0)?;
        for tensor in [&x, &adopted] {
            let results = [
                (tensor * 2.0).map(drop),
                tensor.sum_all().map(drop),
                tensor.fill_(3.0),
                tensor.to_vec::<f32>().map(drop),
                pollster::block_on(tensor.to_vec_async::<f32>()).map(drop),
            ];
            for (i, result) in results.into_iter().enumerate() {
                let error = result.expect_err("a destroyed buffer").to_string();
                assert!(error.contains("destroyed"), "{i}: {error} on {device}");
            }
        }
        assert_eq!(waiting.to_vec::<f32>()?, [3.0; 777], "{device}");
        drop(x);
        let fine = |from: i32| -> Result<()> {
            for i in from..from + 20 {
                let y = Tensor::full([777], i, device)?;
                assert_eq!((&y + &y)?.to_vec::<i32>()?, [2 * i; 777], "{device}");
            }
            Ok(())
        };
        fine(0)?;
        // The program keeps a handle of a buffer that is another tensor's by now, or free.
        let handle = other.as_wgpu_buffer()?.buffer().clone();
        drop((other, sum, waiting));
        fine(20)?;
        handle.destroy();
        fine(40)?;
        assert!(!device.is_lost());
    }
    Ok(())
}

#[test]
fn a_queue_of_another_device_is_refused() -> Result<()> {
    for (a, b) in programs(wgpu::Adapter::limits).iter().zip(&programs(wgpu::Adapter::limits)) {
        for (device, queue) in [(&a.device, &b.queue), (&b.device, &a.queue)] {
            let refused = Device::from_wgpu(&a.adapter, device, queue).unwrap_err();
            assert!(matches!(&refused, Error::InvalidArgument { detail, .. } if detail.contains("queue")), "{refused}");
        }
        for program in [a, b] {
            assert_eq!(Tensor::ones([3], &shared(program)?)?.sum_all()?.item::<f32>()?, 3.0);
        }
    }
    Ok(())
}

/// A program that loses its device gets typed errors, and its own handlers are called.
#[test]
fn a_program_loses_its_device() -> Result<()> {
    // Whether something was read before, how many elements there are, and whether the read waits.
    for (warm, count, waits) in [(true, 8, true), (false, 8, true), (false, 600_000, true), (false, 600_000, false)] {
        for program in programs(wgpu::Adapter::limits) {
            let (sender, receiver) = std::sync::mpsc::channel();
            program.device.set_device_lost_callback(move |_, message| drop(sender.send(message)));
            let device = shared(&program)?;
            let x = Tensor::ones([count], &device)?;
            if warm {
                assert_eq!(x.to_vec::<f32>()?, [1.0; 8]);
            }
            program.device.destroy();
            let read = |y: Tensor| if waits { y.to_vec::<f32>() } else { pollster::block_on(y.to_vec_async()) };
            let lost = x.add(&x).and_then(read).unwrap_err();
            assert!(matches!(lost, Error::DeviceLost { .. }), "{lost} on {}", device.info().adapter);
            assert!(device.synchronize().is_err() && device.is_lost());
            assert!(matches!(device.reopen(), Err(Error::DeviceUnavailable { .. })));
            let _ = program.device.poll(wgpu::PollType::Poll);
            receiver.recv_timeout(std::time::Duration::from_secs(10)).expect("the program's handler was called");
        }
    }
    Ok(())
}

/// What browsers promise: a device with no more than WebGPU's default limits and no features runs the table of ops.
#[test]
fn the_least_that_webgpu_asks_for_is_enough() -> Result<()> {
    let all = programs(|_| wgpu::Limits::default());
    // SwiftShader, which headless browsers have too.
    let named = |program: &&Program| program.adapter.get_info().name.contains("SwiftShader");
    let Some(program) = all.iter().find(named).or(all.first()) else { return Ok(()) };
    let device = shared(program)?;
    assert_eq!((device.info().limits.storage_buffers, device.info().limits.max_binding), (8, 128 << 20));
    let report = Table::new(&Options { quick: true, ..Options::default() }).run(&device)?;
    let failures: Vec<String> = report.ops.iter().flat_map(|op| &op.failures).map(ToString::to_string).collect();
    assert!(failures.is_empty() && report.quarantined.is_empty(), "{}\n{:?}", failures.join("\n"), report.quarantined);
    assert!(report.ops.iter().map(|op| op.cases).sum::<usize>() > 4000);
    Ok(())
}
