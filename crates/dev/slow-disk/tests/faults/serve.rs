//! The file system that the kernel sees.
//!
//! Invariants: only this disk's kernel changes the files, so it may cache names and attributes
//! without limit, and gather writes; gathered and unwritten data is lost with the power, too. Every
//! change is made under one lock, and answered after it.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, TimeOrNow, WriteFlags,
};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno as Code;

use crate::disk::{DiskState, Request, ServedState, Verdict};
use crate::file::BLOCK;
use crate::medium::{Medium, NodeKind, ROOT};

/// The time for which the kernel may cache names and attributes.
const ATTRIBUTE_LIFETIME: Duration = Duration::from_secs(1 << 30);
/// Largest request, in bytes.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Blocks that statfs(2) reports where there is no limit.
const REPORTED_BLOCKS: u64 = 1 << 20;

pub(crate) struct ServedDisk(pub(crate) Arc<ServedState>);

fn attributes(world: &DiskState, node: u64) -> Result<FileAttr, Code> {
    let (kind, size, blocks) = match world.medium.kind(node).ok_or(Code::NOENT)? {
        NodeKind::File { size, blocks } => (FileType::RegularFile, size, blocks * (BLOCK as u64 / 512)),
        NodeKind::Directory => (FileType::Directory, 0, 0),
    };
    Ok(FileAttr {
        ino: INodeNo(node),
        size,
        blocks,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    })
}

impl ServedDisk {
    /// Runs a read-only request.
    fn look<T>(&self, what: impl FnOnce(&DiskState) -> Result<T, Code>) -> Result<T, Code> {
        let world = self.0.world();
        world.check_power()?;
        what(&world)
    }

    /// Runs a change, subject to the faults. A sync is not a change and does its own work.
    fn change<T>(
        &self,
        request: Request,
        what: impl FnOnce(&mut DiskState, Verdict) -> Result<T, Code>,
    ) -> Result<T, Code> {
        let mut world = self.0.world();
        let verdict = world.judge(request)?;
        let done = match verdict {
            Verdict::Never => Err(Code::IO),
            Verdict::Fail if request == Request::Write => Err(Code::IO),
            Verdict::Good | Verdict::Lie | Verdict::Fail | Verdict::FailAndDrop | Verdict::Last => {
                what(&mut world, verdict)
            }
        };
        self.0.notify(&world);
        if world.is_off { Err(Code::IO) } else { done }
    }

    fn sync(&self, node: u64) -> Result<(), Code> {
        self.change(Request::Sync, |world, verdict| {
            match verdict {
                Verdict::Good | Verdict::Last => world.medium.sync(node),
                Verdict::Lie => world.medium.lose(node),
                Verdict::FailAndDrop => {
                    world.medium.revert(node);
                    return Err(Code::IO);
                }
                Verdict::Fail | Verdict::Never => return Err(Code::IO),
            }
            Ok(())
        })
    }

    fn name(&self, parent: INodeNo, name: &OsStr, is_directory: bool) -> Result<FileAttr, Code> {
        self.change(Request::Name, |world, _| {
            if world.medium.find(parent.0, name).is_some() {
                return Err(Code::EXIST);
            }
            let node = world.medium.make(parent.0, name, is_directory).ok_or(Code::NOTDIR)?;
            attributes(world, node)
        })
    }
}

/// Converts an open's flags to this system's bits.
fn oflags(flags: i32) -> OFlags {
    OFlags::from_bits_retain(flags.cast_unsigned())
}

fn opened(flags: i32) -> FopenFlags {
    if oflags(flags).contains(OFlags::DIRECT) {
        // Without these flags concurrent direct writers of one file would wait for each other.
        FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
    } else {
        FopenFlags::empty()
    }
}

macro_rules! answer {
    ($reply:ident, $result:expr, $good:expr) => {
        match $result {
            Ok(value) => $good(value),
            Err(code) => $reply.error(Errno::from(io::Error::from(code))),
        }
    };
}

