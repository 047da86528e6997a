//! The control file: the description of a ring, its checkpoint, its epochs, and the known facts
//! about its end.
//!
//! It has two slots of 4096 bytes with the same content: each change is written and synced in one,
//! then in the other. The newer intact slot counts, so either may be torn, decayed or unreadable.
//! Opening syncs the slot that it found, so that no change is written beside a slot that may not be
//! durable.
//!
//! | bytes | what (little endian) |
//! |---|---|
//! | 0..8 | `pkredo` and the version, 3 |
//! | 8..16 | number of the write: the larger is newer |
//! | 16..24 | id of the log, random |
//! | 24..32 | bytes of a file |
//! | 32..36 | number of files |
//! | 36..40 | 0: still being made; 1: in use; 2: closed |
//! | 40..48 | checkpoint: the LSN of the first record that is needed |
//! | 48..52 | salt in force there |
//! | 52..56 | CRC-32C of all before |
//! | 56..64 | bytes that may be appended and not synced, a multiple of 4096; 0: without a bound |
//! | 64..72 | settled: all before this LSN is durable; closed: and the log ends here |
//! | 72..80 | bytes of the longest record that may stand past it |
//! | 80..84 | number of epochs past the checkpoint, at most [`EPOCHS_MAX`] |
//! | 84..88 | zeros |
//! | 88.. | 12 bytes for each epoch: LSN at which the previous one ended, salt |
//! | 4092..4096 | CRC-32C of all before |
//!
//! The first 56 bytes are the same in all versions, so that a program that does not know a version
//! can still report it.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagekeeper_io::{AlignedBuf, Create, Io, IoFile, WriteMode, open_past_cache, open_writable_past_cache};

use super::own_blocks;
use super::ring::Geometry;
use crate::Error;
use crate::injected_fault::injected_fault;
use crate::record::{BLOCK, BLOCK_LEN, EpochAt, is_of_medium};

/// The name of the control file.
pub(super) const CONTROL_NAME: &str = "control";

const CONTROL_MAGIC: [u8; 6] = *b"pkredo";
pub(super) const CONTROL_VERSION: u16 = 3;
/// Bytes covered by the first checksum, in all versions.
const HEAD_BYTES: usize = 52;
const EPOCHS_OFFSET: usize = 88;
const EPOCH_BYTES: usize = 12;
/// Bytes covered by the last checksum.
const CHECKED_BYTES: usize = BLOCK_LEN - 4;
/// The maximum number of epochs in the control file.
pub(super) const EPOCHS_MAX: usize = 256;
/// The valid range of [`ControlState::max_unsynced`], in bytes.
pub(super) const MAX_UNSYNCED_RANGE: RangeInclusive<u64> = 8 * BLOCK..=1 << 32;
/// The maximum number of files. More would be a mistake.
pub(super) const MAX_FILES: u32 = 4096;

/// The phase of a log's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogPhase {
    /// Its files are being created.
    Making,
    /// It is being written to, or was when it crashed.
    InUse,
    /// It ends at the settled position.
    Closed,
}

/// The content of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ControlState {
    pub(super) number: u64,
    pub(super) log_id: u64,
    pub(super) geometry: Geometry,
    /// Bytes that may be appended and not synced.
    pub(super) max_unsynced: Option<u64>,
    pub(super) phase: LogPhase,
    pub(super) checkpoint: u64,
    pub(super) salt: u32,
    /// Everything before this is durable.
    pub(super) settled: u64,
    /// Bytes of the longest record past `settled`.
    pub(super) longest: u64,
    /// The epochs that begin past the checkpoint, in order.
    pub(super) epochs: Vec<EpochAt>,
}

/// The decoded content of a control file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DecodedControl {
    /// The newest intact slot, with its index.
    State(ControlState, usize),
    /// An intact slot of an unknown version.
    Version(u16),
    /// No intact slot.
    Nothing,
}

