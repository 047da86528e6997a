//! Facts about a process: its name, command line, parent, age and kind.
//!
//! Source: `proc_pid_stat(5)`, `proc_pid_io(5)`, `proc_pid_comm(5)`, `proc_pid_cmdline(5)`,
//! `proc_pid_status(5)`. A name may contain spaces, parentheses and newlines.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use pagekeeper_text::unescaped_bytes;

use super::reading::read_start;
use super::{ProcRoot, malformed, read};
use crate::{Error, Result};

/// Maximum number of bytes read from a command line. A process may declare all of its memory to be
/// its arguments (`PR_SET_MM_MAP`, prctl(2)).
const COMMAND_LINE_BYTES_MAX: u64 = 256 << 10;
/// The flag of a kernel thread (`linux/sched.h`).
const PF_KTHREAD: u32 = 0x0020_0000;

/// The fields of `/proc/PID/stat` that describe a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessStat {
    /// The name, at most 15 bytes for a user process.
    pub name: OsString,
    /// The state's letter: `R`unning, `S`leeping, `D` waiting for a disk, `Z`ombie …
    pub state: char,
    /// The parent's process ID; 0 for processes that the kernel started.
    pub parent: u32,
    /// Whether it is a kernel thread.
    pub kernel_thread: bool,
    /// The number of page faults that were served from memory, since its start.
    pub minor_faults: u64,
    /// The number of page faults that waited for storage, since its start.
    pub major_faults: u64,
    /// The number of its threads.
    pub threads: u32,
    /// Its start time, in clock ticks (1/100 s) since boot. Differs if a process ID was reused.
    pub start_time: u64,
}

/// The bytes that a process has read and written since its start (`proc_pid_io(5)`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessIo {
    /// Bytes that read(2) and similar calls returned, from files, pipes and sockets alike.
    pub by_calls: u64,
    /// Bytes that storage had to read for it, read-ahead included.
    pub from_storage: u64,
    /// Bytes that it made dirty or wrote to storage.
    pub to_storage: u64,
}

/// The users of a process: the user IDs of `/proc/PID/status`, in the reader's user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessUsers {
    /// The user who started it.
    pub real: u32,
    /// The user whose privileges it has.
    pub effective: u32,
    /// The user whose privileges it can regain.
    pub saved: u32,
    /// The user whose file permissions it has.
    pub file_system: u32,
}

impl ProcessUsers {
    /// Returns the one user that all four IDs name. A process with two users' privileges (setuid)
    /// belongs to none: the user who started it chose its directory and descriptors, but not its
    /// privileges.
    pub fn one(&self) -> Option<u32> {
        let same = [self.effective, self.saved, self.file_system].iter().all(|user| *user == self.real);
        same.then_some(self.real)
    }
}

impl ProcRoot {
    /// Returns the facts about a process, in one read.
    pub fn stat(&self, pid: u32) -> Result<ProcessStat> {
        let path = self.of(pid, "stat");
        let content = read(&path)?;
        parse_stat(&content).ok_or_else(|| malformed(&path, &content))
    }

    /// Returns the name of the process (`comm`), at most 15 bytes.
    pub fn name(&self, pid: u32) -> Result<OsString> {
        let mut name = read(&self.of(pid, "comm"))?;
        // The name itself may end in newlines: only the kernel's own is removed.
        name.pop_if(|last| *last == b'\n');
        Ok(OsString::from_vec(name))
    }

    /// Returns the arguments that the process was started with; empty for kernel threads and
    /// zombies.
    ///
    /// If a server writes a title over its arguments (`postgres: walsender …`), the title is the
    /// first element. Empty arguments at the very end look like such a title's padding and are left
    /// out. Everything beyond 256 KiB is left out, too.
    pub fn command_line(&self, pid: u32) -> Result<Vec<OsString>> {
        let content = read_start(&self.of(pid, "cmdline"), COMMAND_LINE_BYTES_MAX)?;
        let end = content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        if end == 0 {
            return Ok(Vec::new());
        }
        Ok(content[..end].split(|byte| *byte == 0).map(|arg| OsString::from_vec(arg.to_vec())).collect())
    }

    /// Returns the parent's process ID.
    pub fn parent(&self, pid: u32) -> Result<u32> {
        Ok(self.stat(pid)?.parent)
    }

    /// Returns the process's start time, in clock ticks since boot: a reused process ID has another
    /// one.
    pub fn start_time(&self, pid: u32) -> Result<u64> {
        Ok(self.stat(pid)?.start_time)
    }

    /// Returns the bytes of a process's memory that are in swap, shared memory excluded. Memory
    /// that it shares with its parent since fork(2) counts for both. `None` for kernel threads and
    /// zombies.
    pub fn swapped(&self, pid: u32) -> Result<Option<u64>> {
        let content = read(&self.of(pid, "status"))?;
        Ok(parse_line(&content, b"VmSwap:")
            .and_then(|text| text.trim().strip_suffix("kB")?.trim().parse().ok())
            .map(|kib: u64| kib << 10))
    }

