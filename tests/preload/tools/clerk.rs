//! A long-lived process under `pagekeeper run` that copies files on request. Between two
//! requests it has the descriptors and threads that it began with, except those of the library.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::lines::any_way;
use crate::support::eventually;
use pagekeeper_testing::Rng;

/// The library's one descriptor has a higher number.
const OWN_DESCRIPTORS_MAX: u32 = 64;
/// Writeback behind the process takes as long as the disk needs.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// A running clerk that ends with its handle.
pub(super) struct Clerk {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// Its own descriptors, and what they lead to.
    own: BTreeMap<u32, PathBuf>,
    works: u32,
}

impl Clerk {
    /// Starts the process: `start` ends with `python3 copier.py` under the tested command.
    pub(super) fn start(mut start: Command) -> Self {
        let mut child = start.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start a clerk");
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let (stdout, own) = (BufReader::new(stdout), BTreeMap::new());
        let mut clerk = Self { child, stdin, stdout, own, works: 0 };
        clerk.wait_for_word("ready");
        clerk.own = clerk.descriptors();
        clerk
    }

    fn wait_for_word(&mut self, word: &str) {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("listen to a clerk");
        assert_eq!(line.trim_end(), word, "a clerk, which has done {} works", self.works);
    }

    /// Has it copy a file of `source` in a random way. Checks that the copy is equal and neither
    /// file is open afterwards.
    pub(super) fn work(&mut self, rng: &mut Rng, source: &Path, place: &Path) {
        let (how, block, file) = any_way(rng);
        let (source, target) = (source.join(file), place.join("clerk's"));
        writeln!(self.stdin, "{how} {block} {} {}", source.display(), target.display()).expect("ask a clerk");
        self.wait_for_word("done");
        self.works += 1;
        let same = std::fs::read(&source).expect("read") == std::fs::read(&target).expect("read");
        assert!(same, "{how} {block}: a copy of {} is not the same", source.display());
        std::fs::remove_file(&target).expect("remove a copy");
        let what = format!("descriptors of a clerk after {} works, the last {how} {block}", self.works);
        eventually(&what, WAIT_TIMEOUT, || {
            let now = self.descriptors();
            let is_of_work = |path: &PathBuf| path.starts_with(place) || *path == source;
            let is_own = now.range(..OWN_DESCRIPTORS_MAX).eq(self.own.range(..OWN_DESCRIPTORS_MAX));
            // Some are inherited from whoever runs the tests.
            let more = now
                .range(OWN_DESCRIPTORS_MAX..)
                .filter(|(number, path)| self.own.get(number) != Some(path))
                .count();
            let fits = is_own && more <= 1 && !now.values().any(is_of_work);
            if !fits {
                eprintln!("{what}: {now:?}");
            }
            (fits && self.threads() <= 2).then_some(())
        });
    }

    fn descriptors(&self) -> BTreeMap<u32, PathBuf> {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("a clerk runs");
        let of = |entry: std::io::Result<std::fs::DirEntry>| {
            let path = entry.ok()?.path();
            Some((path.file_name()?.to_str()?.parse().ok()?, std::fs::read_link(&path).ok()?))
        };
        entries.filter_map(of).collect()
    }

    fn threads(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("a clerk runs").count()
    }

    /// Has it end by itself.
    pub(super) fn end(mut self) {
        drop(self.stdin);
        let status = self.child.wait().expect("wait for a clerk");
        assert!(status.success(), "a clerk ends with {status}");
    }
}
