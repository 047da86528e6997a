//! The control file: what a ring is, and where reading it begins.
//!
//! Two slots of 4096 bytes, written alternately and synced each time, so that one is whole at any time; the newer counts.
//!
//! | bytes | what (little endian) |
//! |---|---|
//! | 0..8 | `pkredo` and the version, 1 or 2 |
//! | 8..16 | number of the write: the larger is newer |
//! | 16..24 | id of the log, random |
//! | 24..32 | bytes of a file |
//! | 32..36 | number of files |
//! | 36..40 | 0: still being made; 1: in use |
//! | 40..48 | checkpoint: the LSN of the first record that is needed |
//! | 48..52 | salt in force there |
//! | 52..56 | CRC-32C of all before |
//! | 56..64 | version 2 only: bytes that may be appended and not synced, a multiple of 4096 |
//! | 64..68 | version 2 only: CRC-32C of all before |
//!
//! A log without a bound on what is not synced has version 1.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use pagekeeper_io::{AlignedBuf, Create, Io, IoFile, WriteMode, open_writable_past_cache};

use super::ring::Geometry;
use crate::Error;
use crate::injected_fault::injected_fault;
use crate::record::{BLOCK, BLOCK_LEN};

/// Its name.
pub(super) const NAME: &str = "control";

/// The name of the file that is locked while a log is open.
pub(super) const LOCK: &str = "lock";

const MAGIC: [u8; 6] = *b"pkredo";
const VERSION: u16 = 1;
/// With a bound on what is not synced.
const VERSION_BOUNDED: u16 = 2;
const CHECKED: usize = 52;
const LEN: usize = CHECKED + 4;
/// The same of [`VERSION_BOUNDED`].
const CHECKED_BOUNDED: usize = LEN + 8;
const LEN_BOUNDED: usize = CHECKED_BOUNDED + 4;
/// What may be asked for as [`ControlState::max_unsynced`], in bytes.
pub(super) const UNSYNCED: RangeInclusive<u64> = 8 * BLOCK..=1 << 32;
/// More would be no ring but a mistake.
pub(super) const MAX_FILES: u32 = 4096;

/// What a slot says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ControlState {
    pub(super) number: u64,
    pub(super) log_id: u64,
    pub(super) geometry: Geometry,
    /// Bytes that may be appended and not synced.
    pub(super) max_unsynced: Option<u64>,
    /// All files are there.
    pub(super) in_use: bool,
    pub(super) checkpoint: u64,
    pub(super) salt: u32,
}

/// What a control file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DecodedControl {
    /// The newest slot that is whole.
    State(ControlState),
    /// A slot that is whole, of a version that is not known here.
    Version(u16),
    /// No slot that is whole.
    Nothing,
}

