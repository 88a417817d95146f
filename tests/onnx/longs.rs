//! Numbers of 64 bits: what ONNX Runtime gives for models of one operator, on every device.

use anygpu::Device;

use super::models::{graph, node};
use super::proto::Attribute;
use super::table::{
    Array, BOOL, DOUBLE, FLOAT, HALF, INT8, INT32, INT64, UINT8, UINT64, doubles, expect, int, longs, real,
};
use super::table::{info, model, refused, singles, text, whole};

const BIG: i64 = 1 << 40;

#[test]
fn arithmetic_of_int64_is_exact() {
    let two = |op: &str, a: &[i64], b: &[i64], y: &[i64]| {
        expect(op, &[], &[longs(a), longs(b)], 2, &[longs(y)]);
        expect(op, &[], &[longs(a), longs(b)], 1, &[longs(y)]);
    };
    two("Mul", &[70000, i32::MAX.into()], &[70000, 2], &[4_900_000_000, 4_294_967_294]);
    two("Add", &[BIG, -5], &[1, 1 << 33], &[BIG + 1, (1 << 33) - 5]);
    two("Sub", &[i32::MIN.into(), i64::MIN], &[1, 1], &[-2_147_483_649, i64::MAX]);
    two("Mod", &[BIG + 7, -(1 << 33)], &[1_000_003, 1_000_003], &[329_259, 91_178]);
    two("Div", &[BIG + 7, -7], &[3, 2], &[366_503_875_927, -3]);
    two("Pow", &[1, -1, 2, 10, 2], &[-5, -3, -1, 18, 62], &[1, -1, 0, 1_000_000_000_000_000_000, 1 << 62]);
    two("Max", &[BIG, 3], &[2, 1 << 41], &[BIG, 1 << 41]);
    two("BitwiseAnd", &[BIG + 3, -1], &[BIG + 1, 1 << 50], &[BIG + 1, 1 << 50]);
    let one = |op: &str, x: &[i64], y: &[i64]| expect(op, &[], &[longs(x)], 1, &[longs(y)]);
    one("Neg", &[i64::MIN, 5, i32::MIN.into()], &[i64::MIN, -5, 1 << 31]);
    one("Abs", &[i64::MIN, -BIG, i32::MIN.into()], &[i64::MIN, BIG, 1 << 31]);
    one("Sign", &[i64::MIN, -BIG, 0], &[-1, -1, 0]);
    one("Relu", &[-BIG, BIG], &[0, BIG]);
    expect(
        "Mod",
        &[int("fmod", 1)],
        &[longs(&[BIG + 7, -(1 << 33), 7]), longs(&[1_000_003, 1_000_003, -3])],
        2,
        &[longs(&[329_259, -908_825, 1])],
    );
    expect("Pow", &[], &[longs(&[3, 2, 7]), real(FLOAT, &[0.5, 2.5, 2.0])], 1, &[longs(&[1, 5, 49])]);
    let single = |v: i64| longs(&[v]).shaped(&[]);
    expect(
        "Clip",
        &[],
        &[longs(&[-BIG, BIG, 3]), single(-(1 << 35)), single(1 << 35)],
        1,
        &[longs(&[-(1 << 35), 1 << 35, 3])],
    );
    expect("Range", &[], &[single(BIG), single(BIG + 5), single(2)], 3, &[longs(&[BIG, BIG + 2, BIG + 4])]);
    expect("Less", &[], &[longs(&[BIG]), longs(&[BIG + 1])], 2, &[whole(BOOL, &[1])]);
}

/// More elements than the host keeps of an input: words on the device, whose products need more bits.
#[test]
fn many_integers_are_exact_too() {
    let x = longs(&[70_000; 5000]);
    expect("Mul", &[], &[x.clone(), x.clone()], 2, &[longs(&[4_900_000_000; 5000])]);
    expect("ReduceSum", &[int("keepdims", 0)], std::slice::from_ref(&x), 1, &[longs(&[350_000_000]).shaped(&[])]);
    expect("Gather", &[], &[longs(&[BIG, -BIG, 7]), longs(&[1; 5000])], 2, &[longs(&[-BIG; 5000])]);
    expect("Cast", &[int("to", 1)], &[x], 1, &[real(FLOAT, &[70_000.0; 5000])]);
    expect("Mul", &[], &[longs(&[BIG; 5000]), longs(&[3; 5000])], 2, &[longs(&[3 * BIG; 5000])]);
}

