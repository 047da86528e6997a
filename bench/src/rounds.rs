//! Rounds: every subject once in each, in an order that is shuffled anew, and the statistics of the samples.
//!
//! Invariants: an unfinished round leaves no sample, so sample N of any two subjects comes from the same round, and a
//! slow drift of the machine favours neither. The shuffling depends on a seed alone. Fails where a subject fails, or
//! when a signal asks to stop.

use std::time::Instant;

use anyhow::{Context, Result};

use crate::scratch::Stop;

/// At least this many rounds run before a lack of time ends the case.
const FEWEST: usize = 3;

/// A small random number generator (`SplitMix64`, Steele, Lea and Flood 2014): equal seeds give equal sequences.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
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

/// Returns the smallest and the greatest value; `None` of no values. With few rounds no narrower measure of spread is
/// honest.
pub(crate) fn extremes(values: &[f64]) -> Option<(f64, f64)> {
    let least = values.iter().copied().min_by(f64::total_cmp)?;
    let greatest = values.iter().copied().max_by(f64::total_cmp)?;
    Some((least, greatest))
}

/// The better direction of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Better {
    /// Less, as of times.
    Less,
    /// More, as of rates.
    More,
}

/// Returns ours against theirs, larger is better: the median over the rounds of the ratio within each round.
pub(crate) fn ratio(ours: &[f64], theirs: &[f64], better: Better) -> Option<f64> {
    median(&ratios(ours, theirs, better))
}

/// Returns the ratios within each round.
pub(crate) fn ratios(ours: &[f64], theirs: &[f64], better: Better) -> Vec<f64> {
    let within = ours.iter().zip(theirs).map(|(ours, theirs)| match better {
        Better::Less => theirs / ours,
        Better::More => ours / theirs,
    });
    within.filter(|ratio| ratio.is_finite()).collect()
}

/// A subject: `measure` takes one sample, including its preparation, and returns it.
pub(crate) struct Subject<'a> {
    /// Its name in tables.
    pub(crate) name: &'static str,
    /// Takes one sample.
    pub(crate) measure: Box<dyn FnMut() -> Result<f64> + 'a>,
}

impl<'a> Subject<'a> {
    /// Creates a subject with this name.
    pub(crate) fn new(name: &'static str, measure: impl FnMut() -> Result<f64> + 'a) -> Self {
        Self { name, measure: Box::new(measure) }
    }
}

/// The samples of one subject, one for each round.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Samples {
    /// The subject.
    pub(crate) subject: &'static str,
    /// The values in the order of the rounds.
    pub(crate) values: Vec<f64>,
}

/// The number of rounds to run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// Rounds that count.
    pub(crate) rounds: usize,
    /// Time to stop early, after at least three rounds.
    pub(crate) until: Option<Instant>,
    /// Whether an uncounted round runs first.
    pub(crate) warm_up: bool,
}

impl Plan {
    fn is_over(&self, done: usize, longest_round: std::time::Duration) -> bool {
        done >= self.rounds
            || done >= FEWEST && self.until.is_some_and(|until| Instant::now() + longest_round > until)
    }
}