    /// Returns the bytes that a process has read and written.
    pub fn io(&self, pid: u32) -> Result<ProcessIo> {
        let path = self.of(pid, "io");
        let content = read(&path)?;
        let counter = |name: &[u8]| {
            let text = parse_line(&content, name)?;
            text.trim().parse::<u64>().ok()
        };
        let (by_calls, from_storage, to_storage) =
            (counter(b"rchar:"), counter(b"read_bytes:"), counter(b"write_bytes:"));
        match (by_calls, from_storage, to_storage) {
            (Some(by_calls), Some(from_storage), Some(to_storage)) => {
                Ok(ProcessIo { by_calls, from_storage, to_storage })
            }
            _ => Err(malformed(&path, &content)),
        }
    }

    /// Returns the users of a process: those of its first thread, if threads differ.
    pub fn users(&self, pid: u32) -> Result<ProcessUsers> {
        let path = self.of(pid, "status");
        let content = read(&path)?;
        parse_users(&content).ok_or_else(|| malformed(&path, "Uid"))
    }

    /// Returns the users and groups of a process: the group of its file permissions, and the
    /// supplementary groups. Both come from one read, so that they are consistent.
    pub fn users_and_groups(&self, pid: u32) -> Result<(ProcessUsers, Vec<u32>)> {
        let path = self.of(pid, "status");
        let content = read(&path)?;
        let users = parse_users(&content).ok_or_else(|| malformed(&path, "Uid"))?;
        Ok((users, parse_groups(&content).ok_or_else(|| malformed(&path, "Groups"))?))
    }

    /// Returns the process's working directory, as its own mount namespace names it.
    pub fn working_directory(&self, pid: u32) -> Result<PathBuf> {
        let path = self.of(pid, "cwd");
        std::fs::read_link(&path).map_err(|e| Error::call("readlink", path, e))
    }
}

/// Returns the value in a line of `/proc/PID/status`.
fn parse_line<'a>(content: &'a [u8], name: &[u8]) -> Option<std::borrow::Cow<'a, str>> {
    // The kernel escapes newlines in the name, which comes first.
    let line = content.split(|byte| *byte == b'\n').find_map(|other| other.strip_prefix(name))?;
    Some(unescaped_bytes(line))
}

/// Returns the numbers in a line of `/proc/PID/status`.
fn parse_ids(content: &[u8], name: &[u8]) -> Option<Vec<u32>> {
    let line = parse_line(content, name)?;
    line.split_ascii_whitespace().map(str::parse).collect::<std::result::Result<_, _>>().ok()
}

fn parse_groups(content: &[u8]) -> Option<Vec<u32>> {
    let &[.., file_system] = &parse_ids(content, b"Gid:")?[..] else { return None };
    let supplementary = parse_ids(content, b"Groups:")?;
    Some(std::iter::once(file_system).chain(supplementary).collect())
}

fn parse_users(content: &[u8]) -> Option<ProcessUsers> {
    let ids = parse_ids(content, b"Uid:")?;
    let &[real, effective, saved, file_system] = &ids[..] else { return None };
    Some(ProcessUsers { real, effective, saved, file_system })
}

