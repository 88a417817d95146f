//! Kernels whose figures are known.

use anygpu::Device;
use anygpu::interop::launches::{BoundBuffer, KernelSource, Launch, ParamsPlace};

use crate::memory::{Figures, figures};
use crate::trace::Machine;

/// Returns the first adapter of Vulkan. If there is none, a line says so.
fn device() -> Option<Device> {
    let device = anygpu::testing::software_adapter()?;
    let vulkan = device.info().api == "Vulkan";
    if !vulkan {
        eprintln!("SKIPPED: {device} is no adapter of Vulkan");
    }
    vulkan.then_some(device)
}

/// Returns the figures of a kernel `main` with two buffers, which it reads and writes.
fn of(text: &str, groups: [u32; 3], words: [u64; 2]) -> Option<Figures> {
    let device = device()?;
    let (device, queue) = device.as_wgpu().expect("an adapter");
    let [x, y] = words.map(|words| {
        device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: words * 4,
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        })
    });
    let begin = "
        @group(0) @binding(1) var<storage, read> x: array<f32>;
        @group(0) @binding(2) var<storage, read_write> y: array<f32>;
        ";
    let bound = |binding, written, raw, words: u64| {
        let bytes = words * 4;
        BoundBuffer { binding, written, raw, offset: 0, bytes, used: bytes }
    };
    let launch = Launch {
        op: "",
        name: "main",
        source: &KernelSource { text: [begin, text].concat(), entry: "main".into(), constants: Vec::new() },
        params: &[],
        params_at: ParamsPlace::Nowhere,
        buffers: vec![bound(1, false, &x, words[0]), bound(2, true, &y, words[1])],
        groups,
        device,
        queue,
    };
    Some(figures(&Machine::default().trace(&launch).expect("a trace")))
}

fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{found} instead of {expected}");
}

#[test]
fn a_copy_uses_all_that_it_moves() {
    let text =
        "@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) { y[id.x] = x[id.x]; }";
    let Some(copy) = of(text, [1024, 1, 1], [65536; 2]) else { return };
    for (requests, width) in copy.requests.iter().zip(crate::memory::WIDTHS) {
        near(requests.efficiency(), 1.0);
        near(requests.lanes(width), 1.0);
        near(requests.used, 2.0 * 262_144.0);
        near(requests.lines, 2.0 * 262_144.0 / 128.0);
    }
    near(copy.traffic, 2.0 * 262_144.0);
    near(copy.once, 2.0 * 262_144.0);
    near(copy.least, 2.0 * 262_144.0);
    near(copy.conflicts(), 1.0);
    near(copy.lanes, 65536.0);
}

#[test]
fn a_row_of_each_invocation_uses_an_eighth_of_a_sector() {
    let text = "@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
        var sum = 0.0;
        for (var i = 0u; i < 256u; i++) { sum += x[id.x * 256u + i]; }
        y[id.x] = sum;
    }";
    let Some(sums) = of(text, [64, 1, 1], [4096 * 256, 4096]) else { return };
    // 256 loads of a sector each for every invocation, and one store, which is whole.
    let rows = 4096.0 * 256.0;
    near(sums.requests[0].efficiency(), (rows * 4.0 + 4096.0 * 4.0) / (rows * 32.0 + 4096.0 * 4.0));
    near(sums.requests[1].efficiency(), sums.requests[0].efficiency());
    near(sums.requests[0].flops, rows);
    // 64 rows are 64 sectors, which the next loads find in the cache.
    near(sums.excess(), 1.0);
}

/// A square of 1024 that is transposed, with a tile or not.
fn transposed(tile: &str) -> Option<Figures> {
    let direct = "y[id.x * 1024u + id.y] = x[id.y * 1024u + id.x];";
    let body = match tile {
        "" => direct.to_owned(),
        _ => "tile[l.y][l.x] = x[id.y * 1024u + id.x];
            workgroupBarrier();
            y[(g.x * 32u + l.y) * 1024u + g.y * 32u + l.x] = tile[l.x][l.y];"
            .to_owned(),
    };
    let text = format!(
        "{tile}
        @compute @workgroup_size(32, 8) fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_id) at: vec3<u32>) {{
            for (var row = 0u; row < 32u; row += 8u) {{ step(g, at + vec3<u32>(0u, row, 0u)); }}
        }}
        fn step(g: vec3<u32>, l: vec3<u32>) {{
            let id = g * 32u + l;
            {body}
        }}"
    );
    // A tile is read after all of it is written: the barrier within the loop would be too early, so such kernels have two loops.
    let text = if tile.is_empty() {
        text
    } else {
        format!(
            "{tile}
            @compute @workgroup_size(32, 8) fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_id) l: vec3<u32>) {{
                for (var row = l.y; row < 32u; row += 8u) {{ tile[row][l.x] = x[(g.y * 32u + row) * 1024u + g.x * 32u + l.x]; }}
                workgroupBarrier();
                for (var row = l.y; row < 32u; row += 8u) {{ y[(g.x * 32u + row) * 1024u + g.y * 32u + l.x] = tile[l.x][row]; }}
            }}"
        )
    };
    of(&text, [32, 32, 1], [1 << 20; 2])
}