impl ControlState {
    fn encode(&self, slot: &mut [u8]) {
        slot.fill(0);
        let mut at = 0;
        let mut put = |part: &[u8]| {
            slot[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(&CONTROL_MAGIC);
        put(&CONTROL_VERSION.to_le_bytes());
        put(&self.number.to_le_bytes());
        put(&self.log_id.to_le_bytes());
        put(&self.geometry.file_bytes.to_le_bytes());
        put(&self.geometry.files.to_le_bytes());
        let phase = match self.phase {
            LogPhase::Making => 0_u32,
            LogPhase::InUse => 1,
            LogPhase::Closed => 2,
        };
        put(&phase.to_le_bytes());
        put(&self.checkpoint.to_le_bytes());
        put(&self.salt.to_le_bytes());
        put(&[0; 4]);
        put(&self.max_unsynced.unwrap_or(0).to_le_bytes());
        put(&self.settled.to_le_bytes());
        put(&self.longest.to_le_bytes());
        let epochs = u32::try_from(self.epochs.len()).unwrap_or_else(|_| unreachable!("they are few"));
        put(&epochs.to_le_bytes());
        put(&[0; 4]);
        for EpochAt { previous_end, salt } in &self.epochs {
            put(&previous_end.to_le_bytes());
            put(&salt.to_le_bytes());
        }
        let crc = crc32c::crc32c(&slot[..HEAD_BYTES]);
        slot[HEAD_BYTES..HEAD_BYTES + 4].copy_from_slice(&crc.to_le_bytes());
        let crc = crc32c::crc32c(&slot[..CHECKED_BYTES]);
        slot[CHECKED_BYTES..BLOCK_LEN].copy_from_slice(&crc.to_le_bytes());
    }

    /// Decodes the slot with this index.
    fn decode(slot: &[u8], index: usize) -> DecodedControl {
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| slot[at + byte]));
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| slot[at + byte]));
        let is_summed = |len: usize| slot.len() >= len + 4 && crc32c::crc32c(&slot[..len]) == word(len);
        if !is_summed(HEAD_BYTES) || slot[..6] != CONTROL_MAGIC {
            return DecodedControl::Nothing;
        }
        let version = u16::from_le_bytes([slot[6], slot[7]]);
        if version != CONTROL_VERSION {
            return DecodedControl::Version(version);
        }
        if !is_summed(CHECKED_BYTES) {
            return DecodedControl::Nothing;
        }
        let geometry = Geometry { file_bytes: long(24), files: word(32) };
        let max_unsynced = Some(long(56)).filter(|max| *max > 0);
        let phase = match word(36) {
            0 => LogPhase::Making,
            1 => LogPhase::InUse,
            2 => LogPhase::Closed,
            _ => return DecodedControl::Nothing,
        };
        let (checkpoint, settled, longest) = (long(40), long(64), long(72));
        let is_sound = geometry.file_bytes > 0
            && geometry.file_bytes.is_multiple_of(BLOCK)
            && (1..=MAX_FILES).contains(&geometry.files)
            && geometry.file_bytes <= u64::MAX >> 16
            && checkpoint <= u64::MAX >> 1
            && settled <= u64::MAX >> 1
            && settled.is_multiple_of(BLOCK)
            && (phase != LogPhase::Closed || checkpoint <= settled)
            && word(80) as usize <= EPOCHS_MAX
            && max_unsynced.is_none_or(|max| MAX_UNSYNCED_RANGE.contains(&max) && max.is_multiple_of(BLOCK));
        if !is_sound {
            return DecodedControl::Nothing;
        }
        let epochs = (0..word(80) as usize).map(|which| EPOCHS_OFFSET + which * EPOCH_BYTES);
        let state = Self {
            number: long(8),
            log_id: long(16),
            geometry,
            max_unsynced,
            phase,
            checkpoint,
            salt: word(48),
            settled,
            longest,
            epochs: epochs.map(|at| EpochAt { previous_end: long(at), salt: word(at + 8) }).collect(),
        };
        DecodedControl::State(state, index)
    }
}

