//! Rounds: every subject once in each, in an order that is reshuffled, and the statistics of the
//! samples.
//!
//! Invariants: an unfinished round leaves no sample, so sample N of any two subjects comes from the
//! same round, and a slow drift of the machine favours neither. The shuffling depends on a seed
//! alone. Fails where a subject fails, or when a signal asks to stop.

use std::time::Instant;

use anyhow::{Context, Result};

use crate::scratch::StopRequest;

/// At least this many rounds run before a lack of time ends the case.
const ROUNDS_MIN: usize = 3;

/// A small random number generator (`SplitMix64`, Steele, Lea and Flood 2014): equal seeds give
/// equal sequences.
#[derive(Debug, Clone)]
pub(crate) struct SplitMix(u64);

impl SplitMix {
    /// Creates a generator with this seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a random number.
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`, which is at least 1. The bias is below `end` in 2^64.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(end.max(1));
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// Puts `items` into a random order (Fisher and Yates).
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1);
            items.swap(last, usize::try_from(other).unwrap_or(last));
        }
    }
}

/// Returns the median; `None` of no values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        len if len % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// Returns the smallest and the greatest value; `None` of no values. With few rounds no narrower
/// measure of spread is honest.
pub(crate) fn extremes(values: &[f64]) -> Option<(f64, f64)> {
    let least = values.iter().copied().min_by(f64::total_cmp)?;
    let greatest = values.iter().copied().max_by(f64::total_cmp)?;
    Some((least, greatest))
}

/// The better direction of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BetterDirection {
    /// Smaller is better, as for times.
    Less,
    /// Larger is better, as for rates.
    More,
}

/// Returns ours against theirs, larger is better: the median over the rounds of the ratio within
/// each round.
pub(crate) fn ratio(ours: &[f64], theirs: &[f64], better: BetterDirection) -> Option<f64> {
    median(&ratios(ours, theirs, better))
}

/// Returns the ratios within each round.
pub(crate) fn ratios(ours: &[f64], theirs: &[f64], better: BetterDirection) -> Vec<f64> {
    let within = ours.iter().zip(theirs).map(|(ours, theirs)| match better {
        BetterDirection::Less => theirs / ours,
        BetterDirection::More => ours / theirs,
    });
    within.filter(|ratio| ratio.is_finite()).collect()
}

/// The samples of one subject, one for each round.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SubjectSamples {
    /// The subject.
    pub(crate) subject: &'static str,
    /// The values in the order of the rounds.
    pub(crate) values: Vec<f64>,
}

/// The number of rounds to run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RoundPlan {
    /// Rounds that count.
    pub(crate) rounds: usize,
    /// Time to stop early, after at least three rounds.
    pub(crate) until: Option<Instant>,
    /// Whether an uncounted round runs first.
    pub(crate) warm_up: bool,
}

impl RoundPlan {
    fn is_over(&self, done: usize, longest_round: std::time::Duration) -> bool {
        done >= self.rounds
            || done >= ROUNDS_MIN && self.until.is_some_and(|until| Instant::now() + longest_round > until)
    }
}

/// Samples of several figures each: those of every subject, in the order of the rounds.
#[derive(Debug)]
pub(crate) struct MeasuredSamples<S>(Vec<(&'static str, Vec<S>)>);

impl<S> MeasuredSamples<S> {
    /// Returns one figure of all samples.
    pub(crate) fn figure(&self, of: impl Fn(&S) -> f64) -> Vec<SubjectSamples> {
        let of_subject = |(subject, samples): &(&'static str, Vec<S>)| SubjectSamples {
            subject,
            values: samples.iter().map(&of).collect(),
        };
        self.0.iter().map(of_subject).collect()
    }

    /// Returns the samples of a subject; none if it did not take part.
    pub(crate) fn of(&self, subject: &str) -> &[S] {
        self.0.iter().find(|(name, _)| *name == subject).map_or(&[], |(_, samples)| samples)
    }

    /// Returns each subject with its samples.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, &[S])> {
        self.0.iter().map(|(subject, samples)| (*subject, &**samples))
    }
}

/// The turn of a subject.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SubjectTurn {
    /// The subject's index.
    pub(crate) subject: usize,
    /// The round, counted from 0; an uncounted round is the first one.
    pub(crate) round: usize,
}

/// Runs the named subjects in turn, round by round; `sample` takes one sample.
pub(crate) fn measure<S>(
    names: &[&'static str],
    plan: RoundPlan,
    random: &mut SplitMix,
    stop: &StopRequest,
    mut sample: impl FnMut(SubjectTurn) -> Result<S>,
) -> Result<MeasuredSamples<S>> {
    let mut order: Vec<usize> = (0..names.len()).collect();
    let mut round = |number: usize| -> Result<Vec<(usize, S)>> {
        random.shuffle(&mut order);
        let take = |&subject: &usize| {
            stop.check()?;
            let sample = sample(SubjectTurn { subject, round: number });
            // A peer that dies of the same Ctrl-C is not the failure.
            stop.check()?;
            Ok((subject, sample.with_context(|| names[subject].to_owned())?))
        };
        order.iter().map(take).collect()
    };
    let warm_up = usize::from(plan.warm_up);
    if plan.warm_up {
        round(0)?;
    }
    let mut measured = MeasuredSamples(names.iter().map(|name| (*name, Vec::new())).collect());
    let (mut done, mut longest) = (0, std::time::Duration::ZERO);
    while !plan.is_over(done, longest) {
        let began = Instant::now();
        for (subject, sample) in round(warm_up + done)? {
            measured.0[subject].1.push(sample);
        }
        done += 1;
        longest = longest.max(began.elapsed());
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 100.0]), Some(3.0));
    }

    #[test]
    fn a_ratio_compares_within_each_round() {
        // The machine slows down tenfold; ours always takes half of theirs.
        assert_eq!(ratio(&[1.0, 5.0, 10.0], &[2.0, 10.0, 20.0], BetterDirection::Less), Some(2.0));
        assert_eq!(ratio(&[0.0, 1.0], &[1.0, 3.0], BetterDirection::Less), Some(3.0));
        assert_eq!(ratio(&[1.0], &[2.0], BetterDirection::More), Some(0.5));
        assert_eq!(ratio(&[1.0], &[], BetterDirection::More), None);
    }

    #[test]
    fn a_seed_gives_one_order_and_every_item_stays() {
        let shuffled = |seed| {
            let mut items: Vec<u32> = (0..20).collect();
            SplitMix::new(seed).shuffle(&mut items);
            items
        };
        assert_eq!(shuffled(7), shuffled(7));
        assert_ne!(shuffled(7), shuffled(8));
        let mut sorted = shuffled(7);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn each_round_has_every_subject_once_and_the_first_does_not_count() {
        let names = ["a", "b", "c"];
        let plan = RoundPlan { rounds: 12, until: None, warm_up: true };
        let mut turns = Vec::new();
        let measured = measure(&names, plan, &mut SplitMix::new(3), &StopRequest::never(), |turn| {
            turns.push(turn.subject);
            Ok(turn.round)
        });
        let measured = measured.unwrap();
        for name in names {
            assert_eq!(measured.of(name), (1..13).collect::<Vec<_>>());
        }
        let rounds: Vec<&[usize]> = turns.chunks(3).collect();
        for round in &rounds {
            let mut sorted = round.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2]);
        }
        assert!(rounds.windows(2).any(|pair| pair[0] != pair[1]), "the order never changed");
    }

    #[test]
    fn time_cuts_rounds_short_but_not_below_three() {
        let plan = RoundPlan { rounds: 100, until: Some(Instant::now()), warm_up: false };
        let measured =
            measure(&["a"], plan, &mut SplitMix::new(3), &StopRequest::never(), |_| Ok(1.0)).unwrap();
        assert_eq!(measured.figure(|value| *value)[0].values.len(), 3);
    }

    #[test]
    fn a_failure_names_its_subject() {
        let plan = RoundPlan { rounds: 1, until: None, warm_up: false };
        let fails = |_| -> Result<()> { anyhow::bail!("went away") };
        let error =
            measure(&["rival"], plan, &mut SplitMix::new(3), &StopRequest::never(), fails).unwrap_err();
        assert_eq!(format!("{error:#}"), "rival: went away");
    }
}