#[test]
fn sums_and_products_of_integers_are_exact() {
    let x = longs(&[(1 << 33) + 1, -5, 4, 7, 8, -10]).shaped(&[2, 3]);
    let along = |op: &str, y: &[i64]| expect(op, &[], &[x.clone(), longs(&[1])], 1, &[longs(y).shaped(&[2, 1])]);
    along("ReduceSum", &[1 << 33, 5]);
    along("ReduceMean", &[2_863_311_530, 1]);
    along("ReduceProd", &[-171_798_691_860, -560]);
    along("ReduceMax", &[(1 << 33) + 1, 8]);
    along("ReduceL1", &[8_589_934_602, 25]);
    along("ReduceL2", &[8_589_934_593, 14]);
    along("ReduceLogSum", &[22, 1]);
    along("ReduceLogSumExp", &[8_589_934_593, 8]);
    expect("ReduceMean", &[int("keepdims", 0)], &[longs(&[-5, -6])], 1, &[longs(&[-5]).shaped(&[])]);
    let narrow = whole(INT32, &[70_001, -5, 4, 7, 8, -10]).shaped(&[2, 3]);
    expect("ReduceMean", &[], &[narrow, longs(&[1])], 1, &[whole(INT32, &[23_333, 1]).shaped(&[2, 1])]);
    expect(
        "CumSum",
        &[],
        &[longs(&[1 << 33, 1 << 33, 3]), longs(&[0]).shaped(&[])],
        1,
        &[longs(&[1 << 33, 1 << 34, (1 << 34) + 3])],
    );
    for code in [INT64, UINT64] {
        let a = whole(code, &[1 << 33, 3, 1, 2]).shaped(&[2, 2]);
        let b = whole(code, &[(1 << 33) + 1, 1, 5, 7]).shaped(&[2, 2]);
        let y = whole(code, &[8_589_934_607, 8_589_934_613, 8_589_934_603, 15]).shaped(&[2, 2]);
        expect("MatMul", &[], &[a.clone(), b.clone()], 2, std::slice::from_ref(&y));
        expect("MatMul", &[], &[a, b], 1, &[y]);
    }
    let a = whole(INT32, &[1 << 17, 3, 1, 2]).shaped(&[2, 2]);
    let b = whole(INT32, &[1 << 17, 1, 5, 7]).shaped(&[2, 2]);
    expect("MatMul", &[], &[a, b], 2, &[whole(INT32, &[15, 131_093, 131_082, 15]).shaped(&[2, 2])]);
    let added = [longs(&[BIG, 1, 2]), longs(&[0, 0, 2]), longs(&[1, 2, BIG])];
    expect("ScatterElements", &[text("reduction", "add")], &added, 3, &[longs(&[BIG + 3, 1, BIG + 2])]);
}