/// Returns the newest of the slots' contents.
fn newest(slots: impl IntoIterator<Item = DecodedControl>) -> DecodedControl {
    slots.into_iter().fold(DecodedControl::Nothing, |best, slot| match (&best, &slot) {
        (_, DecodedControl::Nothing) | (DecodedControl::Version(_), _) => best,
        (DecodedControl::State(a, _), DecodedControl::State(b, _)) if a.number >= b.number => best,
        _ => slot,
    })
}

/// Reads the control file of a log. An unreadable slot counts as damaged as long as the other one
/// is intact.
pub(super) fn read(file: &dyn IoFile) -> Result<DecodedControl, Error> {
    let mut bytes = AlignedBuf::new(2 * BLOCK_LEN);
    match file.read_at(0, &mut bytes) {
        Ok(got) => {
            return Ok(newest(
                (0..).zip(bytes[..got].chunks(BLOCK_LEN)).map(|(at, slot)| ControlState::decode(slot, at)),
            ));
        }
        Err(error) if !is_of_medium(&error.clone().into()) => return Err(error.into()),
        Err(_) => {}
    }
    let mut failed = None;
    let mut slots = Vec::new();
    for (index, slot) in bytes.chunks_mut(BLOCK_LEN).enumerate() {
        match file.read_at((index * BLOCK_LEN) as u64, slot) {
            Ok(got) => slots.push(ControlState::decode(&slot[..got], index)),
            Err(error) => failed = Some(error),
        }
    }
    match (newest(slots), failed) {
        // An unreadable log may have been in use.
        (DecodedControl::Nothing, Some(error)) => Err(error.into()),
        (found, _) => Ok(found),
    }
}

/// The control file of an open log.
pub(super) struct ControlFile {
    io: Arc<dyn Io>,
    path: PathBuf,
    /// Opened by the first write.
    file: Option<Arc<dyn IoFile>>,
    state: ControlState,
    /// The slot to write first: the one that may be damaged.
    first: usize,
    buffer: AlignedBuf,
    #[cfg(any(test, feature = "injected-faults"))]
    pub(super) injected_fault: Option<crate::injected_fault::InjectedFault>,
}

impl ControlFile {
    /// Creates the file, durable except for its name, with the phase [`LogPhase::Making`].
    pub(super) fn create(io: &Arc<dyn Io>, path: &Path, state: ControlState) -> Result<Self, Error> {
        let file = open_writable_past_cache(&**io, path, Create::New)?;
        own_blocks::exempt_from_copies(&*file);
        let mut control = Self::open(io, path, state.clone(), 1);
        control.file = Some(Arc::clone(&file));
        control.write(state)?;
        file.sync_all()?;
        Ok(control)
    }

    /// Continues from the content that was read from this slot.
    pub(super) fn open(io: &Arc<dyn Io>, path: &Path, state: ControlState, slot: usize) -> Self {
        Self {
            io: Arc::clone(io),
            path: path.to_path_buf(),
            file: None,
            state,
            first: 1 - slot,
            buffer: AlignedBuf::new(BLOCK_LEN),
            #[cfg(any(test, feature = "injected-faults"))]
            injected_fault: None,
        }
    }

    /// Returns its current content.
    pub(super) fn state(&self) -> &ControlState {
        &self.state
    }

    /// Returns the damaged slots as they are on the device, each with the reason.
    pub(super) fn faults(&self) -> Result<Vec<(usize, String)>, Error> {
        let file = open_past_cache(&*self.io, &self.path)?;
        let mut bytes = AlignedBuf::new(BLOCK_LEN);
        let mut fault = |slot: usize| match file.read_at((slot * BLOCK_LEN) as u64, &mut bytes) {
            Err(error) => Some(error.to_string()),
            Ok(got) => match ControlState::decode(&bytes[..got], slot) {
                DecodedControl::State(..) => None,
                DecodedControl::Version(version) => Some(format!("of version {version}")),
                DecodedControl::Nothing => Some("it is not whole".to_owned()),
            },
        };
        Ok((0..2).filter_map(|slot| Some((slot, fault(slot)?))).collect())
    }