impl Filesystem for ServedDisk {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        let _ = config.set_max_background(64);
        let _ = config.set_congestion_threshold(64);
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        config
            .add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE | InitFlags::FUSE_ASYNC_DIO)
            .map_err(|lacking| io::Error::other(format!("this kernel's FUSE has no {lacking:?}")))?;
        // Since Linux 6.6; before, only files open for direct I/O cannot be mapped.
        let _ = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        Ok(())
    }

    fn lookup(&self, _: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.look(|world| {
            let node = world.medium.find(parent.0, name).ok_or(Code::NOENT)?;
            attributes(world, node)
        });
        answer!(reply, found, |found| reply.entry(&ATTRIBUTE_LIFETIME, &found, Generation(0)));
    }

    fn getattr(&self, _: &fuser::Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        // Also without power: unmounting asks for the root.
        let found = attributes(&self.0.world(), ino.0);
        answer!(reply, found, |found| reply.attr(&ATTRIBUTE_LIFETIME, &found));
    }

    fn setattr(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let done = match size {
            None => self.look(|world| attributes(world, ino.0)),
            Some(size) => self.change(Request::Write, |world, _| {
                world.medium.resize(ino.0, size);
                attributes(world, ino.0)
            }),
        };
        answer!(reply, done, |found| reply.attr(&ATTRIBUTE_LIFETIME, &found));
    }

    fn mknod(
        &self,
        _: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        if rustix::fs::FileType::from_raw_mode(mode) != rustix::fs::FileType::RegularFile {
            return reply.error(Errno::EPERM);
        }
        answer!(reply, self.name(parent, name, false), |made| reply.entry(
            &ATTRIBUTE_LIFETIME,
            &made,
            Generation(0)
        ));
    }

    fn mkdir(&self, _: &fuser::Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        answer!(reply, self.name(parent, name, true), |made| reply.entry(
            &ATTRIBUTE_LIFETIME,
            &made,
            Generation(0)
        ));
    }

    fn link(&self, _: &fuser::Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let done = self.change(Request::Name, |world, _| {
            world.medium.link(ino.0, parent.0, name);
            attributes(world, ino.0)
        });
        answer!(reply, done, |found| reply.entry(&ATTRIBUTE_LIFETIME, &found, Generation(0)));
    }

    fn unlink(&self, _: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.change(Request::Name, |world, _| {
            world.medium.find(parent.0, name).ok_or(Code::NOENT)?;
            world.medium.remove(parent.0, name);
            Ok(())
        });
        answer!(reply, done, |()| reply.ok());
    }

    fn rmdir(&self, _: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.change(Request::Name, |world, _| {
            let node = world.medium.find(parent.0, name).ok_or(Code::NOENT)?;
            if !world.medium.names(node).is_empty() {
                return Err(Code::NOTEMPTY);
            }
            world.medium.remove(parent.0, name);
            Ok(())
        });
        answer!(reply, done, |()| reply.ok());
    }

    fn rename(
        &self,
        _: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        use rustix::fs::RenameFlags as Wanted;
        let flags = Wanted::from_bits_retain(flags.bits());
        if parent != new_parent || ![Wanted::empty(), Wanted::NOREPLACE, Wanted::EXCHANGE].contains(&flags) {
            return reply.error(Errno::EINVAL);
        }
        let done = self.change(Request::Name, |world, _| {
            if flags == Wanted::NOREPLACE && world.medium.find(parent.0, new_name).is_some() {
                return Err(Code::EXIST);
            }
            let change = if flags == Wanted::EXCHANGE { Medium::exchange } else { Medium::rename };
            if change(&mut world.medium, parent.0, name, new_name) { Ok(()) } else { Err(Code::NOENT) }
        });
        answer!(reply, done, |()| reply.ok());
    }

    fn create(
        &self,
        _: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        _: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        answer!(reply, self.name(parent, name, false), |made: FileAttr| {
            reply.created(&ATTRIBUTE_LIFETIME, &made, Generation(0), FileHandle(made.ino.0), opened(flags));
        });
    }

    fn open(&self, _: &fuser::Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let there = self.look(|world| attributes(world, ino.0));
        answer!(reply, there, |_| reply.opened(FileHandle(ino.0), opened(flags.0)));
    }

    fn read(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = self.look(|world| {
            let mut blocks = offset / BLOCK as u64..(offset + u64::from(size)).div_ceil(BLOCK as u64);
            let unreadable = &world.faults.unreadable;
            if !unreadable.is_empty() && blocks.any(|number| unreadable.contains(&(ino.0, number))) {
                return Err(Code::IO);
            }
            world.medium.read(ino.0, offset, size as usize).ok_or(Code::NOENT)
        });
        answer!(reply, read, |bytes: Vec<u8>| reply.data(&bytes));
    }

    fn write(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let done = self.change(Request::Write, |world, _| {
            world.check_room(ino.0, offset, data.len() as u64)?;
            world.medium.write(ino.0, offset, data);
            let end = offset + data.len() as u64;
            world.faults.unreadable.retain(|&(node, number)| {
                let at = number * BLOCK as u64;
                node != ino.0 || at + (BLOCK as u64) <= offset || at >= end
            });
            Ok(())
        });
        // One request has at most LARGEST bytes.
        answer!(reply, done, |()| reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)));
    }

    fn flush(&self, _: &fuser::Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &fuser::Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer!(reply, self.sync(ino.0), |()| reply.ok());
    }

    fn fsyncdir(&self, _: &fuser::Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer!(reply, self.sync(ino.0), |()| reply.ok());
    }

    fn fallocate(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        let keep = FallocateFlags::KEEP_SIZE;
        let done = if mode == FallocateFlags::empty() || mode == keep {
            self.change(Request::Write, |world, _| {
                world.check_room(ino.0, offset, length)?;
                world.medium.allocate(ino.0, offset, length, mode == keep);
                Ok(())
            })
        } else if mode == keep | FallocateFlags::PUNCH_HOLE {
            self.change(Request::Write, |world, _| {
                world.medium.punch(ino.0, offset, length);
                Ok(())
            })
        } else {
            Err(Code::OPNOTSUPP)
        };
        answer!(reply, done, |()| reply.ok());
    }

    fn opendir(&self, _: &fuser::Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let there = self.look(|world| attributes(world, ino.0));
        answer!(reply, there, |_| reply.opened(FileHandle(ino.0), FopenFlags::empty()));
    }

    fn readdir(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let names = self.look(|world| {
            let mut all = vec![(".".into(), ino.0), ("..".into(), ROOT)];
            all.extend(world.medium.names(ino.0));
            let kinds = all.into_iter().map(|(name, node)| (name, node, attributes(world, node)));
            Ok(kinds.collect::<Vec<_>>())
        });
        let names: Vec<(std::ffi::OsString, u64, Result<FileAttr, Code>)> = match names {
            Ok(names) => names,
            Err(code) => return reply.error(io::Error::from(code).into()),
        };
        for (next, (name, node, attributes)) in
            (1..).zip(names).skip(usize::try_from(offset).unwrap_or(usize::MAX))
        {
            let kind = attributes.map_or(FileType::RegularFile, |attributes| attributes.kind);
            if reply.add(INodeNo(node), next, kind, &name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &fuser::Request, _: INodeNo, reply: ReplyStatfs) {
        let world = self.0.world();
        let blocks = world.faults.room.unwrap_or(REPORTED_BLOCKS);
        let free = blocks.saturating_sub(world.medium.used_blocks());
        drop(world);
        reply.statfs(blocks, free, free, 1 << 20, 1 << 20, 4096, 255, 4096);
    }
}