impl ControlState {
    fn encode(&self) -> [u8; LEN_BOUNDED] {
        let mut bytes = [0; LEN_BOUNDED];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(&MAGIC);
        put(&if self.max_unsynced.is_some() { VERSION_BOUNDED } else { VERSION }.to_le_bytes());
        put(&self.number.to_le_bytes());
        put(&self.log_id.to_le_bytes());
        put(&self.geometry.file_bytes.to_le_bytes());
        put(&self.geometry.files.to_le_bytes());
        put(&u32::from(self.in_use).to_le_bytes());
        put(&self.checkpoint.to_le_bytes());
        put(&self.salt.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..CHECKED]);
        bytes[CHECKED..LEN].copy_from_slice(&crc.to_le_bytes());
        if let Some(max) = self.max_unsynced {
            bytes[LEN..CHECKED_BOUNDED].copy_from_slice(&max.to_le_bytes());
            let crc = crc32c::crc32c(&bytes[..CHECKED_BOUNDED]);
            bytes[CHECKED_BOUNDED..].copy_from_slice(&crc.to_le_bytes());
        }
        bytes
    }

    fn decode(slot: &[u8]) -> DecodedControl {
        let (Some(checked), Some(crc)) = (slot.get(..CHECKED), slot.get(CHECKED..CHECKED + 4)) else {
            return DecodedControl::Nothing;
        };
        if checked[..6] != MAGIC || crc32c::crc32c(checked).to_le_bytes() != crc {
            return DecodedControl::Nothing;
        }
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| checked[at + byte]));
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| checked[at + byte]));
        let version = u16::from_le_bytes([checked[6], checked[7]]);
        let max_unsynced = match version {
            VERSION => None,
            VERSION_BOUNDED => match slot.get(..LEN_BOUNDED).and_then(<[u8]>::split_last_chunk::<4>) {
                Some((checked, crc)) if crc32c::crc32c(checked).to_le_bytes() == *crc => {
                    Some(u64::from_le_bytes(std::array::from_fn(|byte| checked[LEN + byte])))
                }
                _ => return DecodedControl::Nothing,
            },
            version => return DecodedControl::Version(version),
        };
        let geometry = Geometry { file_bytes: long(24), files: word(32) };
        let is_sound = geometry.file_bytes > 0
            && geometry.file_bytes.is_multiple_of(BLOCK)
            && (1..=MAX_FILES).contains(&geometry.files)
            && geometry.file_bytes <= u64::MAX >> 16
            && word(36) <= 1
            && max_unsynced.is_none_or(|max| UNSYNCED.contains(&max) && max.is_multiple_of(BLOCK));
        if !is_sound {
            return DecodedControl::Nothing;
        }
        DecodedControl::State(Self {
            number: long(8),
            log_id: long(16),
            geometry,
            max_unsynced,
            in_use: word(36) == 1,
            checkpoint: long(40),
            salt: word(48),
        })
    }
}

/// The newest of what the file holds.
pub(super) fn decode(bytes: &[u8]) -> DecodedControl {
    bytes.chunks(BLOCK_LEN).take(2).map(ControlState::decode).fold(DecodedControl::Nothing, |best, slot| {
        match (&best, &slot) {
            (_, DecodedControl::Nothing) | (DecodedControl::Version(_), _) => best,
            (DecodedControl::State(a), DecodedControl::State(b)) if a.number > b.number => best,
            _ => slot,
        }
    })
}

/// Reads the control file of a log.
pub(super) fn read(file: &dyn IoFile) -> Result<DecodedControl, Error> {
    let mut bytes = AlignedBuf::new(2 * BLOCK_LEN);
    let got = file.read_at(0, &mut bytes)?;
    Ok(decode(&bytes[..got]))
}

/// The control file of an open log.
pub(super) struct Control {
    file: Arc<dyn IoFile>,
    state: ControlState,
    slot: AlignedBuf,
    #[cfg(any(test, feature = "injected-faults"))]
    pub(super) injected_fault: Option<crate::injected_fault::InjectedFault>,
}

impl Control {
    /// Makes the file, durably but for its name, and says that the log is being made.
    pub(super) fn create(io: &dyn Io, path: &Path, state: ControlState) -> Result<Self, Error> {
        let file = open_writable_past_cache(io, path, Create::New)?;
        file.set_len(2 * BLOCK)?;
        let mut control = Self::on(file, state);
        control.write(state)?;
        control.file.sync_all()?;
        Ok(control)
    }

    /// To go on from what was read.
    pub(super) fn open(io: &dyn Io, path: &Path, state: ControlState) -> Result<Self, Error> {
        let file = open_writable_past_cache(io, path, Create::Never)?;
        Ok(Self::on(file, state))
    }

    fn on(file: Arc<dyn IoFile>, state: ControlState) -> Self {
        Self {
            file,
            state,
            slot: AlignedBuf::new(BLOCK_LEN),
            #[cfg(any(test, feature = "injected-faults"))]
            injected_fault: None,
        }
    }

    /// What it says now.
    pub(super) fn state(&self) -> ControlState {
        self.state
    }

    /// Makes what was read of it durable: after a kill it may have been the page cache's.
    pub(super) fn sync(&self) -> Result<(), Error> {
        Ok(self.file.sync_all()?)
    }

