//! The simulated disk against a plain model of the possible states after a power cut. Each byte has
//! its last synced value or one written since. Each name refers to its file at the last sync of its
//! directory or to one since.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use pagekeeper_io::{Access, AlignedBuf, Create, Error, Io, IoFile, WriteMode};
use pagekeeper_simdisk::{Persistence, SimDisk};
use proptest::prelude::*;

const NAMES: [&str; 4] = ["/a", "/b", "/d/x", "/d/y"];
const DIRS: [&str; 2] = ["/", "/d"];
const SECTOR: usize = 512;

fn dir_of(name: usize) -> usize {
    name / 2
}

#[derive(Debug, Clone)]
enum Op {
    Create(usize),
    Remove(usize),
    Rename(usize, usize),
    SyncDir(usize),
    Write {
        name: usize,
        at: usize,
        len: usize,
        access: Access,
        mode: WriteMode,
    },
    SetLen(usize, usize),
    Allocate(usize, usize),
    Sync(usize),
    /// Writes back, drops, reads: no effect that a crash could show.
    Stir(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let name = 0..NAMES.len();
    let mode = prop_oneof![
        6 => Just(WriteMode::Plain),
        1 => Just(WriteMode::Uncached),
        1 => Just(WriteMode::Durable),
    ];
    let access = prop_oneof![3 => Just(Access::Buffered), 1 => Just(Access::Direct)];
    prop_oneof![
        3 => name.clone().prop_map(Op::Create),
        1 => name.clone().prop_map(Op::Remove),
        2 => (name.clone(), name.clone()).prop_map(|(from, to)| Op::Rename(from, to)),
        2 => (0..DIRS.len()).prop_map(Op::SyncDir),
        9 => (name.clone(), 0..16_000_usize, 1..6000_usize, access, mode)
            .prop_map(|(name, at, len, access, mode)| Op::Write { name, at, len, access, mode }),
        1 => (name.clone(), 0..20_000_usize).prop_map(|(name, len)| Op::SetLen(name, len)),
        1 => (name.clone(), 0..20_000_usize).prop_map(|(name, len)| Op::Allocate(name, len)),
        2 => name.clone().prop_map(Op::Sync),
        1 => name.prop_map(Op::Stir),
    ]
}

/// The current state of a file, and its possible states after a crash.
#[derive(Default)]
struct File {
    seen: Vec<u8>,
    /// The content at the last sync; `None` if unknown for the whole file.
    synced: Option<Vec<u8>>,
    /// By offset: the possible bytes. Behind the shortest length also zeros.
    may: Vec<BTreeSet<u8>>,
    least: usize,
    most: usize,
    /// Sectors that were written since the last sync.
    written: BTreeSet<usize>,
    /// Whether it has a durable name, and has always had a name since, without another file
    /// replacing any of them.
    kept: bool,
}

impl File {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        if self.seen.len() < end {
            self.seen.resize(end, 0);
        }
        self.seen[at..end].copy_from_slice(bytes);
        self.reached(end);
        for (may, byte) in self.may[at..end].iter_mut().zip(bytes) {
            may.insert(*byte);
        }
        self.written.extend(at / SECTOR..end.div_ceil(SECTOR));
    }

    fn reached(&mut self, end: usize) {
        self.most = self.most.max(end);
        if self.may.len() < end {
            self.may.resize(end, BTreeSet::new());
        }
    }

    fn set_len(&mut self, len: usize) {
        self.seen.resize(len, 0);
        self.least = self.least.min(len);
        self.reached(len);
    }

    fn sync(&mut self) {
        self.may = self.seen.iter().map(|byte| BTreeSet::from([*byte])).collect();
        (self.least, self.most) = (self.seen.len(), self.seen.len());
        self.synced = Some(self.seen.clone());
        self.written.clear();
    }

    /// Makes these bytes and the size durable; the state of the others is unknown.
    fn sync_range(&mut self, at: usize, end: usize) {
        for may in &mut self.may[self.least.min(self.seen.len())..self.seen.len()] {
            may.insert(0);
        }
        self.least = self.seen.len();
        for (may, byte) in self.may[at..end].iter_mut().zip(&self.seen[at..end]) {
            *may = BTreeSet::from([*byte]);
        }
        self.written.retain(|sector| sector * SECTOR < at || end < (sector + 1) * SECTOR);
        self.synced = None;
    }

    fn check(&self, found: &[u8], persistence: Persistence) {
        match (persistence, &self.synced) {
            (Persistence::All, _) => assert!(found == self.seen, "all persists, and it is another file"),
            (Persistence::None, Some(synced)) => {
                assert!(found == synced, "nothing persists, and it is another file");
            }
            _ => {}
        }
        let lengths = self.least..=self.most;
        assert!(lengths.contains(&found.len()), "{} bytes, not {lengths:?}", found.len());
        for (at, byte) in found.iter().enumerate() {
            let garbage = persistence == Persistence::TornGarbage && self.written.contains(&(at / SECTOR));
            let allowed = self.may[at].contains(byte) || at >= self.least && *byte == 0 || garbage;
            assert!(allowed, "byte {at} is {byte}, not one of {:?}", self.may[at]);
        }
    }
}

