//! The files that a process maps into its memory (`proc_pid_maps(5)`): their mapped pages can't be
//! dropped from outside.
//!
//! The kernel shows a mapped file's device as that of the file system. On btrfs this differs from
//! stat(2); on overlayfs before Linux 6.7 it is that of the lower layer. So a mapping is compared
//! with a file by inode number first, then by stat through `/proc/PID/map_files` or by its path. An
//! overlay file whose two inode numbers differ (`xino=on`, before Linux 6.7) is not recognised.

use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use pagekeeper_text::unescaped_bytes;
use rustix::fs::Statx;

use super::fds::{inode_of, stat_quietly};
use super::reading::each_line;
use super::{ProcRoot, deleted, mounts};
use crate::{Inode, Result};

/// A part of a file that a process has mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessMapping {
    /// The name as the process's mount namespace shows it, without the kernel's ` (deleted)`.
    pub path: PathBuf,
    /// Whether that name no longer leads to the file.
    pub deleted: bool,
    /// Device and inode number as the kernel shows them; the device may differ from stat's (see the
    /// module).
    pub inode: Inode,
    /// The mapped bytes of the file, in whole pages; they may extend beyond the file's end.
    pub range: Range<u64>,
    /// The addresses in the process's memory.
    pub addresses: Range<u64>,
    /// Whether changes go to the file (`MAP_SHARED`) rather than to a private copy.
    pub shared: bool,
    /// Whether the process may write to it now.
    pub writable: bool,
}

/// The processes that map a file, and their mappings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MappingProcesses {
    /// The processes that map a part of it, ascending, including this one.
    pub pids: Vec<u32>,
    /// Their mappings that overlap the requested range: each process with the mapped bytes of the
    /// file, in whole pages.
    pub stretches: Vec<(u32, Range<u64>)>,
    /// The number of processes that could not be read, for lack of permission.
    pub denied: usize,
}

impl ProcRoot {
    /// Returns the parts of files that the process has mapped, by address. Empty for kernel threads
    /// and zombies.
    pub fn mappings(&self, pid: u32) -> Result<Vec<ProcessMapping>> {
        let mut mappings = Vec::new();
        self.for_each_mapping(pid, |mapping| mappings.push(mapping))?;
        Ok(mappings)
    }

    /// Passes each of [`Self::mappings`] to `each`.
    pub(super) fn for_each_mapping(&self, pid: u32, mut each: impl FnMut(ProcessMapping)) -> Result<()> {
        let root = self.root(pid);
        self.for_each_maps_line(pid, |line| {
            let text = mounts::unescape(line.text);
            let (path, deleted) = deleted::resolve_name(&text, line.inode, None, &root);
            each(ProcessMapping {
                path,
                deleted,
                inode: line.inode,
                range: line.range,
                addresses: line.addresses,
                shared: line.shared,
                writable: line.writable,
            });
        })
    }

