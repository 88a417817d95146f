//! Kernels that are compiled ahead of their first use.

use anygpu::nn::{self, Module};
use anygpu::optim::SGD;
use anygpu::{Device, KernelList, Result, Tensor, manual_seed};

use crate::common::{alone, device};

/// The losses of two steps of a small net.
fn losses(device: &Device) -> Result<Vec<f32>> {
    manual_seed(3);
    let net = nn::Sequential::new().push(nn::Conv2d::new(1, 4, 3)?).push(nn::ReLU).push(nn::Flatten);
    let net = net.push(nn::Linear::new(4 * 6 * 6, 5)?).to(device)?;
    let images = Tensor::rand([6, 1, 8, 8], None)?.to(device)?;
    let labels = Tensor::from_vec(vec![0u32, 1, 2, 3, 4, 0], 6, device)?;
    let mut sgd = SGD::new(net.parameters(), 0.1).momentum(0.9);
    let mut losses = Vec::new();
    for _ in 0..2 {
        sgd.zero_grad();
        let loss = nn::cross_entropy(&net.forward(&images)?, &labels)?;
        loss.backward()?;
        sgd.step()?;
        losses.push(loss.item()?);
    }
    Ok(losses)
}

/// A list of one device is compiled on another one, which then needs no other kernel for the same work and has the same numbers.
#[test]
fn a_list_has_all_kernels_of_the_work() -> Result<()> {
    let _alone = alone();
    for name in ["soft:0", "soft:1", "soft:2", "soft:3"] {
        let [Some(first), Some(second)] = [11, 12].map(|i| device(&format!("{name}/{i}"))) else { continue };
        let expected = losses(&first)?;
        let text = first.compiled_kernels().to_string();
        let list: KernelList = text.parse()?;
        assert!(list.len() > 5 && list == first.compiled_kernels(), "{text}");
        assert_eq!(second.compile_ahead(&list)?.wait()?, list.len(), "{name}");
        let sorted = |device: &Device| {
            let text = device.compiled_kernels().to_string();
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(&second), sorted(&first), "{name}: compiled");
        assert_eq!(losses(&second)?, expected, "{name}");
        assert_eq!(sorted(&second), sorted(&first), "{name}: used");
    }
    Ok(())
}

/// Work that needs a kernel of the list while it is compiled waits for it.
#[test]
fn work_goes_on_while_kernels_are_compiled() -> Result<()> {
    let _alone = alone();
    for name in ["soft:0", "soft:1", "soft:2", "soft:3"] {
        let [Some(first), Some(second)] = [13, 14].map(|i| device(&format!("{name}/{i}"))) else { continue };
        let expected = losses(&first)?;
        let compiling = second.compile_ahead(&first.compiled_kernels())?;
        assert_eq!(losses(&second)?, expected, "{name}");
        assert_eq!(compiling.wait()?, first.compiled_kernels().len(), "{name}");
    }
    Ok(())
}

#[test]
fn what_a_device_does_not_have_is_left_out() -> Result<()> {
    let _alone = alone();
    let list: KernelList = "# kernels of anygpu\n# a comment\n\nno_shader run 0 1 1\n".parse()?;
    assert_eq!(list.len(), 1);
    assert_eq!(Device::cpu().compile_ahead(&list)?.wait()?, 0);
    assert!(Device::cpu().compiled_kernels().is_empty());
    let Some(soft) = device("soft:0/15") else { return Ok(()) };
    let x = Tensor::rand([4, 4], &soft)?;
    x.matmul(&x)?.to_vec::<f32>()?;
    let good = soft.compiled_kernels();
    let line = good.to_string().lines().nth(1).unwrap_or_default().to_owned();
    let mut words: Vec<&str> = line.split(' ').collect();
    words[1] = "no_entry_point";
    let entry = words.join(" ");
    let bad = format!("# kernels of anygpu\n{entry}\n{line} NO_CONSTANT=0\n{line} x\n{line}\n");
    let mut list: KernelList = bad.parse()?;
    assert_eq!(soft.compile_ahead(&list)?.wait()?, 1, "{bad}");
    assert_eq!(x.matmul(&x)?.shape(), [4, 4]);
    list.merge(&good);
    list.merge(&good);
    assert_eq!(list.len(), 3 + good.len());
    for text in ["", "kernels", "# kernels of another program\n"] {
        assert!(text.parse::<KernelList>().unwrap_err().to_string().contains("# kernels of anygpu"), "{text:?}");
    }
    Ok(())
}