#[test]
fn what_moves_elements_keeps_64_bits() {
    let x = longs(&[BIG, 1 - BIG, 2, 3]).shaped(&[2, 2]);
    expect("Transpose", &[], std::slice::from_ref(&x), 1, &[longs(&[BIG, 2, 1 - BIG, 3]).shaped(&[2, 2])]);
    expect("Where", &[], &[whole(BOOL, &[1, 0]), longs(&[BIG, 1]), longs(&[2, 1 << 41])], 3, &[longs(&[BIG, 1 << 41])]);
    expect(
        "Pad",
        &[],
        &[longs(&[BIG]), longs(&[1, 1]), longs(&[1 << 41]).shaped(&[])],
        1,
        &[longs(&[1 << 41, BIG, 1 << 41])],
    );
    expect(
        "TopK",
        &[],
        &[longs(&[BIG, BIG + 1, -(1 << 50)]), longs(&[2])],
        1,
        &[longs(&[BIG + 1, BIG]), longs(&[1, 0])],
    );
    expect(
        "TopK",
        &[],
        &[doubles(&[1e9 + 0.25, 1e9 + 0.5, -2.0]), longs(&[2])],
        1,
        &[doubles(&[1e9 + 0.5, 1e9 + 0.25]), longs(&[1, 0])],
    );
    expect("Trilu", &[], std::slice::from_ref(&x), 1, &[longs(&[BIG, 1 - BIG, 0, 3]).shaped(&[2, 2])]);
    let hot = [longs(&[1]), longs(&[3]).shaped(&[]), longs(&[BIG, 1 << 41])];
    expect("OneHot", &[], &hot, 1, &[longs(&[BIG, 1 << 41, BIG]).shaped(&[1, 3])]);
    expect("ArgMax", &[], &[longs(&[BIG, BIG + 1])], 1, &[longs(&[1])]);
    expect("ArgMax", &[], &[doubles(&[1e9, 1e9 + 0.25])], 1, &[longs(&[1])]);
    expect("ArgMax", &[], &[real(FLOAT, &[1.0, 2.0])], 1, &[longs(&[1])]);
    let split = [longs(&[BIG, 5]).shaped(&[2, 1]), longs(&[1, 1])];
    expect("Split", &[], &split, 1, &[longs(&[BIG]).shaped(&[1, 1]), longs(&[5]).shaped(&[1, 1])]);
    expect(
        "Concat",
        &[int("axis", 0)],
        &[longs(&[BIG]), longs(&[1; 5000])],
        2,
        &[longs(&[&[BIG][..], &[1; 5000]].concat())],
    );
}

#[test]
fn arithmetic_of_double_is_exact() {
    let two = |op: &str, a: &[f64], b: &[f64], y: &[f64]| expect(op, &[], &[doubles(a), doubles(b)], 2, &[doubles(y)]);
    two("Sub", &[1e9 + 0.25], &[1e9], &[0.25]);
    two("Max", &[f64::NAN, 1.0, 2.0], &[1.0, f64::NAN, 3.0], &[f64::NAN, f64::NAN, 3.0]);
    expect("Equal", &[], &[doubles(&[1e9 + 0.25]), doubles(&[1e9])], 2, &[whole(BOOL, &[0])]);
    expect("Pow", &[], &[doubles(&[1.1, -2.0]), longs(&[3, 3])], 2, &[doubles(&[1.331_000_000_000_000_4, -8.0])]);
    expect("MatMul", &[], &[doubles(&[1e9, 0.25]), doubles(&[1.0, 1.0])], 2, &[doubles(&[1e9 + 0.25]).shaped(&[])]);
    let one = |op: &str, x: &[f64], y: &[f64]| expect(op, &[], &[doubles(x)], 1, &[doubles(y)]);
    one("Sqrt", &[0.3, 2.0], &[0.547_722_557_505_166_1, 2f64.sqrt()]);
    one("Exp", &[0.3, 2.0], &[1.349_858_807_576_003_2, 7.389_056_098_930_65]);
    one("Tanh", &[0.3], &[0.291_312_612_451_590_85]);
    one("Sigmoid", &[0.3], &[0.574_442_516_811_659]);
    one("Softmax", &[1.0, 2.0, 3.0], &[0.090_030_573_170_380_48, 0.244_728_471_054_797_64, 0.665_240_955_774_821_9]);
    one("LogSoftmax", &[1.0, 2.0, 3.0], &[-2.407_605_964_444_38, -1.407_605_964_444_380_1, -0.407_605_964_444_380_24]);
    one("Reciprocal", &[0.3], &[3.333_333_333_333_333_5]);
    let x = doubles(&[8_589_934_593.0, -5.0, 4.0, 7.0, 8.0, -10.0]).shaped(&[2, 3]);
    let along = |op: &str, y: &[f64]| expect(op, &[], &[x.clone(), longs(&[1])], 1, &[doubles(y).shaped(&[2, 1])]);
    along("ReduceMean", &[2_863_311_530.666_666_5, 1.666_666_666_666_666_7]);
    along("ReduceL2", &[8_589_934_593.0, 14.594_519_519_326_424]);
    along("ReduceLogSumExp", &[8_589_934_593.0, 8.313_261_698_652_23]);
    let single = |v: f64| doubles(&[v]).shaped(&[]);
    let clipped = [doubles(&[-2e40, 1e9 + 0.25, 3.0]), single(-1e30), single(1e9 + 0.125)];
    expect("Clip", &[], &clipped, 1, &[doubles(&[-1e30, 1e9 + 0.125, 3.0])]);
    expect("Range", &[], &[single(0.1), single(1.0), single(0.3)], 3, &[doubles(&[0.1, 0.4, 0.7])]);
    expect("PRelu", &[], &[doubles(&[-1e9 - 0.25, 1.0]), doubles(&[2.0])], 2, &[doubles(&[-2_000_000_000.5, 1.0])]);
    let batch =
        [doubles(&[0.3, 0.7, 2.0]).shaped(&[1, 3])].into_iter().chain((0..4).map(|_| doubles(&[1.0, 2.0, 3.0])));
    let y = [0.300_003_499_973_661_7, 0.161_526_965_091_702_06, 1.267_952_079_175_178_6];
    expect("BatchNormalization", &[], &batch.collect::<Vec<_>>(), 5, &[doubles(&y).shaped(&[1, 3])]);
}

