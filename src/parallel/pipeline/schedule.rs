//! The order in which a stage computes its forward and backward passes.

/// The order of the forward and backward passes of a [`Pipeline`](super::Pipeline)'s micro-batches.
///
/// Both orders give the same bits, but differ in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PipelineSchedule {
    /// Each backward pass begins as soon as its gradient has arrived. A stage then alternates between one forward and
    /// one backward pass (Narayanan et al., "PipeDream", 2019). With K stages, stage k keeps the activations of at most
    /// K − k micro-batches.
    #[default]
    OneForwardOneBackward,
    /// All forward passes, then all backward passes (Huang et al., "GPipe", 2019). Every stage keeps the activations of all
    /// micro-batches.
    GPipe,
}

/// One pass of one micro-batch, given by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Forward(usize),
    Backward(usize),
}

impl PipelineSchedule {
    /// Returns the passes of a stage, in order. Both kinds go through the micro-batches in ascending order, so that gradients are
    /// added in the same order by all schedules.
    pub(super) fn passes(self, stage: usize, stages: usize, micro_batches: usize) -> Vec<Pass> {
        let ahead = match self {
            PipelineSchedule::OneForwardOneBackward => (stages - stage).min(micro_batches),
            PipelineSchedule::GPipe => micro_batches,
        };
        let first = (0..ahead).map(Pass::Forward);
        let then = (0..micro_batches)
            .flat_map(|i| [Some(Pass::Backward(i)), Some(i + ahead).filter(|&i| i < micro_batches).map(Pass::Forward)]);
        first.chain(then.flatten()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Pass::{Backward, Forward};
    use super::*;

    #[test]
    fn the_passes_are_those_of_the_papers() {
        let one = PipelineSchedule::OneForwardOneBackward;
        let last = [Forward(0), Backward(0), Forward(1), Backward(1), Forward(2), Backward(2)];
        assert_eq!(one.passes(2, 3, 3), last);
        let middle = [Forward(0), Forward(1), Backward(0), Forward(2), Backward(1), Backward(2)];
        assert_eq!(one.passes(1, 3, 3), middle);
        let all = [Forward(0), Forward(1), Backward(0), Backward(1)];
        assert_eq!((one.passes(0, 3, 2), PipelineSchedule::GPipe.passes(2, 3, 2)), (all.to_vec(), all.to_vec()));
    }

    /// Every pass comes once, a backward pass after its forward pass, and no more micro-batches are alive than promised.
    #[test]
    fn the_number_of_live_micro_batches_is_bounded() {
        for (stages, micro_batches) in [(1, 1), (1, 5), (3, 1), (3, 2), (3, 8), (5, 7)] {
            for stage in 0..stages {
                for schedule in [PipelineSchedule::OneForwardOneBackward, PipelineSchedule::GPipe] {
                    let (mut forward, mut backward, mut most) = (0, 0, 0);
                    for pass in schedule.passes(stage, stages, micro_batches) {
                        match pass {
                            Forward(i) => forward += usize::from(i == forward),
                            Backward(i) => backward += usize::from(i == backward && i < forward),
                        }
                        most = most.max(forward - backward);
                    }
                    assert_eq!((forward, backward), (micro_batches, micro_batches));
                    let bound = if schedule == PipelineSchedule::GPipe { micro_batches } else { stages - stage };
                    assert_eq!(most, bound.min(micro_batches), "{schedule:?}, stage {stage} of {stages}");
                }
            }
        }
    }

    /// The stages never wait for each other in a circle.
    #[test]
    fn every_schedule_ends() {
        for schedule in [PipelineSchedule::OneForwardOneBackward, PipelineSchedule::GPipe] {
            for (stages, micro_batches) in [(1, 3), (2, 1), (3, 8), (6, 4)] {
                let passes: Vec<Vec<Pass>> = (0..stages).map(|k| schedule.passes(k, stages, micro_batches)).collect();
                let mut done = vec![0; stages];
                let is_done = |done: &[usize], k: usize, pass: Pass| passes[k][..done[k]].contains(&pass);
                loop {
                    let ready = (0..stages).find(|&k| match passes[k].get(done[k]) {
                        Some(&Forward(i)) => k == 0 || is_done(&done, k - 1, Forward(i)),
                        Some(&Backward(i)) => k + 1 == stages || is_done(&done, k + 1, Backward(i)),
                        None => false,
                    });
                    let Some(k) = ready else { break };
                    done[k] += 1;
                }
                assert_eq!(done, vec![2 * micro_batches; stages], "{schedule:?}");
            }
        }
    }
}
