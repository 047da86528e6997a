//! Medians, percentiles, ratios and random numbers.

/// Returns the median: the mean of the two middle values if their number is even, `None` without
/// values.
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

/// Returns the smallest value that is not exceeded by `per_mille` of a thousand values; 0 without
/// values. Sorts the values.
pub(crate) fn percentile(values: &mut [f64], per_mille: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() * per_mille).div_ceil(1000).max(1);
    values.get(rank - 1).copied().unwrap_or(0.0)
}

/// Returns the median of the ratios within each round, in which a drift of the machine cancels out.
pub(crate) fn ratio(of: &[f64], to: &[f64]) -> Option<f64> {
    median(&ratios(of, to))
}

/// From this share on, a loss cannot be distinguished from noise.
pub(crate) const NO_COST_SHARE: f64 = 0.9;

/// Returns the share of the rate that remains, as far as it is certain: the upper quartile of the
/// rounds' ratios, at most 1. So noise in single intervals does not count as a cost. Returns `None`
/// if the upper quartile shows no cost but a quarter of the rounds lost a third: then the answer is
/// unknown.
pub(crate) fn sure_share(of: &[f64], to: &[f64]) -> Option<f64> {
    let mut within = ratios(of, to);
    within.sort_by(f64::total_cmp);
    let quarter = |number: usize| within.get((number * within.len()).div_ceil(4).checked_sub(1)?);
    let (low, high) = (quarter(1)?, quarter(3)?);
    (*high < NO_COST_SHARE || *low >= 2.0 / 3.0).then(|| high.min(1.0))
}

fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of / to).filter(|ratio| ratio.is_finite()).collect()
}

/// A small generator of random numbers (`SplitMix64`, Steele, Lea and Flood 2014).
#[derive(Debug, Clone)]
pub(crate) struct RandomNumbers(u64);

impl RandomNumbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`, which is at least 1.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(end.max(1));
        u64::try_from(wide >> 64).expect("the upper half of 128 bits")
    }

    /// Puts `items` into a random order (Fisher and Yates).
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1);
            items.swap(last, usize::try_from(other).expect("it is below a length"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_match_their_names() {
        assert_eq!(
            (median(&[]), median(&[3.0, 1.0, 2.0]), median(&[4.0, 2.0])),
            (None, Some(2.0), Some(3.0))
        );
        let mut values: Vec<f64> = (1..=2000).rev().map(f64::from).collect();
        let ranks = [500, 990, 999].map(|rank| Some(percentile(&mut values, rank)));
        assert_eq!(ranks, [Some(1000.0), Some(1980.0), Some(1998.0)]);
        assert_eq!(Some(percentile(&mut [], 500)), Some(0.0));
        // The disk slows down tenfold; half is still half.
        assert_eq!(ratio(&[1.0, 5.0, 10.0], &[2.0, 10.0, 20.0]), Some(0.5));
        assert_eq!(ratio(&[1.0], &[0.0]), None);
    }

    #[test]
    fn noise_is_no_cost() {
        let ones = [1.0; 4];
        assert_eq!(sure_share(&[0.9, 0.8, 1.1, 1.2], &ones), Some(1.0));
        assert_eq!(sure_share(&[0.5, 0.4, 0.3, 1.2], &ones), Some(0.5));
        assert_eq!(sure_share(&[2.0, 2.0, 2.0, 2.0], &ones), Some(1.0));
        assert_eq!(sure_share(&[0.5, 0.4, 1.1, 1.2], &ones), None, "it costs half, or nothing");
        assert_eq!((sure_share(&[0.5], &[1.0]), sure_share(&[], &[])), (Some(0.5), None));
    }

    #[test]
    fn random_numbers_stay_below_and_shuffles_keep_all() {
        let mut random = RandomNumbers::new(7);
        assert!((0..1000).all(|_| random.below(10) < 10));
        let mut items: Vec<u32> = (0..20).collect();
        random.shuffle(&mut items);
        items.sort_unstable();
        assert_eq!(items, (0..20).collect::<Vec<_>>());
    }
}
