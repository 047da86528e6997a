//! What simulated files hold: given bytes, or a pattern that is computed where it is read.

/// Fills `buf` with what a patterned file holds from `offset` on (see [`crate::SimDisk::create_patterned`]): a function of
/// seed and offset alone.
///
/// ```
/// let (mut whole, mut part) = ([0; 64], [0; 7]);
/// pagekeeper_io::pattern(42, 0, &mut whole);
/// pagekeeper_io::pattern(42, 13, &mut part);
/// assert_eq!(part, whole[13..20]);
/// ```
pub fn pattern(seed: u64, offset: u64, buf: &mut [u8]) {
    let mut at = offset;
    let mut rest = buf;
    while !rest.is_empty() {
        let word = mix(seed ^ mix(at / 8)).to_le_bytes();
        let within = (at % 8) as usize;
        let count = rest.len().min(8 - within);
        let (now, later) = rest.split_at_mut(count);
        now.copy_from_slice(&word[within..within + count]);
        at = at.wrapping_add(count as u64);
        rest = later;
    }
}

/// splitmix64: a number in which each bit depends on all bits of `of`.
pub(super) fn mix(of: u64) -> u64 {
    let mut z = of.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The bytes of a file.
#[derive(Debug, Clone)]
pub(super) enum Content {
    Bytes(Vec<u8>),
    Pattern { seed: u64, len: u64 },
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Pattern { len, .. } => *len,
        }
    }

    /// Sets the length: what is new is zeros, or the pattern.
    pub(super) fn set_len(&mut self, to: u64) {
        match self {
            Self::Bytes(bytes) => bytes.resize(usize::try_from(to).expect("a length in memory"), 0),
            Self::Pattern { len, .. } => *len = to,
        }
    }

    /// Copies bytes from `offset` on, all of which must be there.
    pub(super) fn copy(&self, offset: u64, to: &mut [u8]) {
        match self {
            Self::Bytes(bytes) => {
                let start = usize::try_from(offset).expect("an offset in memory");
                to.copy_from_slice(&bytes[start..start + to.len()]);
            }
            Self::Pattern { seed, .. } => pattern(*seed, offset, to),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_is_the_same_however_it_is_cut() {
        let mut whole = vec![0; 1000];
        pattern(7, (1 << 42) - 500, &mut whole);
        for (start, len) in [(0, 1), (3, 5), (8, 8), (1, 999), (500, 9)] {
            let mut part = vec![0; len];
            pattern(7, (1 << 42) - 500 + start as u64, &mut part);
            assert_eq!(part, whole[start..start + len]);
        }
        let mut other = vec![0; 1000];
        pattern(8, (1 << 42) - 500, &mut other);
        assert_ne!(whole, other);
    }
}
