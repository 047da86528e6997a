//! The files behind the disk: inodes as the kernel knows them, each with a descriptor of its file,
//! and open handles.
//!
//! Invariants: a file keeps one inode number for as long as the kernel remembers it, even if it is
//! renamed; a number is never reused. Fails with the system call's error, which is passed to the
//! kernel.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, Stat, fstat, openat, statat};

/// A node: a descriptor without access (`O_PATH`), through which its file is opened.
pub(super) type NodeDescriptor = Arc<OwnedFd>;

/// The object of a file handle.
#[derive(Debug)]
pub(super) enum OpenObject {
    File(File),
    Directory(Vec<DirectoryEntry>),
    /// The account at the time of the open.
    Stats(Vec<u8>),
}

/// An entry of a directory.
#[derive(Debug)]
pub(super) struct DirectoryEntry {
    pub(super) ino: u64,
    pub(super) kind: FileType,
    pub(super) name: OsString,
}

/// The inodes.
#[derive(Debug)]
pub(super) struct InodeTree(Mutex<InodeMap>);

#[derive(Debug)]
struct InodeMap {
    nodes: HashMap<u64, KnownInode>,
    /// Inode numbers, by device and inode number behind the disk.
    numbers: HashMap<(u64, u64), u64>,
    next: u64,
}

#[derive(Debug)]
struct KnownInode {
    node: NodeDescriptor,
    behind: (u64, u64),
    /// Number of references that the kernel holds.
    lookups: u64,
}

impl InodeTree {
    /// Creates a tree below `root`; numbers begin at `first`.
    pub(super) fn new(root: OwnedFd, first: u64) -> io::Result<Self> {
        let stat = fstat(&root)?;
        let behind = (stat.st_dev, stat.st_ino);
        let root = KnownInode { node: Arc::new(root), behind, lookups: 1 };
        let number = INodeNo::ROOT.0;
        Ok(Self(Mutex::new(InodeMap {
            nodes: HashMap::from([(number, root)]),
            numbers: HashMap::from([(behind, number)]),
            next: first,
        })))
    }

    pub(super) fn node(&self, ino: INodeNo) -> io::Result<NodeDescriptor> {
        let known = self.inodes().nodes.get(&ino.0).map(|known| Arc::clone(&known.node));
        known.ok_or_else(|| rustix::io::Errno::STALE.into())
    }

    /// Looks up a file by name and returns its attributes, with the number by which the kernel now
    /// knows it.
    pub(super) fn lookup(&self, parent: INodeNo, name: &OsStr) -> io::Result<FileAttr> {
        let parent = self.node(parent)?;
        let node = openat(&*parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let stat = fstat(&node)?;
        let behind = (stat.st_dev, stat.st_ino);
        let mut inodes = self.inodes();
        let number = inodes.numbers.get(&behind).copied().unwrap_or(inodes.next);
        if number == inodes.next {
            inodes.next += 1;
            inodes.numbers.insert(behind, number);
            inodes.nodes.insert(number, KnownInode { node: Arc::new(node), behind, lookups: 0 });
        }
        if let Some(known) = inodes.nodes.get_mut(&number) {
            known.lookups += 1;
        }
        Ok(attributes(number, &stat))
    }

    /// Drops references that the kernel has forgotten.
    pub(super) fn forget(&self, ino: INodeNo, lookups: u64) {
        let mut inodes = self.inodes();
        let Some(known) = inodes.nodes.get_mut(&ino.0) else { return };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups == 0 && ino != INodeNo::ROOT {
            let behind = known.behind;
            inodes.nodes.remove(&ino.0);
            inodes.numbers.remove(&behind);
        }
    }

    pub(super) fn attributes(&self, ino: INodeNo) -> io::Result<FileAttr> {
        Ok(attributes(ino.0, &fstat(&*self.node(ino)?)?))
    }

    /// Opens a file.
    pub(super) fn open(&self, ino: INodeNo, flags: OFlags) -> io::Result<File> {
        let node = self.node(ino)?;
        let path = path_of(&node);
        Ok(File::from(rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// Reads a whole directory.
    pub(super) fn read_dir(&self, ino: INodeNo) -> io::Result<Vec<DirectoryEntry>> {
        use std::os::unix::ffi::OsStrExt;
        let directory = self.open(ino, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let entries = Dir::read_from(&directory)?.map(|entry| {
            let entry = entry?;
            let kind = match entry.file_type() {
                rustix::fs::FileType::Unknown => {
                    let stat = statat(&directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
                    rustix::fs::FileType::from_raw_mode(stat.st_mode)
                }
                kind => kind,
            };
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
            Ok(DirectoryEntry { ino: entry.ino(), kind: kind_of(kind), name })
        });
        entries.collect()
    }

    fn inodes(&self) -> MutexGuard<'_, InodeMap> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a path that leads to a node wherever it is, even after it lost its name.
pub(super) fn path_of(node: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", node.as_raw_fd()))
}

/// Open handles, by the number that the kernel was given.
#[derive(Debug, Default)]
pub(super) struct HandleTable(RwLock<HandleMap>);

#[derive(Debug, Default)]
struct HandleMap {
    open: HashMap<u64, Arc<OpenObject>>,
    next: u64,
}

impl HandleTable {
    pub(super) fn add(&self, open: OpenObject) -> u64 {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        table.next += 1;
        let number = table.next;
        table.open.insert(number, Arc::new(open));
        number
    }

    pub(super) fn get(&self, number: u64) -> io::Result<Arc<OpenObject>> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.open.get(&number).cloned().ok_or_else(|| rustix::io::Errno::BADF.into())
    }

    pub(super) fn remove(&self, number: u64) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).open.remove(&number);
    }
}

/// Converts stat(2) attributes to the kernel's form.
#[expect(
    clippy::cast_possible_truncation,
    reason = "types of fields differ among architectures, ranges do not"
)]
#[cfg_attr(
    target_arch = "x86_64",
    expect(clippy::cast_sign_loss, reason = "sizes and counts are not negative")
)]
fn attributes(ino: u64, stat: &Stat) -> FileAttr {
    let time = |seconds, nanos| time_of(seconds, nanos as u32);
    FileAttr {
        ino: INodeNo(ino),
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        crtime: UNIX_EPOCH,
        kind: kind_of(rustix::fs::FileType::from_raw_mode(stat.st_mode)),
        perm: (stat.st_mode & 0o7777) as u16,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: stat.st_rdev as u32,
        blksize: 4096,
        flags: 0,
    }
}

