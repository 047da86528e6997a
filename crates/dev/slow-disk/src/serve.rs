//! The file system that the kernel sees: the tree's files, whose reads, writes, syncs and
//! allocations are answered when the disk would be done.
//!
//! A request is executed at once on the thread that took it, and its answer waits for its time. The
//! tree is in memory or in the kernel's page cache, and so faster than any disk worth modelling. A
//! sync waits as well but syncs nothing, because power cuts are not modelled. Names and attributes
//! are free. Errors are reported at once.
//!
//! Invariants: only this disk's kernel changes the tree, so the kernel may cache names and
//! attributes without limit and gather writes; each open begins cold, because an open drops cached
//! pages, unless the disk is to keep them.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};
use rustix::fs::{AtFlags, FallocateFlags, Gid, Mode, OFlags, SeekFrom, Timespec, Timestamps, Uid};

use super::delay::{DelayQueue, RequestAnswer};
use super::stats::RequestPurpose;
use super::tree::{HandleTable, InodeTree, OpenObject, path_of};

/// The name of the file with the disk's statistics.
pub(super) const STATS_FILE_NAME: &str = ".stats";
const STATS_INO: INodeNo = INodeNo(2);
const FIRST_INO: u64 = 3;

/// The time for which the kernel may cache names and attributes: nobody else changes anything.
const ATTRIBUTE_LIFETIME: Duration = Duration::from_secs(1 << 30);
/// Largest request, in bytes.
const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// A delayed answer.
#[derive(Debug)]
pub(super) enum DelayedAnswer {
    Read(ReplyData, Vec<u8>),
    Written(ReplyWrite, u32),
    Done(ReplyEmpty),
}

impl RequestAnswer for DelayedAnswer {
    fn give(self) {
        match self {
            Self::Read(reply, bytes) => reply.data(&bytes),
            Self::Written(reply, bytes) => reply.written(bytes),
            Self::Done(reply) => reply.ok(),
        }
    }
}

/// The file system.
#[derive(Debug)]
pub(super) struct SlowFileSystem {
    tree: InodeTree,
    handles: HandleTable,
    delay: Arc<DelayQueue<DelayedAnswer>>,
    /// The flags of an open that is not for direct I/O.
    buffered: FopenFlags,
}

impl SlowFileSystem {
    pub(super) fn new(
        root: std::os::fd::OwnedFd,
        delay: Arc<DelayQueue<DelayedAnswer>>,
        keep_cache: bool,
    ) -> io::Result<Self> {
        let buffered = if keep_cache { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() };
        Ok(Self { tree: InodeTree::new(root, FIRST_INO)?, handles: HandleTable::default(), delay, buffered })
    }

