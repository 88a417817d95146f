//! Which random words the parts of a batch draw.
//!
//! A draw for each sample, such as dropout's, takes the words that one device over the whole batch would take, and each
//! part takes the words of its samples. A draw for all samples together, such as whether a layer is skipped, takes the
//! same words in every part. A draw whose number of elements is not a multiple of a part's samples is of the second
//! kind. If it is a multiple by chance, the parts disagree, and the step is computed again with what they have learnt.

use std::sync::atomic::Ordering;

use super::Rank;
use crate::philox::Stream;
use crate::util::sync::lock;

/// What is known of the draws of a step after it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Draws {
    /// The parts have drawn what one device would have drawn.
    Alike,
    /// These draws are for all samples together, and some parts took them for draws for each sample.
    Shared(Vec<usize>),
    /// The parts have drawn different numbers of words.
    Unlike,
}

impl Draws {
    /// Returns what parts with these numbers of samples have drawn, given the numbers of elements of their draws.
    /// `shared` are the draws that were known to be for all samples together.
    pub fn of(parts: &[(usize, &[usize])], shared: &[usize]) -> Draws {
        let Some((samples, first)) = parts.first() else { return Draws::Alike };
        if parts.iter().any(|(_, draws)| draws.len() != first.len()) {
            return Draws::Unlike;
        }
        let mut found = Vec::new();
        for (i, &count) in first.iter().enumerate().filter(|(i, _)| !shared.contains(i)) {
            let by_sample =
                |(n, draws): &(usize, &[usize])| count as u128 * *n as u128 == draws[i] as u128 * *samples as u128;
            if parts.iter().all(by_sample) {
                continue;
            }
            if parts.iter().any(|(_, draws)| draws[i] != count) {
                return Draws::Unlike;
            }
            if parts.iter().any(|(n, _)| is_by_sample(count, *n)) {
                found.push(i);
            }
        }
        if found.is_empty() { Draws::Alike } else { Draws::Shared([shared, &found].concat()) }
    }
}

/// Returns whether a part with so many samples treats a draw as a draw for each sample.
fn is_by_sample(count: usize, samples: usize) -> bool {
    count.is_multiple_of(samples.max(1))
}

impl Rank {
    /// Returns the random words for `count` elements of this rank in a joint draw of the group: the stream, and the number of words
    /// of its first block that belong to the previous rank. Together, the ranks draw the same words as one device would.
    pub fn words(&self, count: usize) -> (Stream, usize) {
        let draw = {
            let mut draws = lock(&self.progress().draws);
            draws.push(count);
            draws.len() - 1
        };
        let known = self.group.losses.as_ref().is_some_and(|step| step.shared_draws.contains(&draw));
        let (at, all) = match known || !is_by_sample(count, self.samples()) {
            true => (0, count),
            false => {
                let before = self.group.joint.as_ref().map_or(0, |joint| joint.before)
                    + self.group.samples[..self.rank].iter().sum::<usize>();
                ((count as u128 * before as u128 / self.samples() as u128) as u64, self.over_all(count))
            }
        };
        let drawn = self.progress().drawn.fetch_add((all as u64).div_ceil(4), Ordering::Relaxed);
        let Stream { seed, first } = self.group.stream;
        (Stream { seed, first: first.wrapping_add(drawn + at / 4) }, (at % 4) as usize)
    }

    /// Returns the numbers of elements of this rank's draws, in order.
    pub fn draws(&self) -> Vec<usize> {
        lock(&self.progress().draws).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_told_apart_by_their_numbers() {
        let of = |parts: &[(usize, &[usize])], shared: &[usize]| Draws::of(parts, shared);
        assert_eq!(of(&[], &[]), Draws::Alike);
        assert_eq!(of(&[(2, &[20, 6]), (3, &[30, 9])], &[]), Draws::Alike);
        // Seven is no multiple of either: both parts have taken it for one draw.
        assert_eq!(of(&[(2, &[20, 7]), (3, &[30, 7])], &[]), Draws::Alike);
        assert_eq!(of(&[(1, &[7, 10]), (3, &[7, 30])], &[]), Draws::Shared(vec![0]));
        assert_eq!(of(&[(1, &[7, 8]), (3, &[7, 8])], &[0]), Draws::Shared(vec![0, 1]));
        assert_eq!(of(&[(1, &[7, 10]), (3, &[7, 30])], &[0]), Draws::Alike);
        assert_eq!(of(&[(2, &[20, 6]), (3, &[30])], &[]), Draws::Unlike);
        assert_eq!(of(&[(2, &[20]), (3, &[31])], &[]), Draws::Unlike);
    }
}