/// The disk, and its expected content.
struct World {
    disk: SimDisk,
    files: BTreeMap<u64, File>,
    open: BTreeMap<u64, [Arc<dyn IoFile>; 2]>,
    seen: [Option<u64>; NAMES.len()],
    may: [BTreeSet<Option<u64>>; NAMES.len()],
    /// Whether `/d` is durable.
    directory: bool,
    /// The byte for the next write.
    byte: u8,
}

impl World {
    fn new() -> Self {
        let disk = SimDisk::new();
        disk.create_dir("/d".as_ref()).unwrap();
        let may = [(); NAMES.len()].map(|()| BTreeSet::from([None]));
        Self {
            disk,
            files: BTreeMap::new(),
            open: BTreeMap::new(),
            seen: [None; NAMES.len()],
            may,
            directory: false,
            byte: 0,
        }
    }

    fn named(&mut self, name: usize, file: Option<u64>) {
        self.seen[name] = file;
        if file.is_some() {
            // The name may still be its own, if its own rename does not persist and this one does.
            for old in self.may[name].iter().flatten().filter(|old| Some(**old) != file) {
                self.files.get_mut(old).unwrap().kept = false;
            }
        }
        self.may[name].insert(file);
    }

    /// Performs an operation on disk and model. An error means a power cut: then a sync was not
    /// done, and any other operation may have been done in part.
    fn run(&mut self, op: &Op) -> Result<(), Error> {
        let file_of =
            |name: usize| self.seen[name].and_then(|file| Some((file, self.open.get(&file)?.clone())));
        match *op {
            Op::Create(name) => self.create(name),
            Op::Remove(name) => {
                let Some(file) = self.seen[name] else {
                    assert!(Io::remove(&self.disk, NAMES[name].as_ref()).is_err());
                    return Ok(());
                };
                let done = Io::remove(&self.disk, NAMES[name].as_ref());
                self.named(name, None);
                self.files.get_mut(&file).unwrap().kept = false;
                done
            }
            Op::Rename(from, to) => {
                let Some(file) = self.seen[from].filter(|_| from != to) else { return Ok(()) };
                let done = self.disk.rename(NAMES[from].as_ref(), NAMES[to].as_ref());
                self.named(from, None);
                self.named(to, Some(file));
                done
            }
            Op::SyncDir(dir) => {
                self.disk.sync_dir(DIRS[dir].as_ref())?;
                self.directory |= dir == 0;
                for name in (0..NAMES.len()).filter(|name| dir_of(*name) == dir) {
                    self.may[name] = BTreeSet::from([self.seen[name]]);
                    if let Some(file) = self.seen[name].filter(|_| self.directory) {
                        self.files.get_mut(&file).unwrap().kept = true;
                    }
                }
                Ok(())
            }
            Op::Write { name, mut at, mut len, access, mode } => {
                let Some((file, [buffered, direct])) = file_of(name) else { return Ok(()) };
                if access == Access::Direct {
                    (at, len) = (at / SECTOR * SECTOR, len.next_multiple_of(SECTOR));
                }
                self.byte = self.byte % 250 + 1;
                let mut bytes = AlignedBuf::new(len);
                bytes.fill(self.byte);
                let open = if access == Access::Direct { direct } else { buffered };
                let done = open.write_at(at as u64, &bytes, mode);
                let model = self.files.get_mut(&file).unwrap();
                model.write(at, &bytes);
                if mode == WriteMode::Durable && done.is_ok() {
                    model.sync_range(at, at + len);
                }
                done
            }
            Op::SetLen(name, len) => {
                let Some((file, [open, _])) = file_of(name) else { return Ok(()) };
                let done = open.set_len(len as u64);
                self.files.get_mut(&file).unwrap().set_len(len);
                done
            }
            Op::Allocate(name, len) => {
                let Some((file, [open, _])) = file_of(name) else { return Ok(()) };
                let done = open.allocate(len as u64 / 2..len as u64);
                let model = self.files.get_mut(&file).unwrap();
                model.set_len(model.seen.len().max(len));
                done
            }
            Op::Sync(name) => {
                let Some((file, [open, _])) = file_of(name) else { return Ok(()) };
                open.sync_data()?;
                self.files.get_mut(&file).unwrap().sync();
                Ok(())
            }
            Op::Stir(name) => {
                let Some((_, [open, _])) = file_of(name) else { return Ok(()) };
                open.read_at(3000, &mut [0; 3000])?;
                open.wait_writeback(0..8192)?;
                open.release(0..u64::MAX)
            }
        }
    }