    fn stats_attributes() -> FileAttr {
        FileAttr {
            ino: STATS_INO,
            size: 0,
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: FileType::RegularFile,
            perm: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// Gives a new file to the user that created it, then looks it up.
    fn give(&self, request: &Request, parent: INodeNo, name: &OsStr) -> io::Result<FileAttr> {
        let (uid, gid) = (Uid::from_raw(request.uid()), Gid::from_raw(request.gid()));
        let directory = self.tree.node(parent)?;
        rustix::fs::chownat(&*directory, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        self.tree.lookup(parent, name)
    }

    fn open_file(&self, file: File, flags: OpenFlags) -> (FileHandle, FopenFlags) {
        // Without these flags concurrent direct writers of one file would wait for each other.
        let direct = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        let is_direct = oflags(flags.0).contains(OFlags::DIRECT);
        let handle = FileHandle(self.handles.add(OpenObject::File(file)));
        (handle, if is_direct { direct } else { self.buffered })
    }

    /// Runs an operation on an open file.
    fn on_file<T>(&self, handle: FileHandle, what: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
        match &*self.handles.get(handle.0)? {
            OpenObject::File(file) => what(file),
            OpenObject::Directory(_) | OpenObject::Stats(_) => Err(rustix::io::Errno::BADF.into()),
        }
    }

    fn change(&self, ino: INodeNo, change: &AttributeChange) -> io::Result<FileAttr> {
        let node = self.tree.node(ino)?;
        let path = path_of(&node);
        if let Some(mode) = change.mode {
            rustix::fs::chmod(&path, Mode::from_raw_mode(mode))?;
        }
        if change.uid.is_some() || change.gid.is_some() {
            let (uid, gid) = (change.uid.map(Uid::from_raw), change.gid.map(Gid::from_raw));
            rustix::fs::chownat(&*node, "", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if let Some(size) = change.size {
            self.tree.open(ino, OFlags::WRONLY)?.set_len(size)?;
        }
        if change.atime.is_some() || change.mtime.is_some() {
            let times =
                Timestamps { last_access: timespec(change.atime), last_modification: timespec(change.mtime) };
            rustix::fs::utimensat(rustix::fs::CWD, &path, &times, AtFlags::empty())?;
        }
        self.tree.attributes(ino)
    }
}

/// New attributes of a file.
#[derive(Debug)]
struct AttributeChange {
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    size: Option<u64>,
    atime: Option<TimeOrNow>,
    mtime: Option<TimeOrNow>,
}

fn timespec(time: Option<TimeOrNow>) -> Timespec {
    let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    match time {
        None => special(rustix::fs::UTIME_OMIT),
        Some(TimeOrNow::Now) => special(rustix::fs::UTIME_NOW),
        Some(TimeOrNow::SpecificTime(time)) => {
            let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            Timespec::try_from(since).unwrap_or(special(rustix::fs::UTIME_OMIT))
        }
    }
}

/// Converts an open's flags to this system's bits.
fn oflags(flags: i32) -> OFlags {
    OFlags::from_bits_retain(flags.cast_unsigned())
}

/// Returns the flags for opening the file behind: the kernel reads pages that it will write partly,
/// and tracks the file's end itself.
fn flags_behind(flags: i32) -> OFlags {
    if oflags(flags).intersects(OFlags::WRONLY | OFlags::RDWR) { OFlags::RDWR } else { OFlags::RDONLY }
}

macro_rules! answer {
    ($reply:ident, $result:expr, $good:expr) => {
        match $result {
            Ok(value) => $good(value),
            Err(error) => $reply.error(Errno::from(io::Error::from(error))),
        }
    };
}

impl Filesystem for SlowFileSystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // The default of 16 would be the width of every disk.
        let _ = config.set_max_background(u16::MAX);
        let _ = config.set_congestion_threshold(u16::MAX);
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        config
            .add_capabilities(
                InitFlags::FUSE_WRITEBACK_CACHE | InitFlags::FUSE_ASYNC_DIO | InitFlags::FUSE_PARALLEL_DIROPS,
            )
            .map_err(|lacking| io::Error::other(format!("this kernel's FUSE has no {lacking:?}")))?;
        // Since Linux 6.6; before, only files open for direct I/O cannot be mapped.
        let _ = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == STATS_FILE_NAME {
            return reply.entry(&ATTRIBUTE_LIFETIME, &Self::stats_attributes(), Generation(0));
        }
        answer!(reply, self.tree.lookup(parent, name), |found| reply.entry(
            &ATTRIBUTE_LIFETIME,
            &found,
            Generation(0)
        ));
    }

    fn forget(&self, _: &Request, ino: INodeNo, lookups: u64) {
        self.tree.forget(ino, lookups);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        if ino == STATS_INO {
            return reply.attr(&ATTRIBUTE_LIFETIME, &Self::stats_attributes());
        }
        answer!(reply, self.tree.attributes(ino), |found| reply.attr(&ATTRIBUTE_LIFETIME, &found));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if ino == STATS_INO {
            if size.is_some() {
                self.delay.reset();
            }
            return reply.attr(&ATTRIBUTE_LIFETIME, &Self::stats_attributes());
        }
        let change = AttributeChange { mode, uid, gid, size, atime, mtime };
        answer!(reply, self.change(ino, &change), |found| reply.attr(&ATTRIBUTE_LIFETIME, &found));
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        let target = self.tree.node(ino).and_then(|node| Ok(rustix::fs::readlinkat(&*node, "", Vec::new())?));
        answer!(reply, target, |target: std::ffi::CString| reply.data(target.as_bytes()));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        if rustix::fs::FileType::from_raw_mode(mode) != rustix::fs::FileType::RegularFile {
            return reply.error(Errno::EPERM);
        }
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let found = self.tree.node(parent).and_then(|directory| {
            rustix::fs::openat(&*directory, name, flags, Mode::from_raw_mode(mode & !umask))?;
            self.give(request, parent, name)
        });
        answer!(reply, found, |found| reply.entry(&ATTRIBUTE_LIFETIME, &found, Generation(0)));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let found = self.tree.node(parent).and_then(|directory| {
            rustix::fs::mkdirat(&*directory, name, Mode::from_raw_mode(mode & !umask))?;
            self.give(request, parent, name)
        });
        answer!(reply, found, |found| reply.entry(&ATTRIBUTE_LIFETIME, &found, Generation(0)));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let found = self.tree.node(parent).and_then(|directory| {
            rustix::fs::symlinkat(target, &*directory, name)?;
            self.give(request, parent, name)
        });
        answer!(reply, found, |found| reply.entry(&ATTRIBUTE_LIFETIME, &found, Generation(0)));
    }

    fn link(&self, _: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.tree.node(ino).and_then(|node| {
            let directory = self.tree.node(parent)?;
            rustix::fs::linkat(rustix::fs::CWD, path_of(&node), &*directory, name, AtFlags::SYMLINK_FOLLOW)?;
            self.tree.lookup(parent, name)
        });
        answer!(reply, found, |found| reply.entry(&ATTRIBUTE_LIFETIME, &found, Generation(0)));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done =
            self.tree.node(parent).and_then(|node| Ok(rustix::fs::unlinkat(&*node, name, AtFlags::empty())?));
        answer!(reply, done, |()| reply.ok());
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self
            .tree
            .node(parent)
            .and_then(|node| Ok(rustix::fs::unlinkat(&*node, name, AtFlags::REMOVEDIR)?));
        answer!(reply, done, |()| reply.ok());
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        let done = self.tree.node(parent).and_then(|from| {
            Ok(rustix::fs::renameat_with(&*from, name, &*self.tree.node(new_parent)?, new_name, flags)?)
        });
        answer!(reply, done, |()| reply.ok());
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        if parent == INodeNo::ROOT && name == STATS_FILE_NAME {
            return reply.error(Errno::EEXIST);
        }
        let exclusive = oflags(flags) & OFlags::EXCL;
        let found = self.tree.node(parent).and_then(|directory| {
            let behind = OFlags::CREATE | OFlags::CLOEXEC | flags_behind(flags) | exclusive;
            let file = rustix::fs::openat(&*directory, name, behind, Mode::from_raw_mode(mode & !umask))?;
            Ok((File::from(file), self.give(request, parent, name)?))
        });
        answer!(reply, found, |(file, made)| {
            let (handle, opened) = self.open_file(file, OpenFlags(flags));
            reply.created(&ATTRIBUTE_LIFETIME, &made, Generation(0), handle, opened);
        });
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if ino == STATS_INO {
            let text = serde_json::to_vec(&self.delay.stats()).map_err(io::Error::from);
            return answer!(reply, text, |mut text: Vec<u8>| {
                text.push(b'\n');
                let handle = self.handles.add(OpenObject::Stats(text));
                reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
            });
        }
        answer!(reply, self.tree.open(ino, flags_behind(flags.0)), |file| {
            let (handle, opened) = self.open_file(file, flags);
            reply.opened(handle, opened);
        });
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let arrival = self.delay.now();
        let read = self.handles.get(handle.0).and_then(|open| match &*open {
            OpenObject::File(file) => read_at(file, offset, size as usize).map(|bytes| (bytes, true)),
            OpenObject::Stats(text) => {
                let rest = usize::try_from(offset).ok().and_then(|offset| text.get(offset..)).unwrap_or(&[]);
                Ok((rest[..rest.len().min(size as usize)].to_vec(), false))
            }
            OpenObject::Directory(_) => Err(rustix::io::Errno::ISDIR.into()),
        });
        answer!(reply, read, |(bytes, waits): (Vec<u8>, bool)| {
            if waits {
                self.delay.add(arrival, RequestPurpose::Read, size.into(), DelayedAnswer::Read(reply, bytes));
            } else {
                reply.data(&bytes);
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let arrival = self.delay.now();
        // One request has at most [`REQUEST_BYTES_MAX`] bytes.
        let size = u32::try_from(data.len()).unwrap_or(u32::MAX);
        if ino == STATS_INO {
            return reply.written(size);
        }
        answer!(reply, self.on_file(handle, |file| file.write_all_at(data, offset)), |()| {
            self.delay.add(arrival, RequestPurpose::Write, size.into(), DelayedAnswer::Written(reply, size));
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.handles.remove(handle.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.delay.add(self.delay.now(), RequestPurpose::Other, 0, DelayedAnswer::Done(reply));
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.delay.add(self.delay.now(), RequestPurpose::Other, 0, DelayedAnswer::Done(reply));
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let arrival = self.delay.now();
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        let done = self.on_file(handle, |file| Ok(rustix::fs::fallocate(file, mode, offset, length)?));
        answer!(reply, done, |()| self.delay.add(
            arrival,
            RequestPurpose::Other,
            0,
            DelayedAnswer::Done(reply)
        ));
    }

    fn lseek(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let Ok(from) = u64::try_from(offset) else {
            return reply.error(Errno::EINVAL);
        };
        let from = match whence {
            SEEK_DATA => SeekFrom::Data(from),
            SEEK_HOLE => SeekFrom::Hole(from),
            _ => return reply.error(Errno::EINVAL),
        };
        answer!(reply, self.on_file(handle, |file| Ok(rustix::fs::seek(file, from)?)), |found: u64| {
            reply.offset(found.cast_signed());
        });
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        answer!(reply, self.tree.read_dir(ino), |entries| {
            reply.opened(FileHandle(self.handles.add(OpenObject::Directory(entries))), FopenFlags::empty());
        });
    }

    fn readdir(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let open = match self.handles.get(handle.0) {
            Ok(open) => open,
            Err(error) => return reply.error(error.into()),
        };
        let OpenObject::Directory(entries) = &*open else {
            return reply.error(Errno::ENOTDIR);
        };
        for (next, entry) in (1..).zip(entries).skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            if reply.add(INodeNo(entry.ino), next, entry.kind, &entry.name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.handles.remove(handle.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let stat = self.tree.node(INodeNo::ROOT).and_then(|root| Ok(rustix::fs::fstatvfs(&*root)?));
        answer!(reply, stat, |stat: rustix::fs::StatVfs| {
            let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
            reply.statfs(
                stat.f_blocks,
                stat.f_bfree,
                stat.f_bavail,
                stat.f_files,
                stat.f_ffree,
                small(stat.f_bsize),
                small(stat.f_namemax),
                small(stat.f_frsize),
            );
        });
    }
}

/// From `<linux/fs.h>`.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// Reads up to `size` bytes; fewer at the end of the file.
fn read_at(file: &File, offset: u64, size: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; size];
    let mut filled = 0;
    while filled < size {
        match file.read_at(&mut bytes[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}