#[test]
fn casts_round_and_wrap_as_onnx_runtime() {
    let cast = |x: Array, y: Array| expect("Cast", &[int("to", y.code.into())], &[x], 1, &[y]);
    let x = || doubles(&[1.5, -1.5, 2.5, 300.7, -300.7, 3e9, -3e9, 1e19, -1e19, f64::NAN, 9_007_199_254_740_993.0]);
    let least = i64::MIN;
    let y = [1, -1, 2, 300, -300, 3_000_000_000, -3_000_000_000, least, least, least, 9_007_199_254_740_992];
    cast(x(), longs(&y));
    cast(real(FLOAT, &[1.5, -2.5, 3e9, 1e19, f64::INFINITY]), longs(&[1, -2, 3_000_000_000, least, least]));
    cast(doubles(&[1.5, -1.5, 300.7, -300.7, 1e300]), whole(UINT8, &[1, 255, 44, 212, 0]));
    cast(real(FLOAT, &[1.5, -1.5, 300.7, -300.7]), whole(UINT8, &[1, 255, 44, 212]));
    cast(doubles(&[0.1, 1e300, 16_777_217.0]), real(FLOAT, &[0.1, f64::INFINITY, 16_777_216.0]));
    cast(real(FLOAT, &[0.1, -3.5]), doubles(&[f64::from(0.1f32), -3.5]));
    cast(longs(&[300, -1, (1 << 32) + 5, -BIG]), whole(UINT8, &[44, 255, 5, 0]));
    cast(longs(&[300, -1, (1 << 32) + 5, 200]), whole(INT8, &[44, -1, 5, -56]));
    cast(longs(&[300, -1, (1 << 32) + 5, i64::MAX]), whole(INT32, &[300, -1, 5, -1]));
    // Rounded once: by way of f64, the last but one would be a tie that goes down.
    let halfway = (1 << 62) + (1 << 38) + 1;
    let floats = [9_007_199_254_740_992.0, 16_777_216.0, 4_611_686_568_183_202_000.0, 9_223_372_036_854_775_807.0];
    cast(longs(&[(1 << 53) + 1, 16_777_217, halfway, i64::MAX]), real(FLOAT, &floats));
    cast(longs(&[(1 << 53) + 1, -BIG]), doubles(&[9_007_199_254_740_992.0, -1_099_511_627_776.0]));
    cast(longs(&[300, 65_505, 1 << 53]), real(HALF, &[300.0, 65_504.0, f64::INFINITY]));
    cast(whole(UINT8, &[200, 0]), longs(&[200, 0]));
    cast(longs(&[BIG, 0]), whole(BOOL, &[1, 0]));
    cast(longs(&[BIG, 0]), whole(UINT64, &[BIG, 0]));
}

