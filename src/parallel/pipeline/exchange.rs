//! What the stages of a pipeline pass to each other in one call, and how they wait for it.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::util::sync::lock;

/// The number of outputs that a stage may be ahead of the next one where no schedule bounds it.
const MOST_AHEAD: usize = 2;

/// What a stage takes: its input, or the gradient of its output, of one micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Message {
    Input { stage: usize, micro_batch: usize },
    Gradient { stage: usize, micro_batch: usize },
}

/// The messages of one call. Tensors of adapters go through the host. The sender reads without waiting for its device,
/// and the receiver writes to its own device, so that errors belong to the right device.
#[derive(Debug)]
pub(super) struct Exchange {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// What was sent and not taken yet. A gradient is `None` if no loss depends on the output.
    messages: HashMap<Message, Option<Tensor>>,
    stages: Vec<Stage>,
    /// The number of passes that all stages have done.
    done: usize,
    abandoned: bool,
}

#[derive(Clone, Debug, Default)]
struct Stage {
    /// The number of its messages that are being read from its device.
    reads: usize,
    /// The error of such a read.
    error: Option<Error>,
    /// Whether it waits for another stage.
    waiting: bool,
}

impl Exchange {
    pub fn new(stages: usize) -> Arc<Exchange> {
        let stages = vec![Stage::default(); stages];
        let state = State { messages: HashMap::new(), stages, done: 0, abandoned: false };
        Arc::new(Exchange { state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Sends the elements of a tensor of stage `from` to a stage on `device`.
    pub fn send(
        self: &Arc<Self>,
        from: usize,
        message: Message,
        tensor: Option<&Tensor>,
        device: &Device,
    ) -> Result<()> {
        let Some(tensor) = tensor.map(Tensor::detach) else {
            self.put(message, None);
            return Ok(());
        };
        if tensor.device().is_cpu() || tensor.device() == device {
            self.put(message, Some(tensor));
            return Ok(());
        }
        let (words, exchange) = (tensor.as_words()?, self.clone());
        let (shape, dtype, len) = (tensor.shape().to_vec(), tensor.dtype(), words.elem_count());
        self.update(|state| state.stages[from].reads += 1);
        words.to_vec_then::<u32>(move |words| {
            let arrived = words.and_then(|words| Tensor::from_vec(words, len, Device::cpu()));
            let arrived = arrived.and_then(|words| words.tensor_at_word(0, &shape, dtype));
            exchange.update(|state| {
                state.stages[from].reads -= 1;
                match arrived {
                    Ok(words) => _ = state.messages.insert(message, Some(words)),
                    Err(error) => state.stages[from].error = Some(error),
                }
            });
        });
        Ok(())
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// [`Error::Abandoned`] if another stage has failed; the error of an earlier message of this stage.
    pub fn take(&self, message: Message) -> Result<Option<Tensor>> {
        let (Message::Input { stage, .. } | Message::Gradient { stage, .. }) = message;
        self.wait(stage, |state| state.messages.remove(&message))
    }

    /// Waits until the next stage has taken most of what stage `from` has sent.
    pub fn wait_for_next(&self, from: usize) -> Result<()> {
        let ahead = |state: &State| {
            let waiting = |message: &&Message| matches!(message, Message::Input { stage, .. } if *stage == from + 1);
            state.messages.keys().filter(waiting).count() + state.stages[from].reads
        };
        self.wait(from, |state| (ahead(state) < MOST_AHEAD).then_some(()))
    }

    /// Waits until all messages of a stage have been read from its device.
    pub fn finish(&self, stage: usize) -> Result<()> {
        self.wait(stage, |state| (state.stages[stage].reads == 0).then_some(()))
    }

    /// Notes that a stage has done a pass.
    ///
    /// # Errors
    /// [`Error::Abandoned`] if another stage has failed.
    pub fn passed(&self) -> Result<()> {
        let abandoned = self.update(|state| {
            state.done += 1;
            state.abandoned
        });
        if abandoned { Err(Error::Abandoned) } else { Ok(()) }
    }

    /// Returns the number of passes that all stages have done.
    pub fn done(&self) -> usize {
        lock(&self.state).done
    }

    /// Returns whether a stage waits for another one.
    pub fn is_waiting(&self, stage: usize) -> bool {
        let stage = &lock(&self.state).stages[stage];
        stage.waiting && stage.reads == 0
    }

    /// Lets all stages end with an error.
    pub fn abandon(&self) {
        self.update(|state| state.abandoned = true);
    }

    fn put(&self, message: Message, tensor: Option<Tensor>) {
        self.update(|state| _ = state.messages.insert(message, tensor));
    }

    fn update<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut lock(&self.state));
        self.changed.notify_all();
        result
    }

    fn wait<T>(&self, stage: usize, mut ready: impl FnMut(&mut State) -> Option<T>) -> Result<T> {
        let mut state = lock(&self.state);
        let end = loop {
            if let Some(error) = state.stages[stage].error.clone() {
                break Err(error);
            }
            if state.abandoned {
                break Err(Error::Abandoned);
            }
            if let Some(result) = ready(&mut state) {
                break Ok(result);
            }
            state.stages[stage].waiting = true;
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        };
        state.stages[stage].waiting = false;
        drop(state);
        self.changed.notify_all(); // something may have been taken
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    fn input(micro_batch: usize) -> Message {
        Message::Input { stage: 1, micro_batch }
    }

    #[test]
    fn messages_keep_their_values_and_types_in_any_order() -> Result<()> {
        for device in Device::all() {
            let exchange = Exchange::new(2);
            let x = Tensor::arange(0.0, 15.0, 1.0, &device)?.reshape([3, 5])?;
            let sent = [x.t()?, x.narrow(0, 1, 2)?.to_dtype(DType::BF16)?, x.to_dtype(DType::U32)?];
            for (i, tensor) in sent.iter().enumerate() {
                exchange.send(0, input(i), Some(tensor), &Device::new("cpu/9")?)?;
            }
            exchange.send(0, input(3), None, &device)?;
            for (i, tensor) in sent.iter().enumerate().rev() {
                let got = exchange.take(input(i))?.expect("a tensor");
                assert_eq!((got.shape(), got.dtype()), (tensor.shape(), tensor.dtype()), "{device}");
                assert_eq!(got.to_dtype(DType::F32)?.to_vec::<f32>()?, tensor.to_dtype(DType::F32)?.to_vec::<f32>()?);
            }
            assert!(exchange.take(input(3))?.is_none());
            exchange.finish(0)?;
        }
        Ok(())
    }

    #[test]
    fn who_waits_is_told_of_the_end() {
        let exchange = Exchange::new(2);
        let waiting = exchange.clone();
        let thread = std::thread::spawn(move || waiting.take(input(0)));
        while !exchange.is_waiting(1) {
            std::thread::yield_now();
        }
        exchange.abandon();
        assert_eq!(thread.join().expect("no panic").map(|_| ()), Err(Error::Abandoned));
        assert_eq!((exchange.passed(), exchange.done()), (Err(Error::Abandoned), 1));
    }

    #[test]
    fn a_stage_is_not_far_ahead_of_the_next() -> Result<()> {
        let exchange = Exchange::new(2);
        let x = Tensor::zeros([2], None)?;
        (0..MOST_AHEAD).try_for_each(|i| {
            exchange.wait_for_next(0)?;
            exchange.send(0, input(i), Some(&x), &Device::cpu())
        })?;
        let waiting = exchange.clone();
        let thread = std::thread::spawn(move || waiting.wait_for_next(0));
        while !exchange.is_waiting(0) {
            std::thread::yield_now();
        }
        exchange.take(input(0))?;
        thread.join().expect("no panic")
    }
}