    /// Returns the processes that map any byte of `range` of the file `inode`, and the mapped
    /// parts.
    ///
    /// It reads the maps of every process: some 50 µs each, more for those with thousands of
    /// mappings.
    pub fn mapped_by(&self, inode: Inode, range: &Range<u64>) -> Result<MappingProcesses> {
        let mut found = MappingProcesses::default();
        for pid in self.pids()? {
            let known = found.stretches.len();
            let result = self.for_each_maps_line(pid, |line| {
                if line.inode.ino == inode.ino
                    && line.range.start < range.end
                    && range.start < line.range.end
                    && self.is_mapping_of(pid, &line, inode)
                {
                    found.stretches.push((pid, line.range));
                }
            });
            if found.stretches.len() > known {
                found.pids.push(pid);
            }
            match result {
                Ok(()) => {}
                Err(error) if error.is_denied() => found.denied += 1,
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Returns the addresses at which a process maps bytes of `range` of the file `inode`: at most
    /// `at_most` mappings.
    pub(super) fn mapped_at(
        &self,
        pid: u32,
        inode: Inode,
        range: &Range<u64>,
        at_most: usize,
    ) -> Result<Vec<Range<u64>>> {
        let mut found = Vec::new();
        self.for_each_maps_line(pid, |line| {
            let start = range.start.max(line.range.start);
            let end = range.end.min(line.range.end);
            if line.inode.ino == inode.ino
                && start < end
                && found.len() < at_most
                && self.is_mapping_of(pid, &line, inode)
            {
                let address = |offset: u64| line.addresses.start + (offset - line.range.start);
                found.push(address(start)..address(end));
            }
        })?;
        Ok(found)
    }

    /// Whether a mapping with the right inode number belongs to that very file.
    fn is_mapping_of(&self, pid: u32, line: &MapsLine<'_>, inode: Inode) -> bool {
        if line.inode.dev == inode.dev {
            return true;
        }
        let magic = self.mapping_path(pid, &line.addresses);
        let by_name = || deleted::look_up(&self.root(pid), &mounts::unescape(line.text), line.inode.dev);
        let stat = stat_quietly(&magic).ok().or_else(by_name);
        stat.is_some_and(|stat| inode_of(&stat) == inode)
    }

    /// Returns the link to the very file behind a mapping. Following it requires
    /// `CAP_CHECKPOINT_RESTORE` (`CAP_SYS_ADMIN` before Linux 5.9), and also finds deleted files.
    pub fn mapping_path(&self, pid: u32, addresses: &Range<u64>) -> PathBuf {
        self.of(pid, &format!("map_files/{:x}-{:x}", addresses.start, addresses.end))
    }

    /// Returns a path that leads to the file behind a mapping, and its stat; `None` if it can't be
    /// reached.
    pub(super) fn file_behind_mapping(&self, pid: u32, mapping: &ProcessMapping) -> Option<(PathBuf, Statx)> {
        let same = |stat: &Statx| stat.stx_ino == mapping.inode.ino;
        let magic = self.mapping_path(pid, &mapping.addresses);
        if let Some(stat) = stat_quietly(&magic).ok().filter(same) {
            return Some((magic, stat));
        }
        // The kernel's paths contain no links, so this lookup can't leave the process's root.
        let name = mapping.path.as_os_str().as_bytes();
        let found = deleted::look_up(&self.root(pid), name, mapping.inode.dev).filter(same)?;
        Some((deleted::beneath(&self.root(pid), name), found))
    }

    fn for_each_maps_line(&self, pid: u32, mut each: impl FnMut(MapsLine<'_>)) -> Result<()> {
        each_line(&self.of(pid, "maps"), |line| {
            let parsed = parse_line(line)?;
            if parsed.inode.ino != 0 && !deleted::is_no_file(parsed.text) {
                each(parsed);
            }
            Some(())
        })
    }
}

/// A line of the file; `text` is the path with its escapes and marks.
struct MapsLine<'a> {
    addresses: Range<u64>,
    shared: bool,
    writable: bool,
    range: Range<u64>,
    inode: Inode,
    text: &'a [u8],
}

fn parse_line(line: &[u8]) -> Option<MapsLine<'_>> {
    // Five fields separated by single spaces, then padding, then the path, which may contain
    // spaces.
    let mut fields = line.splitn(6, |byte| *byte == b' ');
    let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let range = unescaped_bytes(fields.next()?);
    let (start, end) = range.split_once('-')?;
    let addresses = hex(start)?..hex(end)?;
    let permissions = fields.next()?;
    let offset = hex(&unescaped_bytes(fields.next()?))?;
    let dev = unescaped_bytes(fields.next()?);
    let (major, minor) = dev.split_once(':')?;
    let dev = rustix::fs::makedev(u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let ino = unescaped_bytes(fields.next()?).parse().ok()?;
    let length = addresses.end.checked_sub(addresses.start)?;
    Some(MapsLine {
        shared: *permissions.get(3)? == b's',
        writable: *permissions.get(1)? == b'w',
        range: offset..offset.checked_add(length)?,
        addresses,
        inode: Inode { dev, ino },
        text: fields.next().unwrap_or_default().trim_ascii_start(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::mapping::FileMapping;
    use crate::{InspectedFile, Links, page_size};
    use std::path::Path;

    fn mapped_file(pages: usize) -> (tempfile::NamedTempFile, InspectedFile) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![1; pages * usize::try_from(page_size()).unwrap()]).unwrap();
        let opened = InspectedFile::open(file.path(), Links::Refuse).unwrap();
        (file, opened)
    }

    #[test]
    fn own_mapping_is_found_by_range() {
        let page = page_size();
        let (file, opened) = mapped_file(8);
        let length = usize::try_from(2 * page).unwrap();
        let mapping = FileMapping::new(opened.file(), 4 * page, length).unwrap();
        let proc = ProcRoot::default();
        let own = std::process::id();
        let seen = proc.mappings(own).unwrap();
        let seen: Vec<_> = seen.iter().filter(|seen| seen.path == file.path()).collect();
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].range, 4 * page..6 * page);
        assert!(seen[0].shared && !seen[0].writable && !seen[0].deleted);
        let who = |range: Range<u64>| proc.mapped_by(opened.inode(), &range).unwrap().pids.contains(&own);
        assert!(who(0..u64::MAX));
        assert!(who(5 * page..5 * page + 1));
        assert!(!who(0..4 * page) && !who(6 * page..u64::MAX));
        let found = proc.mapped_by(opened.inode(), &(5 * page..6 * page)).unwrap();
        assert_eq!(found.stretches, [(own, 4 * page..6 * page)]);
        drop(mapping);
        assert!(!who(0..u64::MAX));
    }

    #[test]
    fn a_deleted_file_stays_mapped() {
        let (file, opened) = mapped_file(1);
        let path = file.path().to_path_buf();
        let _mapping = FileMapping::new(opened.file(), 0, usize::try_from(page_size()).unwrap()).unwrap();
        drop(file);
        let proc = ProcRoot::default();
        let own = std::process::id();
        let seen = proc.mappings(own).unwrap().into_iter().find(|seen| seen.path == path).unwrap();
        assert!(seen.deleted);
        assert!(proc.mapped_by(opened.inode(), &(0..1)).unwrap().pids.contains(&own));
    }

    fn fake(maps: &[u8]) -> (tempfile::TempDir, ProcRoot) {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tree.path().join("8/root")).unwrap();
        std::fs::write(tree.path().join("8/maps"), maps).unwrap();
        let proc = ProcRoot::at(tree.path());
        (tree, proc)
    }

    #[test]
    fn odd_lines() {
        let maps = b"7f00-8f00 rw-s 00001000 08:1f 77   /data/a b\\012c  (deleted)\n\
            9000-a000 r--p 00000000 00:00 0 \n\
            a000-b000 rw-p 00000000 00:00 0                                  [heap]\n\
            b000-c000 rw-s 00000000 00:01 2048 /dev/zero (deleted)\n\
            c000-d000 rw-s 00000000 00:01 1025 anon_inode:[io_uring]\n\
            d000-e000 -w-p 00002000 103:3 9 /x\n\
            ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n";
        let (_tree, proc) = fake(maps);
        let seen = proc.mappings(8).unwrap();
        assert_eq!(seen.len(), 2);
        assert_eq!(seen[0].path, Path::new("/data/a b\nc "));
        assert!(seen[0].deleted && seen[0].shared && seen[0].writable);
        assert_eq!(seen[0].range, 0x1000..0x2000);
        assert_eq!(seen[0].inode, Inode { dev: rustix::fs::makedev(8, 0x1f), ino: 77 });
        assert_eq!(seen[1].inode.dev, rustix::fs::makedev(0x103, 3));
        assert!(!seen[1].shared && seen[1].writable && !seen[1].deleted);
    }

    #[test]
    fn malformed_lines_are_named() {
        for line in ["x", "1-2", "2-1 r--p 0 08:01 5 /x", "1-2 r--p 0 0801 5 /x", "1-2 r- 0 08:01 5 /x"] {
            let (_tree, proc) = fake(line.as_bytes());
            let error = proc.mappings(8).unwrap_err();
            assert!(error.to_string().contains(line), "{error}");
        }
    }

    #[test]
    fn another_device_number_is_settled_by_the_path() {
        // As on btrfs: stat shows the subvolume's device, the maps show the file system's.
        let (tree, proc) = fake(b"");
        let file = tree.path().join("8/root/data");
        std::fs::write(&file, b"x").unwrap();
        let inode = Inode::of(&rustix::fs::stat(&file).unwrap());
        let write = |ino: u64| {
            let line = format!("1000-2000 r--s 00000000 00:fe {ino} /data\n");
            std::fs::write(tree.path().join("8/maps"), line).unwrap();
        };
        write(inode.ino);
        assert_eq!(proc.mapped_by(inode, &(0..u64::MAX)).unwrap().pids, [8]);
        write(inode.ino + 1);
        assert_eq!(proc.mapped_by(inode, &(0..u64::MAX)).unwrap(), MappingProcesses::default());
    }
}
