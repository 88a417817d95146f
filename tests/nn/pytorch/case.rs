//! One case of the reference: its tensors, its arguments, and the comparison of its results.

use anygpu::{DType, Device, Tensor};
use serde_json::Value;

use super::ops;
use crate::common::{EXACT, Nd, Tolerance, difference};

pub fn dtype(name: &Value) -> DType {
    match name.as_str() {
        Some("f32") => DType::F32,
        Some("f16") => DType::F16,
        Some("bf16") => DType::BF16,
        Some("i32") => DType::I32,
        Some("u32") => DType::U32,
        Some("u8") => DType::U8,
        Some("bool") => DType::Bool,
        _ => panic!("an element type, not {name}"),
    }
}

pub fn shape(value: &Value) -> Vec<usize> {
    value["shape"].as_array().expect("a shape").iter().map(|size| size.as_u64().expect("a size") as usize).collect()
}

/// Elements as f64; JSON has no names for some, so they are strings.
pub fn numbers(value: &Value) -> Vec<f64> {
    let one = |number: &Value| match number.as_str() {
        Some(text) => text.parse().expect("nan, inf or -0"),
        None => number.as_f64().expect("a number"),
    };
    value["data"].as_array().expect("elements").iter().map(one).collect()
}

pub fn tensor(values: &[f64], shape: &[usize], dtype: DType, device: &Device) -> anygpu::Result<Tensor> {
    let wide = match dtype {
        DType::I32 => Tensor::from_slice(&values.iter().map(|&v| v as i32).collect::<Vec<_>>(), shape, device)?,
        DType::U32 => Tensor::from_slice(&values.iter().map(|&v| v as u32).collect::<Vec<_>>(), shape, device)?,
        _ => Tensor::from_slice(&values.iter().map(|&v| v as f32).collect::<Vec<_>>(), shape, device)?,
    };
    wide.to_dtype(dtype)
}

fn read(value: &Value, device: &Device) -> anygpu::Result<Tensor> {
    tensor(&numbers(value), &shape(value), dtype(&value["dtype"]), device)
}

/// What f32 makes of the reference's f64: past its range, infinity.
fn expected(value: &Value) -> Nd {
    Nd::new(&shape(value), numbers(value).into_iter().map(|v| f64::from(v as f32)).collect())
}

pub struct Case<'a>(pub &'a Value);

impl Case<'_> {
    pub fn op(&self) -> &str {
        self.0["op"].as_str().expect("a name")
    }

    fn arg(&self, name: &str) -> &Value {
        &self.0["args"][name]
    }

    pub fn text(&self, name: &str) -> &str {
        self.arg(name).as_str().unwrap_or_default()
    }

    pub fn flag(&self, name: &str) -> bool {
        self.arg(name).as_bool().unwrap_or_default()
    }

    pub fn float(&self, name: &str) -> f64 {
        match self.arg(name).as_str() {
            Some(text) => text.parse().expect("inf"),
            None => self.arg(name).as_f64().unwrap_or_default(),
        }
    }

    pub fn int(&self, name: &str) -> i64 {
        self.arg(name).as_i64().unwrap_or_default()
    }

    pub fn dim(&self) -> usize {
        self.size("dim")
    }

    pub fn size(&self, name: &str) -> usize {
        self.int(name) as usize
    }

    pub fn sizes(&self, name: &str) -> Vec<usize> {
        let list = self.arg(name).as_array().map_or(&[][..], Vec::as_slice);
        list.iter().map(|size| size.as_u64().expect("a size") as usize).collect()
    }

    /// One number for both directions, or two; `default` where it is left out.
    pub fn pair(&self, name: &str, default: usize) -> [usize; 2] {
        match self.arg(name) {
            Value::Null => [default; 2],
            Value::Array(pair) => [0, 1].map(|i| pair[i].as_u64().expect("a size") as usize),
            one => [one.as_u64().expect("a size") as usize; 2],
        }
    }

    /// Values, and gradients where the reference has them.
    pub fn check(&self, device: &Device) -> Result<(), String> {
        let fault = |text: String| format!("{} {}: {text}", self.op(), self.0["args"]);
        let run = self.run(device).map_err(|error| fault(error.to_string()))?;
        run.into_iter().try_for_each(|(what, got, expected)| {
            difference(&got, &expected, self.tolerance(&got)).map_err(|text| fault(format!("{what}: {text}")))
        })
    }

    /// f32 all the way, against f64: a few roundings, more of them where sums are long.
    fn tolerance(&self, got: &Tensor) -> Tolerance {
        match got.dtype() {
            DType::F32 => Tolerance { atol: 1e-5, rtol: 2e-5 },
            _ => EXACT,
        }
    }

    fn run(&self, device: &Device) -> anygpu::Result<Vec<(String, Tensor, Nd)>> {
        let list = |name: &str| self.0[name].as_array().map_or(&[][..], Vec::as_slice);
        let grads = list("grads");
        let mut inputs = Vec::new();
        for (i, input) in list("inputs").iter().enumerate() {
            let tensor = read(input, device)?;
            let tracked = grads.get(i).is_some_and(|grad| !grad.is_null());
            inputs.push(if tracked { tensor.requires_grad() } else { tensor });
        }
        let outputs = ops::run(self, &inputs)?;
        let mut compared = Vec::new();
        for (i, (got, value)) in outputs.iter().zip(list("outputs")).enumerate() {
            compared.push((format!("output {i}"), got.clone(), expected(value)));
        }
        if !grads.is_empty() {
            outputs[0].mul(&read(&self.0["weights"], device)?)?.sum_all()?.backward()?;
        }
        for (i, (input, grad)) in inputs.iter().zip(grads).enumerate().filter(|(_, (_, grad))| !grad.is_null()) {
            let got = match input.grad() {
                Some(got) => got,
                None => input.detach().mul_scalar(0.0)?,
            };
            compared.push((format!("gradient {i}"), got, expected(grad)));
        }
        Ok(compared)
    }
}