    fn create(&mut self, name: usize) -> Result<(), Error> {
        let path = Path::new(NAMES[name]);
        if self.seen[name].is_some() {
            let again = self.disk.open_writable(path, Access::Buffered, Create::New);
            let errno = again.err().unwrap().errno();
            assert!(matches!(errno, Some(libc::EEXIST | libc::EIO)), "{errno:?}");
            return Ok(());
        }
        let buffered = self.disk.open_writable(path, Access::Buffered, Create::New);
        let Ok(buffered) = buffered else {
            // The file's number is not known.
            self.named(name, Some(u64::MAX));
            self.files.insert(u64::MAX, File { synced: Some(Vec::new()), ..File::default() });
            return Err(buffered.err().unwrap());
        };
        let direct = self.disk.open_writable(path, Access::Direct, Create::Never)?;
        let file = buffered.stat()?.inode;
        self.named(name, Some(file));
        self.files.insert(file, File { synced: Some(Vec::new()), ..File::default() });
        self.open.insert(file, [buffered, direct]);
        Ok(())
    }

    /// Checks that the visible content is the written one, in both ways of access.
    fn check_seen(&self) {
        check_all_seen(&self.disk, &self.seen, &self.files);
        for (file, open) in &self.open {
            for open in open {
                assert!(content(&**open) == self.files[file].seen, "{:?}", open.access());
            }
        }
    }

    fn check_after_cut(&self, persistence: Persistence, seed: u64) {
        let found = self.disk.after_power_cut(persistence, seed);
        let again = self.disk.after_power_cut(persistence, seed);
        let root = found.list("/".as_ref()).unwrap();
        let directory = root.iter().any(|name| name == "d");
        assert!(directory || !self.directory);
        let mut named = BTreeSet::new();
        for (name, path) in NAMES.iter().enumerate() {
            let file = found.open(path.as_ref(), Access::Direct).ok();
            let Some(file) = file else {
                assert!(
                    self.may[name].contains(&None) || dir_of(name) == 1 && !directory,
                    "{path} is missing"
                );
                continue;
            };
            let bytes = content(&*file);
            assert!(bytes == content(&*again.open(path.as_ref(), Access::Buffered).unwrap()));
            let number = file.stat().unwrap().inode;
            // A file that was being created during the power cut.
            let number = if self.files.contains_key(&number) { number } else { u64::MAX };
            named.insert(number);
            assert!(
                self.may[name].contains(&Some(number)),
                "{path} is {number}, not of {:?}",
                self.may[name]
            );
            self.files[&number].check(&bytes, persistence);
        }
        for (number, file) in &self.files {
            assert!(!file.kept || named.contains(number), "a file that was only renamed has no name");
        }
    }
}

fn check_all_seen(disk: &SimDisk, seen: &[Option<u64>], files: &BTreeMap<u64, File>) {
    for (path, number) in NAMES.iter().zip(seen) {
        let file = disk.open(path.as_ref(), Access::Buffered).ok();
        assert_eq!(file.as_ref().map(|file| file.stat().unwrap().inode), *number);
        if let (Some(file), Some(number)) = (file, number) {
            assert!(content(&*file) == files[number].seen);
        }
    }
}

fn content(file: &dyn IoFile) -> Vec<u8> {
    let len = usize::try_from(file.stat().unwrap().size).unwrap();
    let mut bytes = AlignedBuf::new(len.next_multiple_of(SECTOR));
    assert_eq!(file.read_at(0, &mut bytes), Ok(len));
    bytes[..len].to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_power_cut_keeps_synced_bytes_and_invents_none(
        ops in prop::collection::vec(op(), 1..60),
        cut in prop::option::of(1..60_u64),
        seed in any::<u64>(),
    ) {
        let mut world = World::new();
        if let Some(cut) = cut {
            world.disk.cut_power_at(cut);
        }
        let failed = ops.iter().find_map(|op| world.run(op).err());
        match failed {
            Some(error) => {
                assert_eq!(error.errno(), Some(libc::EIO), "{error}");
                assert!(world.disk.ops() > cut.unwrap());
                assert!(world.disk.list("/".as_ref()).is_err(), "there is no power");
            }
            None => world.check_seen(),
        }
        for persistence in Persistence::ALL {
            world.check_after_cut(persistence, seed);
        }
        if world.disk.list("/".as_ref()).is_ok() {
            // A kill of the programs loses nothing, and makes nothing durable.
            let killed = World { disk: world.disk.after_kill(), open: BTreeMap::new(), ..world };
            check_all_seen(&killed.disk, &killed.seen, &killed.files);
            for persistence in Persistence::ALL {
                killed.check_after_cut(persistence, seed);
            }
        }
    }
}
