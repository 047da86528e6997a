//! Mutations of inputs, from a seed: the same kinds that fuzzers use, without coverage feedback.

use pagekeeper_testing::Rng;

/// The longest input, in bytes.
const LONGEST: usize = 4096;
/// Numbers at which arithmetic and lengths go wrong.
const NUMBERS: [u64; 12] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];
/// The same numbers, and other words, for text.
const WORDS: [&[u8]; 12] = [
    b"0",
    b"-1",
    b"18446744073709551615",
    b"9223372036854775808",
    b"99999999999999999999",
    b"1e308",
    b"\n",
    b"\0",
    b" ",
    b"=",
    b"\xff",
    b"\\",
];

/// Mutates an input one to four times; `other` is an input to take parts from.
pub(crate) fn mutate(input: &mut Vec<u8>, other: &[u8], rng: &mut Rng) {
    for _ in 0..=rng.index(4) {
        mutate_once(input, other, rng);
    }
    input.truncate(LONGEST);
}

fn mutate_once(input: &mut Vec<u8>, other: &[u8], rng: &mut Rng) {
    let at = rng.index(input.len() + 1);
    let end = at + rng.index((input.len() - at).min(32) + 1);
    match rng.index(10) {
        0 if at < input.len() => input[at] ^= 1 << rng.index(8),
        1 if at < input.len() => input[at] = rng.number().to_le_bytes()[0],
        2 => input.insert(at, rng.number().to_le_bytes()[0]),
        3 => drop(input.drain(at..end)),
        4 if rng.one_in(4) => input.truncate(at),
        5 => {
            // Repeats a slice, here or elsewhere.
            let slice = input[at..end].to_vec();
            let to = rng.index(input.len() + 1);
            drop(input.splice(to..to, slice));
        }
        6 => {
            let number = NUMBERS[rng.index(NUMBERS.len())];
            let size = 1 << rng.index(4);
            let bytes = if rng.one_in(2) { number.to_le_bytes() } else { number.to_be_bytes() };
            let bytes = if rng.one_in(2) { &bytes[..size] } else { &bytes[8 - size..] };
            let end = (at + size).min(input.len());
            drop(input.splice(at..end, bytes.iter().copied()));
        }
        7 => drop(input.splice(at..end, WORDS[rng.index(WORDS.len())].iter().copied())),
        8 => {
            // The start of this input, and the end of the other.
            let from = rng.index(other.len() + 1);
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        9 => {
            // A number as text, at or behind that place.
            let is_digit = |at: &usize| input[*at].is_ascii_digit();
            let start = (at..input.len()).find(is_digit).unwrap_or(input.len());
            let end = start + (start..input.len()).take_while(is_digit).count();
            drop(input.splice(start..end, WORDS[rng.index(WORDS.len())].iter().copied()));
        }
        // Mutations that do not apply here, or that are rare.
        _ => {}
    }
}