    /// Says something new, durably, in the slot that does not hold what counts now.
    pub(super) fn write(&mut self, state: ControlState) -> Result<(), Error> {
        let state = ControlState { number: self.state.number + 1, ..state };
        let bytes = state.encode();
        self.slot[..bytes.len()].copy_from_slice(&bytes);
        let slot = if injected_fault!(self, OneSlot) { 0 } else { state.number % 2 };
        self.file.write_at(slot * BLOCK, &self.slot, WriteMode::Plain)?;
        if !injected_fault!(self, NoSyncOfControl) {
            self.file.sync_data()?;
        }
        self.state = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use pagekeeper_io::{Access, SimDisk};

    use super::*;

    const STATE: ControlState = ControlState {
        number: 4,
        log_id: 0x0102_0304_0506_0708,
        geometry: Geometry { file_bytes: 1 << 20, files: 3 },
        max_unsynced: None,
        in_use: true,
        checkpoint: 8192,
        salt: 0xdead_beef,
    };

    /// The bytes as they are on disks: what was written once must be read for ever.
    #[test]
    fn a_slot_looks_as_it_always_did() {
        let mut expected =
            b"pkredo\x01\0\x04\0\0\0\0\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01\0\0\x10\0\0\0\0\0".to_vec();
        expected.extend(b"\x03\0\0\0\x01\0\0\0\0\x20\0\0\0\0\0\0\xef\xbe\xad\xde");
        expected.extend(crc32c::crc32c(&expected).to_le_bytes());
        assert_eq!(STATE.encode()[..LEN], expected);
        assert_eq!(STATE.encode()[LEN..], [0; LEN_BOUNDED - LEN]);
        assert_eq!(decode(&expected), DecodedControl::State(STATE));
        for at in 0..expected.len() {
            let mut rotten = expected.clone();
            rotten[at] ^= 1;
            assert_eq!(decode(&rotten), DecodedControl::Nothing);
        }
        expected[6] = 3;
        let crc = crc32c::crc32c(&expected[..CHECKED]);
        expected[CHECKED..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(decode(&expected), DecodedControl::Version(3));
        assert_eq!(decode(&[]), DecodedControl::Nothing);
    }

    /// Its first part is as that of version 1, so that older code reports the version.
    #[test]
    fn a_slot_with_a_bound_looks_as_it_always_did() {
        let state = ControlState { max_unsynced: Some(1 << 20), ..STATE };
        let mut expected = STATE.encode()[..CHECKED].to_vec();
        expected[6] = 2;
        expected.extend(crc32c::crc32c(&expected).to_le_bytes());
        expected.extend(b"\0\0\x10\0\0\0\0\0");
        expected.extend(crc32c::crc32c(&expected).to_le_bytes());
        assert_eq!(state.encode()[..], expected);
        assert_eq!(decode(&expected), DecodedControl::State(state));
        for at in 0..expected.len() {
            let mut rotten = expected.clone();
            rotten[at] ^= 1;
            assert_eq!(decode(&rotten), DecodedControl::Nothing);
        }
        for max in [0, BLOCK, (1 << 20) + 8, 1 << 33] {
            assert_eq!(
                decode(&ControlState { max_unsynced: Some(max), ..STATE }.encode()),
                DecodedControl::Nothing
            );
        }
    }

    #[test]
    fn the_newer_slot_counts_and_the_other_is_written_next() {
        let disk = SimDisk::new();
        let path = Path::new("/control");
        let found = || read(&*disk.open(path, Access::Direct).unwrap()).unwrap();
        let mut control = Control::create(&disk, path, STATE).unwrap();
        for checkpoint in [100, 200, 300] {
            control.write(ControlState { checkpoint, ..control.state() }).unwrap();
            assert_eq!(found(), DecodedControl::State(control.state()));
        }
        // The last write was torn.
        let file = disk.open_writable(path, Access::Buffered, Create::Never).unwrap();
        file.write_at(control.state().number % 2 * BLOCK + 40, &[9], WriteMode::Plain).unwrap();
        let DecodedControl::State(found) = found() else { panic!("one slot is whole") };
        assert_eq!((found.checkpoint, found.number), (200, control.state().number - 1));
    }
}
