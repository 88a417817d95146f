//! Tasks that the calling thread shares with others: a team of threads that stay awake for a moment after their work.

mod team;
#[cfg(test)]
mod team_tests;
mod threading;

use std::sync::Mutex;

use self::team::{Work, work_around, work_together};
use crate::lock;

/// A thread takes 1 / (`PIECES` · threads) of the remaining tasks at a time. So it takes few at the end, and all
/// threads end at about the same time.
const PIECES: usize = 4;

/// The most tasks that a thread takes at once: they lie in memory of its own, and there may be millions of them.
const MOST_AT_ONCE: usize = 64;

/// Runs all tasks on several threads, including the calling one. There are only as many threads as have at least
/// `least` tasks each: short tasks take less time than another thread needs to begin.
///
/// Tasks may share parts of their own. If there are two tasks or more for each thread, each runs its parts by itself.
pub fn share<T, I>(tasks: T, least: usize, run: impl Fn(I) + Sync)
where
    T: IntoIterator<Item = I, IntoIter: ExactSizeIterator + DoubleEndedIterator + Send>,
{
    share_with(tasks.into_iter(), least, &|| (), &|(), task| run(task));
}

/// As [`share`], with memory that a thread makes once, for all its tasks. It calls `run` through a pointer: the loops of a task, which
/// are long, are compiled once.
fn share_with<T, M>(tasks: T, least: usize, memory: &(dyn Fn() -> M + Sync), run: &(dyn Fn(&mut M, T::Item) + Sync))
where
    T: ExactSizeIterator + DoubleEndedIterator + Send,
{
    let (all, count, least) = (rayon::current_num_threads(), tasks.len(), least.max(1));
    let around = work_around();
    let threads = if around == Some(Work::ForAll) { 1 } else { all.min(count / least) };
    if threads < 2 {
        let mut made = None;
        return tasks.for_each(|task| run(made.get_or_insert_with(memory), task));
    }
    let rest = Mutex::new(tasks);
    // Threads begin at different ends: of two, the same one then mostly has the same part of the next op's tensors, whose elements may
    // be in its cache.
    let work = |place: usize| {
        let (mut made, mut some) = (None, Vec::new());
        loop {
            let mut rest = lock(&rest);
            let at_once = (rest.len() / (PIECES * threads)).clamp(1, MOST_AT_ONCE);
            match place % 2 {
                0 => some.extend(rest.by_ref().take(at_once)),
                _ => {
                    some.extend(rest.by_ref().rev().take(at_once));
                    // Processors fetch memory ahead in ascending order: rows of 4 KiB backwards take twice the time.
                    some.reverse();
                }
            }
            drop(rest);
            if some.is_empty() {
                return;
            }
            some.drain(..).for_each(|task| run(made.get_or_insert_with(memory), task));
        }
    };
    let kind = if count < 2 * all { Work::ForSome } else { Work::ForAll };
    divide(threads, kind, around, &work);
}

/// Runs `work` on some threads. Not generic, so that it is compiled once.
fn divide(threads: usize, kind: Work, around: Option<Work>, work: &(dyn Fn(usize) + Sync)) {
    // A task of rayon leaves it to rayon which threads there are.
    if around.is_some() || rayon::current_thread_index().is_some() || !work_together(threads - 1, kind, work) {
        rayon::in_place_scope(|scope| {
            (1..threads).for_each(|place| scope.spawn(move |_| work(place)));
            work(0);
        });
    }
}

/// As [`share`], for tasks that can fail. All tasks are run. Returns the error of the first task that has one.
pub fn try_share<T, I, E>(tasks: T, least: usize, run: impl Fn(I) -> Result<(), E> + Sync) -> Result<(), E>
where
    E: Clone + Send,
    T: IntoIterator<Item = I, IntoIter: ExactSizeIterator + DoubleEndedIterator + Send>,
{
    try_share_with(tasks, least, || Ok(()), |(), task| run(task))
}

/// As [`try_share`], with memory that a thread makes once, for all its tasks.
pub fn try_share_with<T, I, M, E>(
    tasks: T,
    least: usize,
    memory: impl Fn() -> Result<M, E> + Sync,
    run: impl Fn(&mut M, I) -> Result<(), E> + Sync,
) -> Result<(), E>
where
    E: Clone + Send,
    T: IntoIterator<Item = I, IntoIter: ExactSizeIterator + DoubleEndedIterator + Send>,
{
    let failed: Mutex<Option<(usize, E)>> = Mutex::new(None);
    share_with(tasks.into_iter().enumerate(), least, &memory, &|memory, (i, task)| {
        let result = match memory {
            Ok(memory) => run(memory, task),
            Err(error) => Err(error.clone()),
        };
        if let Err(error) = result {
            let mut failed = lock(&failed);
            if failed.as_ref().is_none_or(|(first, _)| i < *first) {
                *failed = Some((i, error));
            }
        }
    });
    let failed = failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    failed.map_or(Ok(()), |(_, error)| Err(error))
}

/// Returns the result of each item, in their order.
pub fn try_map<T: Sync, R: Send, E: Clone + Send>(
    items: &[T],
    run: impl Fn(&T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    try_share(results.iter_mut().zip(items), 1, |(to, item)| run(item).map(|result| *to = Some(result)))?;
    Ok(results.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use rayon::prelude::*;

    use super::*;

    #[test]
    fn every_task_is_run_once_and_an_error_is_returned() {
        for (count, least) in [(0, 1), (1, 1), (2, 1), (50, 1), (50, 7), (50, 0), (3, 5), (100_000, 1)] {
            let mut out = vec![0; count];
            try_share(out.iter_mut().enumerate(), least, |(i, v)| {
                *v += i + 1;
                Ok::<(), usize>(())
            })
            .expect("no task fails");
            assert!(out.iter().enumerate().all(|(i, v)| *v == i + 1));
        }
        let fails = |i: usize| if i == 3 || i == 7 { Err(i) } else { Ok(()) };
        assert_eq!(try_share(0..9, 1, fails), Err(3));
    }

    #[test]
    fn tasks_of_tasks_and_of_several_threads_are_run() {
        let mut all = vec![vec![0; 40]; 30];
        let fill = |row: &mut [i32]| share(row.chunks_mut(7), 1, |part| part.iter_mut().for_each(|v| *v += 1));
        share(&mut all, 1, |row| fill(row));
        all.par_iter_mut().for_each(|row| fill(row));
        std::thread::scope(|scope| {
            for rows in all.chunks_mut(11) {
                scope.spawn(move || rows.iter_mut().for_each(|row| fill(row)));
            }
        });
        assert!(all.iter().flatten().all(|v| *v == 3));
    }
}