fn parse_stat(content: &[u8]) -> Option<ProcessStat> {
    // The name may contain anything, even ')', but nothing after it does.
    let open = content.iter().position(|byte| *byte == b'(')?;
    let close = content.iter().rposition(|byte| *byte == b')')?;
    let name = content.get(open + 1..close)?;
    let rest = unescaped_bytes(content.get(close + 1..)?);
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // The manual numbers fields from 1; the first one after the name is field 3.
    let field = |number: usize| fields.get(number - 3).copied();
    Some(ProcessStat {
        name: std::ffi::OsStr::from_bytes(name).to_os_string(),
        state: field(3)?.chars().next()?,
        parent: field(4)?.parse().ok()?,
        kernel_thread: field(9)?.parse::<u32>().ok()? & PF_KTHREAD != 0,
        minor_faults: field(10)?.parse().ok()?,
        major_faults: field(12)?.parse().ok()?,
        threads: field(20)?.parse().ok()?,
        start_time: field(22)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(pid: u32, files: &[(&str, &[u8])]) -> (tempfile::TempDir, ProcRoot) {
        let tree = tempfile::tempdir().unwrap();
        let dir = tree.path().join(pid.to_string());
        std::fs::create_dir(&dir).unwrap();
        for (name, content) in files {
            std::fs::write(dir.join(name), content).unwrap();
        }
        let proc = ProcRoot::at(tree.path());
        (tree, proc)
    }

    #[test]
    fn a_name_may_hold_spaces_and_parentheses() {
        let line = b"42 (a) S (1) R) S 7 42 42 0 -1 2129984 98 1 5 2 0 0 0 0 20 0 13 0 92206 3133440 388\n";
        let (_tree, proc) = tree(42, &[("stat", line), ("comm", b"a) S (1) R\n")]);
        let stat = proc.stat(42).unwrap();
        assert_eq!(stat.name, "a) S (1) R");
        assert_eq!((stat.state, stat.parent, stat.threads, stat.start_time), ('S', 7, 13, 92206));
        assert_eq!((stat.minor_faults, stat.major_faults), (98, 5));
        assert!(stat.kernel_thread);
        assert_eq!(proc.name(42).unwrap(), "a) S (1) R");
    }

    #[test]
    fn a_cut_stat_is_malformed() {
        for content in [&b""[..], b"42 (x", b"42 )x(", b"42 (x) S 7 42", b"42 (x) S seven 42 42 0 -1 0 0"] {
            let (_tree, proc) = tree(42, &[("stat", content)]);
            assert!(matches!(proc.stat(42).unwrap_err(), Error::Malformed { .. }));
        }
    }

    #[test]
    fn bytes_read_are_counted_by_source() {
        let io = b"rchar: 500\nwchar: 1\nsyscr: 2\nsyscw: 3\nread_bytes: 4096\nwrite_bytes: 8192\n";
        let (_tree, proc) = tree(42, &[("io", io)]);
        let expected = ProcessIo { by_calls: 500, from_storage: 4096, to_storage: 8192 };
        assert_eq!(proc.io(42).unwrap(), expected);
        let (_tree, proc) = tree(42, &[("io", b"rchar: 500\n")]);
        assert!(matches!(proc.io(42).unwrap_err(), Error::Malformed { .. }));
    }

    #[test]
    fn command_lines_and_rewritten_titles() {
        let (_tree, proc) = tree(1, &[("cmdline", b"mysqld\0--user=\0\0--x\xff\0")]);
        let args = proc.command_line(1).unwrap();
        assert_eq!(args.len(), 4);
        assert_eq!(args[2], "");
        assert_eq!(args[3].as_bytes(), b"--x\xff");
        let (_tree, proc) = tree(1, &[("cmdline", b"postgres: walsender repl streaming 0/3000148\0\0\0\0")]);
        assert_eq!(proc.command_line(1).unwrap(), ["postgres: walsender repl streaming 0/3000148"]);
        let (_tree, proc) = tree(1, &[("cmdline", b"")]);
        assert!(proc.command_line(1).unwrap().is_empty());
    }

    #[test]
    fn a_title_without_an_end_is_cut() {
        let (tree, proc) = tree(1, &[("cmdline", b"mysqld\0--sync-binlog=1\0")]);
        // As for a process that declares all of its memory as arguments: much of it, then a letter.
        let title = std::fs::File::options().append(true).open(tree.path().join("1/cmdline")).unwrap();
        title.set_len(1 << 40).unwrap();
        assert_eq!(proc.command_line(1).unwrap(), ["mysqld", "--sync-binlog=1"]);
        let words = vec![b'x'; 1 << 20];
        std::fs::write(tree.path().join("1/cmdline"), words).unwrap();
        assert_eq!(proc.command_line(1).unwrap()[0].len() as u64, COMMAND_LINE_BYTES_MAX);
    }

    #[test]
    fn a_process_with_rights_of_two_users_is_none_of_them() {
        let status =
            |uid: &str| format!("Name:\tUid:\\n0 0 0 0\nUmask:\t0022\nUid:\t{uid}\nGid:\t5\t5\t5\t5\n");
        let users = |uid: &str| {
            let (_tree, proc) = tree(1, &[("status", status(uid).as_bytes())]);
            proc.users(1)
        };
        assert_eq!(users("999\t999\t999\t999").unwrap().one(), Some(999));
        assert_eq!(users("1000\t0\t0\t0").unwrap().one(), None);
        assert_eq!(users("0\t0\t1000\t0").unwrap().one(), None);
        for cut in ["", "1\t2\t3", "1 2 3 x", "1 2 3 4 5"] {
            assert!(matches!(users(cut).unwrap_err(), Error::Malformed { .. }), "{cut}");
        }
        let own = ProcRoot::default().users(std::process::id()).unwrap();
        assert_eq!(own.effective, rustix::process::geteuid().as_raw());
    }

    #[test]
    fn swap_is_counted_in_bytes_and_a_name_like_its_line_is_none() {
        let status = "Name:\tVmSwap:\\n9 kB\nVmData:\t 1 kB\nVmSwap:\t   33420 kB\nHugetlbPages:\t 0 kB\n";
        let (_tree, proc) = tree(1, &[("status", status.as_bytes())]);
        assert_eq!(proc.swapped(1).unwrap(), Some(33420 << 10));
        let (_tree, proc) = tree(1, &[("status", b"Name:\tkthreadd\nThreads:\t1\n")]);
        assert_eq!(proc.swapped(1).unwrap(), None);
        assert!(proc.swapped(2).unwrap_err().is_gone());
    }

    #[test]
    fn this_process_as_it_is() {
        let proc = ProcRoot::default();
        let own = std::process::id();
        assert_eq!(proc.working_directory(own).unwrap(), std::env::current_dir().unwrap());
        assert_eq!(proc.command_line(own).unwrap(), std::env::args_os().collect::<Vec<_>>());
        let stat = proc.stat(own).unwrap();
        assert_eq!(stat.parent, std::os::unix::process::parent_id());
        assert!(!stat.kernel_thread);
        assert_eq!(proc.start_time(own).unwrap(), stat.start_time);
        assert!(stat.start_time >= proc.start_time(stat.parent).unwrap());
    }
}