    /// Writes a new state durably to both slots. If that fails for lack of space, the file holds
    /// the previous state or the new one.
    pub(super) fn write(&mut self, state: ControlState) -> Result<(), Error> {
        let file = if let Some(file) = &self.file {
            Arc::clone(file)
        } else {
            let file = open_writable_past_cache(&*self.io, &self.path, Create::Never)?;
            own_blocks::unshare(&*file, 2 * BLOCK)?;
            Arc::clone(self.file.insert(file))
        };
        let state = ControlState { number: self.state.number + 1, ..state };
        state.encode(&mut self.buffer);
        let mut slots = &[self.first, 1 - self.first][..];
        if injected_fault!(self, OneSlot) {
            slots = &slots[..1];
        }
        if injected_fault!(self, OneSlotIsEnough) {
            slots = &slots[..1];
        }
        for slot in slots {
            file.write_at(*slot as u64 * BLOCK, &self.buffer, WriteMode::Plain)?;
            if !injected_fault!(self, NoSyncOfControl) {
                file.sync_data()?;
            }
        }
        if injected_fault!(self, OneSlotIsEnough) {
            self.first = 1 - self.first;
        }
        self.state = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use pagekeeper_io::Access;
    use pagekeeper_simdisk::{Damage, SimDisk};

    use super::*;

    fn state() -> ControlState {
        ControlState {
            number: 4,
            log_id: 0x0102_0304_0506_0708,
            geometry: Geometry { file_bytes: 1 << 20, files: 3 },
            max_unsynced: Some(1 << 20),
            phase: LogPhase::InUse,
            checkpoint: 8192,
            salt: 0xdead_beef,
            settled: 12288,
            longest: 0x4000,
            epochs: vec![
                EpochAt { previous_end: 0x2008, salt: 7 },
                EpochAt { previous_end: 0x3000, salt: 8 },
            ],
        }
    }

    fn encoded(state: &ControlState) -> Vec<u8> {
        let mut slot = vec![0xee; BLOCK_LEN];
        state.encode(&mut slot);
        slot
    }

    /// Adds the checksums to a slot.
    fn summed(mut slot: Vec<u8>) -> Vec<u8> {
        let crc = crc32c::crc32c(&slot[..HEAD_BYTES]);
        slot[HEAD_BYTES..HEAD_BYTES + 4].copy_from_slice(&crc.to_le_bytes());
        let crc = crc32c::crc32c(&slot[..CHECKED_BYTES]);
        slot[CHECKED_BYTES..].copy_from_slice(&crc.to_le_bytes());
        slot
    }

    /// These bytes are on users' disks and must stay readable.
    #[test]
    fn the_format_of_a_slot_is_fixed() {
        let mut expected =
            b"pkredo\x03\0\x04\0\0\0\0\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01\0\0\x10\0\0\0\0\0".to_vec();
        expected.extend(b"\x03\0\0\0\x01\0\0\0\0\x20\0\0\0\0\0\0\xef\xbe\xad\xde\0\0\0\0");
        expected.extend(b"\0\0\x10\0\0\0\0\0\0\x30\0\0\0\0\0\0\0\x40\0\0\0\0\0\0\x02\0\0\0\0\0\0\0");
        expected.extend(b"\x08\x20\0\0\0\0\0\0\x07\0\0\0\0\x30\0\0\0\0\0\0\x08\0\0\0");
        expected.resize(BLOCK_LEN, 0);
        let expected = summed(expected);
        assert_eq!(encoded(&state()), expected);
        assert_eq!(ControlState::decode(&expected, 1), DecodedControl::State(state(), 1));
        for at in 0..expected.len() {
            let mut rotten = expected.clone();
            rotten[at] ^= 1 << (at % 8);
            assert_eq!(ControlState::decode(&rotten, 0), DecodedControl::Nothing, "{at}");
        }
        for len in [0, 50, 4095] {
            assert_eq!(ControlState::decode(&expected[..len], 0), DecodedControl::Nothing);
        }
        // Older and newer versions may have anything behind the first part.
        for version in [1, 2, 4] {
            let mut other = expected.clone();
            other[6] = version;
            let crc = crc32c::crc32c(&other[..HEAD_BYTES]);
            other[HEAD_BYTES..HEAD_BYTES + 4].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(
                ControlState::decode(&other[..HEAD_BYTES + 4], 0),
                DecodedControl::Version(version.into())
            );
        }
    }

    #[test]
    fn impossible_values_are_no_state() {
        let wrong = [
            ControlState { max_unsynced: Some(BLOCK), ..state() },
            ControlState { max_unsynced: Some((1 << 20) + 8), ..state() },
            ControlState { settled: 8, ..state() },
            ControlState { settled: 4096, phase: LogPhase::Closed, ..state() },
            ControlState { geometry: Geometry { file_bytes: 100, files: 1 }, ..state() },
            ControlState { geometry: Geometry { file_bytes: 4096, files: 0 }, ..state() },
        ];
        for wrong in wrong {
            assert_eq!(ControlState::decode(&encoded(&wrong), 0), DecodedControl::Nothing, "{wrong:?}");
        }
        let full = ControlState { epochs: vec![state().epochs[0]; EPOCHS_MAX], ..state() };
        assert_eq!(ControlState::decode(&encoded(&full), 0), DecodedControl::State(full, 0));
        let mut slot = encoded(&state());
        slot[80..84].copy_from_slice(&(u32::try_from(EPOCHS_MAX).unwrap() + 1).to_le_bytes());
        assert_eq!(ControlState::decode(&summed(slot), 0), DecodedControl::Nothing);
        let mut slot = encoded(&state());
        slot[36] = 3;
        assert_eq!(ControlState::decode(&summed(slot), 0), DecodedControl::Nothing);
    }

    #[test]
    fn either_slot_may_be_torn_rotten_or_unreadable() {
        let path = Path::new("/control");
        let disk = SimDisk::new();
        let io: Arc<dyn Io> = Arc::new(disk.clone());
        let mut control = ControlFile::create(&io, path, state()).unwrap();
        for checkpoint in [100, 200, 300] {
            control.write(ControlState { checkpoint, ..control.state().clone() }).unwrap();
        }
        let found = |disk: &SimDisk| read(&*disk.open(path, Access::Direct).unwrap());
        for slot in 0..2 {
            let place = slot as u64 * BLOCK;
            for damage in [
                Damage::Bit { at: place + 300, bit: 0 },
                Damage::Zeros(place..place + BLOCK),
                Damage::Unreadable(place + 600..place + 601),
            ] {
                let damaged = disk.after_kill();
                damaged.damage(path, &damage).unwrap();
                assert_eq!(
                    found(&damaged),
                    Ok(DecodedControl::State(control.state().clone(), 1 - slot)),
                    "{damage:?}"
                );
                // The next write repairs it.
                let io: Arc<dyn Io> = Arc::new(damaged.clone());
                let mut again = ControlFile::open(&io, path, control.state().clone(), 1 - slot);
                damaged.cut_power_at(damaged.ops());
                again.write(control.state().clone()).unwrap_err();
                let torn = damaged.after_power_cut(pagekeeper_simdisk::Persistence::TornGarbage, 1);
                assert!(matches!(found(&torn), Ok(DecodedControl::State(..))), "{damage:?}");
            }
        }
        let damaged = disk.after_kill();
        damaged.damage(path, &Damage::Zeros(0..BLOCK)).unwrap();
        damaged.damage(path, &Damage::Unreadable(BLOCK..BLOCK + 1)).unwrap();
        assert!(matches!(found(&damaged), Err(Error::Io(_))));
        damaged.damage(path, &Damage::Cut(BLOCK)).unwrap();
        assert_eq!(found(&damaged), Ok(DecodedControl::Nothing));
    }
}