#[test]
fn uint64_is_exact_below_63_bits_and_refused_beyond() {
    let u = |values: &[i64]| whole(UINT64, values);
    let shift = |way: &str, a: &[i64], b: &[i64], y: &[i64]| {
        expect("BitShift", &[text("direction", way)], &[u(a), u(b)], 2, &[u(y)]);
    };
    shift("LEFT", &[1, 1, 3, 7], &[62, 64, 70, 0], &[1 << 62, 0, 0, 7]);
    shift("RIGHT", &[BIG, 5, 1 << 62], &[38, 64, 61], &[4, 0, 2]);
    expect("Add", &[], &[u(&[BIG, 1]), u(&[BIG, i64::from(u32::MAX)])], 2, &[u(&[2 * BIG, 1 << 32])]);
    let refused = |op: &str, attributes: &[Attribute], inputs: &[Array]| {
        refused(op, attributes, inputs, inputs.len(), &[op, "not supported"]);
    };
    refused("BitShift", &[text("direction", "LEFT")], &[u(&[1]), u(&[63])]);
    refused("Sub", &[], &[u(&[1]), u(&[2])]);
    refused("Cast", &[int("to", 13)], &[longs(&[-1])]);
    refused("BitwiseNot", &[], &[u(&[1])]);
}

/// An operator without a form for floats of 64 bits names itself, on every device.
#[test]
fn doubles_are_refused_where_they_would_be_rounded() {
    let ones = |shape: &[usize]| doubles(&vec![1.0; shape.iter().product()]).shaped(shape);
    refused("Conv", &[], &[ones(&[1, 1, 2, 2]), ones(&[1, 1, 1, 1])], 1, &["Conv", "double is not supported"]);
    refused("GlobalAveragePool", &[], &[ones(&[1, 1, 2])], 1, &["GlobalAveragePool", "double is not supported"]);
    refused("Gather", &[], &[singles(&[1.0, 2.0]), longs(&[1 << 40])], 1, &["Gather", "1099511627776"]);
}

/// What is fused for floats is computed in 64 bits too.
#[test]
fn patterns_of_double_are_exact() {
    let nodes = vec![
        node("Sigmoid", &["x"], &["s"], vec![]),
        node("Mul", &["x", "s"], &["y"], vec![]),
        node("Transpose", &["k"], &["t"], vec![]),
        node("MatMul", &["q", "t"], &["scores"], vec![]),
        node("Softmax", &["scores"], &["weights"], vec![]),
        node("MatMul", &["weights", "v"], &["z"], vec![]),
    ];
    let infos = |names: &[&str]| names.iter().map(|name| info(name, DOUBLE)).collect();
    let model = model(graph(nodes, vec![], infos(&["x", "q", "k", "v"]), infos(&["y", "z"])), 18);
    let matrix = |values: &[f64]| doubles(values).shaped(&[2, 2]);
    let x = doubles(&[0.3]).tensor(&Device::cpu());
    let [q, k, v] =
        [matrix(&[0.3, 1.7, 1e3, -2.0]), matrix(&[0.5, 0.25, -1.0, 2.0]), matrix(&[1e9 + 0.25, 1.0, 2.0, -3.0])]
            .map(|array| array.tensor(&Device::cpu()));
    let outputs = model.run(&[("x", &x), ("q", &q), ("k", &k), ("v", &v)]).unwrap();
    doubles(&[0.172_332_755_043_497_7]).expect(&outputs["y"], "swish");
    matrix(&[74_124_067.060_946_02, -2.703_503_739_237_347_3, 1_000_000_000.25, 1.0])
        .near(1e-14)
        .expect(&outputs["z"], "attention");
}
