//! File contents that can be computed from the offset, so that any read can be checked without a
//! copy of the file.
//!
//! A file is a sequence of words of eight bytes, little-endian, each a bijective mix of its index.
//! Within a file no two words are equal, so a page at the wrong offset is always detected; files of
//! different seeds share no content. Offsets and lengths are in bytes and need not be aligned.
//! Fails with the offset of the first wrong byte.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::data::MIB;
use crate::rounds::SplitMix;

/// Bytes of a word.
pub(crate) const WORD_BYTES: usize = 8;
/// 2^64 divided by the golden ratio; odd, so that multiplying by it is bijective.
const GOLDEN_RATIO_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the word with this index, at byte `word_index * 8`. Costs one multiplication while the
/// seed stays the same.
#[inline]
pub(crate) fn word(seed: u64, word_index: u64) -> u64 {
    let spread = SplitMix::new(seed).next_u64().wrapping_add(word_index).wrapping_mul(GOLDEN_RATIO_FACTOR);
    spread ^ (spread >> 32)
}

/// Fills `buf` with the content of a file of this seed at `offset`.
pub(crate) fn fill(seed: u64, offset: u64, buf: &mut [u8]) {
    let mut index = offset / WORD_BYTES as u64;
    let (head, rest) = buf.split_at_mut(bytes_before_a_word(offset).min(buf.len()));
    if !head.is_empty() {
        let skipped = WORD_BYTES - bytes_before_a_word(offset);
        head.copy_from_slice(&word(seed, index).to_le_bytes()[skipped..skipped + head.len()]);
        index += 1;
    }
    let (whole, tail) = rest.as_chunks_mut::<WORD_BYTES>();
    for part in whole {
        *part = word(seed, index).to_le_bytes();
        index += 1;
    }
    tail.copy_from_slice(&word(seed, index).to_le_bytes()[..tail.len()]);
}

/// Fails unless `buf` is the content of a file of this seed at `offset`.
pub(crate) fn check(seed: u64, offset: u64, buf: &[u8]) -> Result<()> {
    let mut wanted = [0; 4096];
    let mut here = offset;
    for found in buf.chunks(wanted.len()) {
        let wanted = &mut wanted[..found.len()];
        fill(seed, here, wanted);
        if found != wanted {
            let first = found.iter().zip(&*wanted).take_while(|(found, wanted)| found == wanted).count();
            bail!(
                "wrong bytes from {} on: {:#04x} instead of {:#04x}",
                here + first as u64,
                found[first],
                wanted[first]
            );
        }
        here += found.len() as u64;
    }
    Ok(())
}

/// Returns the bytes from `offset` to the next word; 0 at a word.
fn bytes_before_a_word(offset: u64) -> usize {
    let [in_word, ..] = (offset.wrapping_neg() % WORD_BYTES as u64).to_le_bytes();
    usize::from(in_word)
}

/// Creates a file of `len` bytes (a multiple of a MiB), written in calls of 1 MiB and synced: clean
/// and resident.
pub(crate) fn make_file(path: &Path, len: u64, seed: u64) -> Result<()> {
    ensure!(len.is_multiple_of(MIB), "{len} bytes are not a whole number of MiB");
    let write = || -> std::io::Result<()> {
        let mut file = File::create(path)?;
        let mut block = vec![0; 1 << 20];
        for offset in (0..len).step_by(block.len()) {
            fill(seed, offset, &mut block);
            file.write_all(&block)?;
        }
        file.sync_all()
    };
    write().with_context(|| format!("can't write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_is_the_part_of_the_whole() {
        let mut whole = [0; 64];
        fill(3, 4096, &mut whole);
        assert_eq!(whole[8..16], word(3, 513).to_le_bytes());
        for start in 0..64 {
            for end in start..=64 {
                let mut part = vec![0; end - start];
                fill(3, 4096 + start as u64, &mut part);
                assert_eq!(part, whole[start..end], "{start}..{end}");
                check(3, 4096 + start as u64, &part).unwrap();
            }
        }
    }

    #[test]
    fn one_wrong_bit_is_seen_wherever_it_is() {
        for at in 0..21 {
            let mut part = [0; 21];
            fill(9, 5, &mut part);
            part[at] ^= 0x40;
            let error = check(9, 5, &part).unwrap_err().to_string();
            assert!(error.contains(&format!("wrong bytes from {} on", 5 + at)), "{error}");
        }
    }
}
