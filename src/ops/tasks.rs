//! Tasks of the host that the calling thread shares with others.

use std::sync::Mutex;

use crate::error::Result;
use crate::sync::lock;

/// Runs all tasks, the calling thread among those that do: for short work, waking one thread less is worth it.
pub(in crate::ops) fn share<T: Send>(tasks: Vec<T>, run: impl Fn(T) -> Result<()> + Sync) -> Result<()> {
    let others = rayon::current_num_threads().min(tasks.len()).saturating_sub(1);
    if others == 0 {
        return tasks.into_iter().try_for_each(run);
    }
    let (rest, failed) = (Mutex::new(tasks.into_iter()), Mutex::new(Ok(())));
    let work = || {
        while let Some(task) = next(&rest) {
            if let Err(error) = run(task) {
                *lock(&failed) = Err(error);
            }
        }
    };
    rayon::in_place_scope(|scope| {
        (0..others).for_each(|_| scope.spawn(|_| work()));
        work();
    });
    std::mem::replace(&mut *lock(&failed), Ok(()))
}

/// Returns the memory of a task, which could not be had if it is an error.
pub(in crate::ops) fn task_memory<T>(memory: &mut Result<T>) -> Result<&mut T> {
    memory.as_mut().map_err(|error| error.clone())
}

fn next<T>(tasks: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    lock(tasks).next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn every_task_is_run_once_and_an_error_is_returned() -> Result<()> {
        for count in [0, 1, 2, 50] {
            let mut out = vec![0; count];
            share(out.iter_mut().enumerate().collect(), |(i, v)| {
                *v += i + 1;
                Ok(())
            })?;
            assert!(out.iter().enumerate().all(|(i, v)| *v == i + 1));
        }
        let fails = |i: usize| if i == 3 { Err(Error::argument("share", "three")) } else { Ok(()) };
        assert!(share((0..9).collect(), fails).is_err());
        Ok(())
    }
}
