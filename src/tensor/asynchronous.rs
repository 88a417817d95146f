//! Reading elements without waiting for the device.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_channel::oneshot::{Receiver, channel};
use web_time::Instant;

use crate::device::cpu::{copied, with_room};
use crate::device::{Backend, Storage};
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::ops::traced::note_use;
use crate::tensor::Tensor;

/// A [`Future`] for the elements of a tensor that is being read.
///
/// It works with any executor. [`Tensor::to_vec_async`] returns it.
///
/// The read proceeds whether or not the future is polled. Dropping the future ignores the result, and any error of the
/// work before it.
#[derive(Debug)]
#[must_use = "the elements arrive by .await or try_get()"]
pub struct PendingRead<T>(Receiver<Result<Vec<T>>>);

impl<T> PendingRead<T> {
    /// Returns the elements or the error if they have arrived, else `None`.
    ///
    /// They are returned only once. Use this in a program that draws frames and has no executor.
    pub fn try_get(&mut self) -> Option<Result<Vec<T>>> {
        match self.0.try_recv() {
            Ok(arrived) => arrived,
            Err(_) => Some(Err(nothing_left())),
        }
    }
}

impl<T> Future for PendingRead<T> {
    type Output = Result<Vec<T>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|arrived| arrived.unwrap_or_else(|_| Err(nothing_left())))
    }
}

fn nothing_left() -> Error {
    Error::argument("to_vec_async", "the elements were taken already, or the thread that reads them has ended")
}

impl Tensor {
    /// Starts to read the elements in row-major order, and returns at once.
    ///
    /// Use it on threads that must not wait for a device, such as a window's thread. The elements are the values at the
    /// time of the call, even if the tensor is written later.
    ///
    /// The recorded work is submitted. A thread of this crate takes the elements when the device has computed them. On
    /// `cpu` they are copied before this returns. On OpenGL, calls of all threads wait for each other.
    ///
    /// # Errors
    /// The future returns the errors of [`Tensor::to_vec`].
    ///
    /// ```
    /// # use anygpu::{Device, Tensor};
    /// for device in &Device::all() {
    ///     let x = Tensor::ones([64, 64], device)?;
    ///     let mut row_sums = x.matmul(&x)?.i(0)?.to_vec_async::<f32>();
    ///     let sums = loop {
    ///         if let Some(sums) = row_sums.try_get() {
    ///             break sums?;
    ///         }
    ///         // Draw the next frame.
    ///     };
    ///     assert_eq!(sums, [64.0; 64]);
    ///     let twice = pollster::block_on((&x * 2.0)?.to_vec_async::<f32>())?; // or .await
    ///     assert_eq!(twice, [2.0; 64 * 64]);
    /// }
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn to_vec_async<T: Element>(&self) -> PendingRead<T> {
        let (sender, receiver) = channel();
        // The receiver may be dropped by then.
        self.elements_later("to_vec_async", move |elements, _| drop(sender.send(elements)));
        PendingRead(receiver)
    }

    /// Asynchronous form of [`Tensor::item`].
    ///
    /// Use it on threads that must not wait, such as a browser page's thread. Elsewhere, it waits when it is polled.
    ///
    /// # Errors
    /// Same as [`Tensor::item`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// # pollster::block_on(async {
    /// let loss = Tensor::new([1.0, 2.5], None)?.mean_all()?;
    /// assert_eq!(loss.item_async::<f32>().await?, 1.75);
    /// # Ok::<(), anygpu::Error>(())
    /// # })?;
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub async fn item_async<T: Element>(&self) -> Result<T> {
        self.device().rerun(|| self.item()).await
    }

    /// Reads the elements in row-major order, and passes them to a function.
    ///
    /// Like [`Tensor::to_vec_async`], this does not wait for the device. A thread of this crate calls the function. On
    /// `cpu`, and if an error is known at once, the calling thread calls it before this returns.
    ///
    /// The function should be short, since other reads of the device wait for it. It must not wait for another read of
    /// the device.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// # use anygpu::Tensor;
    /// let (sender, receiver) = mpsc::channel();
    /// Tensor::new([1.0, 2.5], None)?.to_vec_then(move |elements: anygpu::Result<Vec<f32>>| {
    ///     sender.send(elements).ok(); // or ask the window to draw itself again
    /// });
    /// assert_eq!(receiver.recv().unwrap()?, [1.0, 2.5]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn to_vec_then<T: Element>(&self, then: impl FnOnce(Result<Vec<T>>) + Send + 'static) {
        self.elements_later("to_vec_then", |elements, _| then(elements));
    }

    /// As [`Tensor::to_vec_then`]; the function is also given the time when the device had computed the elements.
    pub(crate) fn elements_later<T: Element>(
        &self,
        op: &'static str,
        then: impl FnOnce(Result<Vec<T>>, Instant) + Send + 'static,
    ) {
        note_use(self, "are read by the host");
        let count = self.elem_count();
        let taken = move |words: Result<Vec<u32>>, ended: Instant| {
            then(words.and_then(|words| T::unpack(words, count, with_room)), ended);
        };
        let words = match self.typed::<T>(op).and_then(|()| self.as_words()) {
            Ok(words) => words,
            Err(error) => return taken(Err(error), Instant::now()),
        };
        let (start, len) = (words.layout().offset, words.elem_count());
        let now = match (words.storage(), words.device().backend()) {
            (Storage::Gpu(buffer), Ok(Backend::Gpu(gpu))) => return gpu.read_later(buffer, start, len, taken),
            (Storage::Cpu(buffer), Ok(_)) => copied(&buffer.read()[start..start + len]),
            (Storage::Gpu(_), Ok(Backend::Cpu(_))) => Err(self.misplaced()),
            (_, Err(error)) => Err(error),
        };
        taken(now, Instant::now());
    }
}