/// Runs all subjects in turn, round by round.
pub(crate) fn run(
    subjects: &mut [Subject<'_>],
    plan: Plan,
    random: &mut Random,
    stop: &Stop,
) -> Result<Vec<Samples>> {
    let mut order: Vec<usize> = (0..subjects.len()).collect();
    let mut round = |subjects: &mut [Subject<'_>]| -> Result<Vec<f64>> {
        random.shuffle(&mut order);
        let mut values = vec![0.0; subjects.len()];
        for &index in &order {
            stop.check()?;
            let Subject { name, measure } = &mut subjects[index];
            let measured = measure();
            // A peer that dies of the same Ctrl-C is not the failure.
            stop.check()?;
            values[index] = measured.with_context(|| (*name).to_owned())?;
        }
        Ok(values)
    };
    if plan.warm_up {
        round(subjects)?;
    }
    let mut done = Vec::new();
    let mut longest = std::time::Duration::ZERO;
    while !plan.is_over(done.len(), longest) {
        let began = Instant::now();
        done.push(round(subjects)?);
        longest = longest.max(began.elapsed());
    }
    let samples = subjects.iter().enumerate().map(|(index, subject)| Samples {
        subject: subject.name,
        values: done.iter().map(|values| values[index]).collect(),
    });
    Ok(samples.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 100.0]), Some(3.0));
    }

    #[test]
    fn the_extremes_are_the_ends() {
        assert_eq!(extremes(&[]), None);
        assert_eq!(extremes(&[3.0, -1.0, 2.0]), Some((-1.0, 3.0)));
    }

    #[test]
    fn a_ratio_above_one_is_ours_ahead() {
        // Half the time and twice the rate are both twice as good.
        assert_eq!(ratio(&[1.0], &[2.0], Better::Less), Some(2.0));
        assert_eq!(ratio(&[2.0], &[1.0], Better::More), Some(2.0));
        assert_eq!(ratio(&[1.0], &[], Better::More), None);
    }

    #[test]
    fn a_ratio_compares_within_each_round() {
        // The machine slows down tenfold; ours always takes half of theirs.
        assert_eq!(ratio(&[1.0, 5.0, 10.0], &[2.0, 10.0, 20.0], Better::Less), Some(2.0));
        assert_eq!(ratio(&[0.0, 1.0], &[1.0, 3.0], Better::Less), Some(3.0));
    }

    #[test]
    fn a_seed_gives_one_order_and_every_item_stays() {
        let shuffled = |seed| {
            let mut items: Vec<u32> = (0..20).collect();
            Random::new(seed).shuffle(&mut items);
            items
        };
        assert_eq!(shuffled(7), shuffled(7));
        assert_ne!(shuffled(7), shuffled(8));
        let mut sorted = shuffled(7);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn every_place_of_a_shuffle_is_as_likely() {
        let mut random = Random::new(1);
        let mut first = [0_u32; 4];
        for _ in 0..4000 {
            let mut items = [0, 1, 2, 3];
            random.shuffle(&mut items);
            first[items[0]] += 1;
        }
        assert!(first.iter().all(|&count| (850..1150).contains(&count)), "{first:?}");
    }

    #[test]
    fn each_round_has_every_subject_once_and_the_first_does_not_count() {
        let calls = RefCell::new(Vec::new());
        let counter = |name: &'static str| {
            let calls = &calls;
            let mut count = 0.0;
            Subject::new(name, move || {
                calls.borrow_mut().push(name);
                count += 1.0;
                Ok(count)
            })
        };
        let mut subjects = [counter("a"), counter("b"), counter("c")];
        let plan = Plan { rounds: 12, until: None, warm_up: true };
        let samples = run(&mut subjects, plan, &mut Random::new(3), &Stop::never()).unwrap();
        for (samples, name) in samples.iter().zip(["a", "b", "c"]) {
            assert_eq!(samples.subject, name);
            assert_eq!(samples.values, (2..14).map(f64::from).collect::<Vec<_>>());
        }
        let calls = calls.borrow();
        let rounds: Vec<&[&str]> = calls.chunks(3).collect();
        for round in &rounds {
            let mut sorted = round.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, ["a", "b", "c"]);
        }
        assert!(rounds.windows(2).any(|pair| pair[0] != pair[1]), "the order never changed");
    }

    #[test]
    fn time_cuts_rounds_short_but_not_below_three() {
        let plan = Plan { rounds: 100, until: Some(Instant::now()), warm_up: false };
        let mut subjects = [Subject::new("a", || Ok(1.0))];
        let samples = run(&mut subjects, plan, &mut Random::new(3), &Stop::never()).unwrap();
        assert_eq!(samples[0].values.len(), 3);
    }

    #[test]
    fn a_failure_names_its_subject() {
        let plan = Plan { rounds: 1, until: None, warm_up: false };
        let mut subjects = [Subject::new("rival", || anyhow::bail!("went away"))];
        let error = run(&mut subjects, plan, &mut Random::new(3), &Stop::never()).unwrap_err();
        assert_eq!(format!("{error:#}"), "rival: went away");
    }
}
