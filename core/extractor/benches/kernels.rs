//! Single layers as the two networks have them at 224x224, by instruction set.

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use wayside_extractor::kernels::{Depthwise, Isa, Output, Pointwise, column_sums, gate};
use wayside_extractor::layer::{Layer, padded};
use wayside_extractor::quantized::{Grid, QuantConv};

/// Weights and numbers of a usual size.
fn conv(output: usize, input: usize, kernel: usize) -> QuantConv {
    let count = output * input * kernel * kernel;
    QuantConv {
        output,
        input,
        kernel,
        weight: (0..count)
            .map(|i| i8::try_from(i * 31 % 255).unwrap_or_default())
            .collect(),
        bias: vec![100; output],
        scale: vec![1e-4; output],
    }
}

fn grid(channels: usize, zero: u8) -> Grid {
    Grid {
        scale: vec![0.02; channels],
        zero: vec![zero; channels],
    }
}

fn here() -> impl Iterator<Item = Isa> {
    let fast = Isa::ALL.into_iter().skip(1);
    fast.filter(|isa| isa.is_available())
}

fn products(group: &mut BenchmarkGroup<'_, WallTime>, count: usize) {
    group.throughput(Throughput::Elements(count as u64));
}

fn pointwise(c: &mut Criterion) {
    for (name, input, output, pixels) in [
        ("expand 16 to 72, row of 56", 16, 72, 56),
        ("expand 40 to 240, row of 14", 40, 240, 14),
        ("expand 96 to 576, row of 7", 96, 576, 7),
        ("project 72 to 24, rows of 28", 72, 24, 56),
        ("project 576 to 96, 7x7", 576, 96, 49),
        ("project 960 to 160, 7x7", 960, 160, 49),
    ] {
        let mut group = c.benchmark_group(name);
        products(&mut group, input * output * pixels);
        for isa in here() {
            let conv = conv(output, input, 1);
            let layer = if name.starts_with("expand") {
                Layer::hard_swish(&conv, &grid(output, 30), 1.0 / 6.0)
            } else {
                Layer::linear(&conv, &grid(output, 128), None)
            };
            let kernel = Pointwise::new(isa, layer, 1);
            let from = vec![90; pixels * padded(input)];
            let mut to = vec![0; pixels * padded(output)];
            let mut scratch = vec![0; kernel.scratch()];
            group.bench_function(isa.name(), |b| {
                b.iter(|| {
                    let (to, residual): (_, &[u8]) = (&mut to, &[]);
                    let output = Output::Bytes { to, residual };
                    kernel.run(&[&from], (padded(input), pixels), output, &mut scratch);
                });
            });
        }
        group.finish();
    }
}

fn depthwise(c: &mut Criterion) {
    for (name, channels, kernel, stride, pixels) in [
        ("depthwise 3x3, 88, two rows of 28", 88, 3, 1, 28),
        ("depthwise 3x3 stride 2, 64, row of 56", 64, 3, 2, 56),
        ("depthwise 5x5, 240, two rows of 14", 240, 5, 1, 14),
        ("depthwise 5x5, 576, two rows of 7", 576, 5, 1, 7),
    ] {
        let rows = if stride == 1 { 2 } else { 1 };
        let mut group = c.benchmark_group(name);
        products(&mut group, channels * kernel * kernel * pixels * rows);
        for isa in here() {
            let conv = conv(channels, 1, kernel);
            let layer = Layer::hard_swish(&conv, &grid(channels, 30), 1.0 / 6.0);
            let depthwise = Depthwise::new(isa, layer, (kernel, stride));
            let step = padded(channels);
            let from = vec![90; ((pixels - 1) * stride + kernel + 1) * step];
            let mut to = vec![0; pixels * rows * step];
            let mut scratch = vec![0; depthwise.scratch()];
            let under = [from.as_slice(); 6];
            group.bench_function(isa.name(), |b| {
                b.iter(|| depthwise.run(&under, (pixels, rows), &mut to, &mut scratch));
            });
        }
        group.finish();
    }
}

fn gates(c: &mut Criterion) {
    let mut group = c.benchmark_group("gate, 240 of 14x14");
    products(&mut group, 240 * 196);
    for isa in here() {
        let mut plane = vec![90; 240 * 196];
        let (zero, factor) = (vec![30; 240], vec![900; 240]);
        let mut sums = vec![0; 240];
        group.bench_function(format!("{isa}, sums"), |b| {
            b.iter(|| column_sums(isa, &plane, &mut sums));
        });
        group.bench_function(format!("{isa}, product"), |b| {
            b.iter(|| gate(isa, &mut plane, &zero, &factor, &zero));
        });
    }
    group.finish();
}

criterion_group!(benches, pointwise, depthwise, gates);
criterion_main!(benches);