fn time_of(seconds: i64, nanos: u32) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let whole = if seconds < 0 { UNIX_EPOCH - whole } else { UNIX_EPOCH + whole };
    whole + Duration::from_nanos(nanos.into())
}

fn kind_of(kind: rustix::fs::FileType) -> FileType {
    use rustix::fs::FileType as RequestPurpose;
    match kind {
        RequestPurpose::Directory => FileType::Directory,
        RequestPurpose::Symlink => FileType::Symlink,
        RequestPurpose::Fifo => FileType::NamedPipe,
        RequestPurpose::Socket => FileType::Socket,
        RequestPurpose::CharacterDevice => FileType::CharDevice,
        RequestPurpose::BlockDevice => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_file_keeps_its_number_until_the_kernel_forgets_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "text").unwrap();
        let tree = InodeTree::new(File::open(dir.path()).unwrap().into(), 10).unwrap();
        let found = tree.lookup(INodeNo::ROOT, OsStr::new("a")).unwrap();
        assert_eq!((found.ino, found.size, found.kind), (INodeNo(10), 4, FileType::RegularFile));
        std::fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
        assert_eq!(tree.lookup(INodeNo::ROOT, OsStr::new("b")).unwrap().ino, found.ino);
        assert_eq!(tree.lookup(INodeNo::ROOT, OsStr::new("a")).unwrap_err().kind(), io::ErrorKind::NotFound);

        tree.forget(found.ino, 1);
        std::fs::remove_file(dir.path().join("b")).unwrap();
        let mut open = tree.open(found.ino, OFlags::RDONLY).unwrap();
        assert_eq!(io::read_to_string(&mut open).unwrap(), "text", "a file without a name can be opened");
        tree.forget(found.ino, 1);
        assert!(tree.node(found.ino).is_err());
        tree.forget(INodeNo::ROOT, 100);
        assert!(tree.node(INodeNo::ROOT).is_ok());

        std::fs::write(dir.path().join("c"), "").unwrap();
        assert_eq!(tree.lookup(INodeNo::ROOT, OsStr::new("c")).unwrap().ino, INodeNo(11));
        let names: Vec<_> =
            tree.read_dir(INodeNo::ROOT).unwrap().into_iter().map(|entry| entry.name).collect();
        assert!(names.contains(&OsString::from("c")) && names.contains(&OsString::from("..")), "{names:?}");
    }

    #[test]
    fn handles_are_used_once() {
        let handles = HandleTable::default();
        let first = handles.add(OpenObject::Stats(vec![1]));
        assert!(matches!(&*handles.get(first).unwrap(), OpenObject::Stats(text) if text == &[1]));
        handles.remove(first);
        assert!(handles.get(first).is_err());
        assert_ne!(handles.add(OpenObject::Stats(vec![])), first);
    }

    #[test]
    fn times_before_1970_are_reported() {
        assert_eq!(time_of(-2, 500_000_000), UNIX_EPOCH - Duration::from_millis(1500));
        let file = tempfile::tempfile().unwrap();
        assert_eq!(attributes(1, &fstat(file.as_fd()).unwrap()).size, 0);
    }
}
