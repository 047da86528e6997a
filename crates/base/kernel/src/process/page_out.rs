//! Pages out a process's mappings of a file: advice on the file itself does not affect mapped
//! pages.

use std::ops::Range;
use std::os::fd::AsFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::ProcRoot;
use crate::sys::process_advice::page_out;
use crate::{Error, Inode, Result};

/// Maximum number of mappings of one file that a call pages out.
const ADVISED_MAPPINGS_MAX: usize = 1024;

impl ProcRoot {
    /// Pages out a process's mappings of `range` of a file: clean pages that no other
    /// process maps. Returns the length of the advised ranges in bytes, whether they were resident
    /// or not.
    ///
    /// The process may map something else at these addresses by then. That is paged out instead; no
    /// content changes. Requires `CAP_SYS_NICE` and permission to trace the process. A process that
    /// has ended is an error ([`Error::is_gone`]).
    pub fn page_out(&self, pid: u32, inode: Inode, range: &Range<u64>) -> Result<u64> {
        let failed = |call, errno: rustix::io::Errno| Error::call(call, self.of(pid, "maps"), errno);
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or_else(|| failed("pidfd_open", rustix::io::Errno::SRCH))?;
        // Opened first, so that a later process with this ID is not advised.
        let process = pidfd_open(number, PidfdFlags::empty()).map_err(|errno| failed("pidfd_open", errno))?;
        let mut advised = 0;
        let mut refused = None;
        for addresses in self.mapped_at(pid, inode, range, ADVISED_MAPPINGS_MAX)? {
            match page_out(process.as_fd(), &addresses) {
                Ok(bytes) => advised += bytes,
                // Locked in memory, or unmapped meanwhile.
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOMEM) => {}
                Err(errno) => refused = Some(errno),
            }
        }
        match refused {
            Some(errno) if advised == 0 => Err(failed("process_madvise", errno)),
            _ => Ok(advised),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residency;
    use crate::sys::mapping::FileMapping;
    use crate::testing::file_of;
    use crate::{Advice, advise, page_size};

    const MIB: u64 = 1 << 20;

    #[test]
    fn mapped_pages_go_and_those_outside_of_the_range_stay() {
        let (_dir, file) = file_of(8 << 20);
        let mapping = FileMapping::new(file.file(), 0, 8 << 20).unwrap();
        mapping.populate_read().unwrap();
        let range = 2 * MIB..4 * MIB;
        let resident = |range: Range<u64>| residency(&file, range).unwrap().resident;
        advise(&file, Advice::DontNeed, range.clone(), file.path()).unwrap();
        assert_eq!(resident(range.clone()), 2 * MIB, "they are mapped");
        let proc = ProcRoot::default();
        match proc.page_out(std::process::id(), file.inode(), &range) {
            Ok(advised) => assert_eq!(advised, 2 * MIB),
            Err(error) if error.is_denied() => return pagekeeper_testing::skip(error),
            Err(error) => panic!("{error}"),
        }
        assert!(resident(range.clone()) < MIB, "{}", resident(range));
        assert_eq!(resident(5 * MIB..8 * MIB), 3 * MIB);
        let nothing = proc.page_out(std::process::id(), file.inode(), &(8 * MIB..9 * MIB)).unwrap();
        assert_eq!(nothing, 0);
        assert!(page_size() <= MIB);
    }

    #[test]
    fn a_process_that_has_ended_is_gone() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let error = ProcRoot::default().page_out(child.id(), Inode { dev: 1, ino: 1 }, &(0..1)).unwrap_err();
        assert!(error.is_gone(), "{error}");
    }
}
