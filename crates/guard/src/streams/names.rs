//! Finds processes named like a known streaming program.
//!
//! A process's name changes only when it executes another program, as a rule soon after it began. So the name of each new process is
//! read in its first passes, and seldom afterwards. One pass costs a microsecond for each old process.

use std::collections::HashMap;

use globset::GlobMatcher;
use pagekeeper_kernel::Result;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::text::unescaped;

/// Passes in which a new process's name is read each time.
const YOUNG: u32 = 12;
/// The name of an old one is read every so many passes.
const AGAIN: u32 = 16;

/// What is known of the processes by their names.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// How many passes ago each process was first seen, and what it is called, if that is wanted.
    known: HashMap<u32, (u32, Option<String>)>,
}

/// A process that is called as a streaming program.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) pid: u32,
    pub(super) name: String,
}

impl Names {
    /// The processes that are called as wanted, ascending. Fails where the processes can't be listed.
    pub(super) fn read(&mut self, proc: &ProcRoot, wanted: &[GlobMatcher]) -> Result<Vec<Named>> {
        let pids = proc.pids()?;
        let own = std::process::id();
        self.known.retain(|pid, _| pids.binary_search(pid).is_ok());
        let mut found = Vec::new();
        for pid in pids {
            let (passes, streams) = self.known.entry(pid).or_insert((0, None));
            *passes = passes.saturating_add(1);
            // Not of all old ones in the same pass.
            let again = passes.wrapping_add(pid).is_multiple_of(AGAIN);
            if (*passes <= YOUNG || again) && pid != own {
                // One that has ended meanwhile is none.
                let name = proc.name(pid).ok();
                let name = name.filter(|name| wanted.iter().any(|glob| glob.is_match(name)));
                *streams = name.map(|name| unescaped(&name).into_owned());
            }
            found.extend(streams.clone().map(|name| Named { pid, name }));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Streams;
    use pagekeeper_testing::fake_process;

    #[test]
    fn a_process_is_known_by_its_name_also_when_it_becomes_another_program() {
        let tree = tempfile::tempdir().unwrap();
        let proc = ProcRoot::at(tree.path());
        let wanted = Streams::default().processes;
        let mut names = Names::default();
        fake_process(tree.path(), 7, "tar", 1, &[]);
        fake_process(tree.path(), 8, "sh", 1, &[]);
        fake_process(tree.path(), 9, "barman-cloud-ba", 1, &[]);
        fake_process(tree.path(), std::process::id(), "tar", 1, &[]);
        let read = |names: &mut Names| -> Vec<(u32, String)> {
            let found = names.read(&proc, &wanted).unwrap();
            found.into_iter().map(|named| (named.pid, named.name)).collect()
        };
        let backup = (9, "barman-cloud-ba".to_owned());
        assert_eq!(read(&mut names), [(7, "tar".to_owned()), backup.clone()]);
        fake_process(tree.path(), 7, "sh", 1, &[]);
        fake_process(tree.path(), 8, "dd", 1, &[]);
        assert_eq!(read(&mut names), [(8, "dd".to_owned()), backup.clone()]);
        // Old ones are read again now and then.
        for _ in 0..YOUNG {
            read(&mut names);
        }
        fake_process(tree.path(), 7, "cp", 1, &[]);
        let found = (0..AGAIN).any(|_| read(&mut names).contains(&(7, "cp".to_owned())));
        assert!(found);
        std::fs::remove_dir_all(tree.path().join("9")).unwrap();
        assert!(!read(&mut names).contains(&backup));
    }
}
