//! Variable-length numbers: unsigned LEB128, seven bits in each byte, the lowest first.

use bytes::{Buf, Bytes};

/// Maximum bytes of a number.
pub(super) const MAX_LEN: usize = 10;

/// Appends a number.
pub(super) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

/// Returns the number of bytes that [`put`] appends.
pub(super) const fn len(number: u64) -> usize {
    (64 - (number | 1).leading_zeros() as usize).div_ceil(7)
}

/// Returns the number at the beginning of `bytes`, and its length in bytes; `None` if it is cut
/// off, or has more than 64 bits.
pub(super) fn get(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut number = 0_u64;
    for (at, byte) in bytes.iter().take(MAX_LEN).enumerate() {
        let (shift, bits) = (at * 7, u64::from(byte & 0x7f));
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if *byte < 0x80 {
            return Some((number, at + 1));
        }
    }
    None
}

/// The rest of shared bytes that are being read, without copying.
#[derive(Debug, Clone)]
pub(super) struct InputBytes(pub(super) Bytes);

impl InputBytes {
    /// Reads a number.
    pub(super) fn number(&mut self) -> Option<u64> {
        let (number, len) = get(&self.0)?;
        self.0.advance(len);
        Some(number)
    }

    /// Reads a byte.
    pub(super) fn byte(&mut self) -> Option<u8> {
        self.0.try_get_u8().ok()
    }

    /// Reads four bytes as a little-endian number.
    pub(super) fn word(&mut self) -> Option<u32> {
        self.0.try_get_u32_le().ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_format_of_numbers_is_fixed() {
        let written: [(u64, &[u8]); 6] = [
            (0, &[0]),
            (127, &[127]),
            (128, &[0x80, 1]),
            (300, &[0xac, 2]),
            (1 << 63, &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1]),
            (u64::MAX, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
        ];
        for (number, bytes) in written {
            let mut out = Vec::new();
            put(&mut out, number);
            assert_eq!(out, bytes);
            assert_eq!(get(bytes), Some((number, bytes.len())));
            assert_eq!(get(&bytes[..bytes.len() - 1]), None, "cut");
        }
        // 65 bits, and a number without end.
        assert_eq!(get(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]), None);
        assert_eq!(get(&[0x80; 20]), None);
    }

    proptest! {
        #[test]
        fn numbers_are_read_as_written(number: u64, bits in 0_u32..64, behind: Vec<u8>) {
            let number = number >> bits;
            let mut out = Vec::new();
            put(&mut out, number);
            prop_assert_eq!(out.len(), len(number));
            out.extend(&behind);
            prop_assert_eq!(get(&out), Some((number, len(number))));
        }
    }
}