#[test]
fn a_transpose_without_a_tile_writes_an_eighth_of_a_sector() {
    let Some(plain) = transposed("") else { return };
    // Whole sectors for the loads; a store of 4 bytes in each of 32 sectors.
    near(plain.requests[0].efficiency(), 2.0 / 9.0);
    near(plain.excess(), 1.0);
}

#[test]
fn a_transpose_with_a_tile_moves_whole_sectors() {
    let Some(tiled) = transposed("var<workgroup> tile: array<array<f32, 32>, 32>;") else { return };
    near(tiled.requests[0].efficiency(), 1.0);
    // A store without conflicts, a load of which all 32 words are in one bank.
    near(tiled.conflicts(), 33.0 / 2.0);
    let Some(padded) = transposed("var<workgroup> tile: array<array<f32, 33>, 32>;") else { return };
    near(padded.requests[0].efficiency(), 1.0);
    near(padded.conflicts(), 1.0);
}

#[test]
fn a_stride_of_all_banks_takes_a_cycle_for_each_invocation() {
    let text = "var<workgroup> w: array<f32, 2048>;
        @compute @workgroup_size(64) fn main(@builtin(local_invocation_index) i: u32, @builtin(workgroup_id) g: vec3<u32>) {
            w[i * 32u] = f32(i);
            workgroupBarrier();
            y[g.x * 64u + i] = w[i * 32u];
        }";
    let Some(strided) = of(text, [4, 1, 1], [64, 256]) else { return };
    near(strided.conflicts(), 32.0);
    near(strided.requests[0].efficiency(), 1.0);
}

#[test]
fn invocations_without_work_are_counted() {
    let text = "@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            if (id.x % 4u == 0u) { y[id.x] = x[id.x]; }
        }";
    let Some(quarter) = of(text, [16, 1, 1], [1024; 2]) else { return };
    near(quarter.requests[0].lanes(32), 0.25);
    near(quarter.requests[1].lanes(64), 0.25);
    near(quarter.requests[0].efficiency(), 0.25);
    near(quarter.excess(), 4.0);
    let text = "@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            if (id.x < 16u) { y[id.x] = x[id.x]; }
        }";
    let Some(few) = of(text, [1, 1, 1], [64; 2]) else { return };
    near(few.requests[0].lanes(32), 0.5);
    near(few.requests[1].lanes(64), 0.25);
}

#[test]
fn reads_of_other_workgroups_are_counted_apart() {
    // Each workgroup reads the same 64 words.
    let text = "@compute @workgroup_size(64) fn main(@builtin(local_invocation_index) i: u32, @builtin(global_invocation_id) id: vec3<u32>) {
            y[id.x] = x[i];
        }";
    let Some(shared) = of(text, [100, 1, 1], [64, 6400]) else { return };
    near(shared.traffic, 2.0 * 25_600.0);
    near(shared.once, 256.0 + 25_600.0);
    near(shared.least, 256.0 + 25_600.0);
}

#[test]
fn the_library_tells_of_the_kernels_that_it_runs() {
    let Some(device) = device() else { return };
    let kernels = crate::collect::kernels(device.name(), &[crate::bench::Workload::Chain], true).expect("a workload");
    let launches: u64 = kernels.iter().flat_map(|kernel| kernel.launches.values()).sum();
    assert_eq!(launches, 100, "additions, of which none becomes a chain: {kernels:?}");
    for kernel in &kernels {
        let figures = kernel.figures.as_ref().expect("a trace");
        assert_eq!((kernel.op.as_str(), figures.least), ("add", 48.0), "two vectors and their sum: {kernel:?}");
        near(figures.once, 96.0);
    }
}
