//! Reads known descriptors again, from `/proc/PID/fdinfo`: by shares, and of many descriptors those
//! first that moved.

use std::os::fd::RawFd;

use pagekeeper_kernel::process::ProcRoot;

use crate::descriptor::{Descriptor, FEW_DESCRIPTORS_MAX};

/// For a process with more than [`FEW_DESCRIPTORS_MAX`] descriptors, the most idle ones that are
/// read in one tick.
const IDLE_POLLED_PER_TICK: usize = 16;

/// The result of reading positions again.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PollResult {
    /// The numbers of descriptors that are closed or became other files; they are forgotten.
    pub(super) lost: Vec<RawFd>,
    /// Whether all were read.
    pub(super) all: bool,
}

/// Reads up to `share` positions again. If there are many, those that moved when they were last
/// read come first, and the others take turns.
pub(super) fn poll(
    known: &mut Vec<Descriptor>,
    turn: &mut usize,
    proc: &ProcRoot,
    share: usize,
) -> PollResult {
    let count = known.len();
    let in_turn = if count > FEW_DESCRIPTORS_MAX { share.min(IDLE_POLLED_PER_TICK) } else { share };
    // Some descriptors may have been forgotten since.
    let first = if *turn < count { *turn } else { 0 };
    *turn = if count > in_turn { (first + in_turn) % count } else { 0 };
    let (mut at, mut lively) = (0, share.saturating_sub(in_turn));
    let mut polled = PollResult { lost: Vec::new(), all: true };
    known.retain_mut(|descriptor| {
        let is_in_turn = (at + count - first) % count < in_turn;
        let is_due = is_in_turn || (descriptor.lively && lively > 0);
        lively -= usize::from(is_due && !is_in_turn);
        at += 1;
        descriptor.moved = false;
        if !is_due {
            polled.all = false;
            return true;
        }
        let same = proc.fd_info(descriptor.pid, descriptor.fd).ok().filter(|info| match info.inode_number {
            Some(number) => descriptor.shown_inode == Some(number),
            // Before Linux 5.14 fdinfo has no inode.
            None => proc.inode_behind(descriptor.pid, descriptor.fd) == Some(descriptor.inode),
        });
        if same.is_none() {
            polled.lost.push(descriptor.fd);
        }
        if let Some(info) = &same {
            descriptor.moved = descriptor.position != info.position;
            descriptor.lively = descriptor.moved;
            descriptor.position = info.position;
            descriptor.access = info.access();
        }
        same.is_some()
    });
    polled
}

#[cfg(test)]
mod tests {
    use pagekeeper_kernel::Inode;
    use pagekeeper_kernel::process::AccessMode;
    use pagekeeper_policy::FileId;

    use super::*;
    use crate::descriptor::POLLED_PER_TICK;
    use crate::directory::DirectoryId;

    #[test]
    fn moving_descriptors_are_read_at_each_tick_among_many() {
        let tree = tempfile::tempdir().unwrap();
        let infos = tree.path().join("7/fdinfo");
        std::fs::create_dir_all(&infos).unwrap();
        let put = |fd: RawFd, position: u64| {
            let text = format!("pos:\t{position}\nflags:\t01\nmnt_id:\t9\nino:\t{fd}\n");
            std::fs::write(infos.join(fd.to_string()), text).unwrap();
        };
        let of = |fd: RawFd| Descriptor {
            pid: 7,
            fd,
            file: FileId(1),
            directory: DirectoryId::default(),
            shown_inode: u64::try_from(fd).ok(),
            inode: Inode { dev: 1, ino: 1 },
            access: AccessMode::WriteOnly,
            position: 0,
            moved: false,
            lively: false,
        };
        let count = 300;
        (0..count).for_each(|fd| put(fd, 0));
        let mut known: Vec<Descriptor> = (0..count).map(of).collect();
        let (proc, mut turn) = (ProcRoot::at(tree.path()), 0);
        let mut seen_at = Vec::new();
        for tick in 0..60 {
            // One descriptor moves all the time, and is at first met in its turn.
            put(299, tick + 1);
            // The others are idle; one of them moves once.
            if tick == 20 {
                put(10, 1);
            }
            assert_eq!(
                poll(&mut known, &mut turn, &proc, POLLED_PER_TICK),
                PollResult::default(),
                "they are too many for one tick"
            );
            seen_at.push((known[299].position, known[10].position));
        }
        let first = seen_at.iter().position(|(position, _)| *position > 0).unwrap();
        assert!(first < 20, "{first}");
        assert!(
            seen_at.iter().enumerate().skip(first).all(|(tick, (position, _))| *position == tick as u64 + 1)
        );
        let woken = seen_at.iter().position(|(_, position)| *position > 0).unwrap();
        assert!((20..40).contains(&woken), "{woken}");
        // A descriptor that is another file by now is forgotten when its turn comes.
        std::fs::write(infos.join("5"), "pos:\t0\nflags:\t01\nmnt_id:\t9\nino:\t77\n").unwrap();
        let lost: Vec<RawFd> =
            (0..20).flat_map(|_| poll(&mut known, &mut turn, &proc, POLLED_PER_TICK).lost).collect();
        assert_eq!((lost, known.len()), (vec![5], 299));
        known.truncate(FEW_DESCRIPTORS_MAX);
        assert!(poll(&mut known, &mut turn, &proc, POLLED_PER_TICK).all);
    }
}
