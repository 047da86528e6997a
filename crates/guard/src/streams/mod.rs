//! Streaming processes, followed from outside: what they bring into the page cache is released behind them.
//!
//! For programs that can't be started by `pagekeeper run`. At each tick the large files of each such process are sampled ahead of
//! where it reads or writes, and what was not resident then is released once the process is past it. The rule is
//! `pagekeeper_policy::external_stream`. A file that is opened, read and closed between two ticks is not seen.
//!
//! Invariants: nothing that was resident before a stream came near is released; no file is held open between ticks; with no stream
//! running, the names of processes are all that is read. What fails for one file or process keeps no other from being followed.

mod context;
mod file;
mod names;
mod program;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use pagekeeper_catalog::Party;
use pagekeeper_kernel::Result;
use pagekeeper_kernel::process::{ProcRoot, thread_cpu_time};

use self::context::StreamContext;
pub(crate) use self::context::{StreamPlace, StreamSetting};
use self::file::StreamFile;
use self::names::{Named, Names};
use self::program::Program;
use crate::config::Streams;
use crate::event::Event;

/// A pass over the names of all processes that takes a millisecond of CPU time is repeated after this many.
const NAMES_SHARE: u32 = 100;
/// But not later than that: whatever is read meanwhile is not seen.
const NAMES_WITHIN: Duration = Duration::from_secs(2);
/// Processes that are called as a streaming program and examined in one pass; the next ones in the next pass.
const NEW_AT_ONCE: usize = 64;
/// How long a closed file is seen to while what was written to it is written out.
const WRITTEN_WITHIN: Duration = Duration::from_secs(60);
/// And while pages of it resist for another reason.
const FREE_WITHIN: Duration = Duration::from_secs(2);
/// Closed files of one process that are seen to at a time.
const MAX_CLOSING: usize = 64;

/// Finds streaming processes by their names, in `/proc` alone.
#[derive(Debug)]
pub(crate) struct Finder {
    names: Names,
    due: Instant,
    /// Up to which process those that are not known were examined.
    examined: u32,
}

impl Finder {
    pub(crate) fn new(now: Instant) -> Self {
        Self { names: Names::default(), due: now, examined: 0 }
    }

    /// When names are read again.
    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    /// Those that are not known yet, if it is time for that. Fails where the processes can't be listed.
    pub(crate) fn find(
        &mut self,
        proc: &ProcRoot,
        options: &Streams,
        is_known: impl Fn(u32) -> bool,
        now: Instant,
    ) -> Result<Vec<Stream>> {
        if now < self.due {
            return Ok(Vec::new());
        }
        let before = thread_cpu_time();
        let named = self.names.read(proc, &options.processes);
        let found = named.map(|named| {
            let mut new: Vec<Named> = named.into_iter().filter(|named| !is_known(named.pid)).collect();
            // Who is not followed, since too many of its user are, keeps nobody else from being examined.
            let from = new.partition_point(|named| named.pid <= self.examined);
            new.rotate_left(from);
            new.truncate(NEW_AT_ONCE);
            self.examined = new.last().map_or(0, |named| named.pid);
            new.into_iter().filter_map(|named| Stream::new(proc, named.pid, named.name)).collect()
        });
        let cost = thread_cpu_time().saturating_sub(before);
        self.due = now + (cost * NAMES_SHARE).clamp(options.tick, NAMES_WITHIN.max(options.tick));
        found
    }
}

/// A streaming process, its files, and those that it has closed.
#[derive(Debug)]
pub(crate) struct Stream {
    program: Program,
    party: Party,
    closing: Vec<Closing>,
}

/// A file that its process has closed.
#[derive(Debug)]
struct Closing {
    file: StreamFile,
    /// What its process may have brought into it since the last sample before, in bytes.
    brought: u64,
    since: Instant,
}

/// What came of a pass over one stream.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    /// Bytes.
    pub(crate) released: u64,
    /// What resisted, in bytes.
    pub(crate) kept: u64,
    pub(crate) events: Vec<Event>,
    pub(crate) problems: Vec<(PathBuf, String)>,
    /// Whether nothing is left to be followed.
    pub(crate) ended: bool,
    /// Processor time that it took.
    pub(crate) cpu: Duration,
}

impl Stream {
    /// The process, unless it has ended already.
    fn new(proc: &ProcRoot, pid: u32, name: String) -> Option<Self> {
        let program = Program::new(proc, pid, name)?;
        Some(Self { program, party: Party::of(proc, pid), closing: Vec::new() })
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.program.pid
    }

    /// What its process is called.
    pub(crate) fn name(&self) -> &str {
        &self.program.name
    }

    /// Whose it was when it was found.
    pub(crate) fn party(&self) -> Party {
        self.party
    }

    /// Whether its process was there at the last pass.
    pub(crate) fn runs(&self) -> bool {
        !self.program.ended
    }

    /// Whether a file that it was last seen to have is on a device.
    pub(crate) fn is_on(&self, dev: u64) -> bool {
        let closed = self.closing.iter().map(|closing| &closing.file);
        self.program.files.iter().chain(closed).any(|file| file.inode.dev == dev)
    }

    /// Samples its files once, and acts.
    pub(crate) fn follow(&mut self, setting: &StreamSetting, place: &StreamPlace) -> Pass {
        let (began, before) = (Instant::now(), thread_cpu_time());
        let mut context = StreamContext::new(setting, place);
        let (done, gone) = self.program.follow(&mut context);
        let mut pass = Pass { released: done.released, kept: done.kept, ..Pass::default() };
        let gone = gone.into_iter().map(|(file, brought)| Closing { file, brought, since: began });
        let closing = std::mem::take(&mut self.closing).into_iter().chain(gone).take(MAX_CLOSING);
        for mut closing in closing.collect::<Vec<_>>() {
            let (path, traits) = (&closing.file.path, &self.program.traits);
            if !context.acts_on(traits, path) || context.leaves_alone(traits, path) {
                continue;
            }
            // By its path, which may lead elsewhere by now.
            place.at(path, None);
            let done = match closing.file.close(&setting.proc, self.program.parent, closing.brought) {
                Ok(Some(done)) => done,
                // Deleted, renamed, or not to be seen from here.
                Ok(None) => continue,
                Err(error) => {
                    context.problem(closing.file.path.clone(), &error);
                    continue;
                }
            };
            pass.released += done.released;
            self.program.released += done.released;
            let patience = if done.unwritten > 0 { WRITTEN_WITHIN } else { FREE_WITHIN };
            if done.kept > 0 && closing.since.elapsed() < patience {
                self.closing.push(closing);
            } else {
                pass.kept += done.kept;
            }
        }
        pass.ended = self.program.ended && self.closing.is_empty();
        if pass.ended {
            context.events.extend(self.program.end());
        }
        (pass.events, pass.problems) = (context.events, context.problems);
        pass.cpu = thread_cpu_time().saturating_sub(before);
        pass
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::{Selector, Targets};
    use globset::Glob;
    use pagekeeper_catalog::Profile;
    use pagekeeper_kernel::{InspectedFile, Links, residency};
    use pagekeeper_testing::disk_dir;
    use std::io::Read;
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::sync::Arc;

    const WINDOW: u64 = 2 << 20;

    /// The streams of a test's own program, and what they reported.
    struct Followed {
        options: Streams,
        setting: StreamSetting,
        finder: Finder,
        streams: Vec<Stream>,
        events: Vec<Event>,
        problems: Vec<(PathBuf, String)>,
    }

    impl Followed {
        fn new(program: &str, targets: Targets, databases: Vec<(u32, Arc<Profile>)>) -> Self {
            let options = Streams {
                on: true,
                processes: vec![Glob::new(program).unwrap().compile_matcher()],
                tick: Duration::from_millis(1),
            };
            let (proc, tick, dry_run) = (ProcRoot::default(), options.tick, false);
            let setting = StreamSetting { proc, tick, dry_run, targets, databases };
            let (finder, streams) = (Finder::new(Instant::now()), Vec::new());
            Self { options, setting, finder, streams, events: Vec::new(), problems: Vec::new() }
        }

        fn follow(&mut self) {
            std::thread::sleep(Duration::from_millis(2));
            let now = Instant::now();
            self.finder.due = now;
            let is_known = |pid| self.streams.iter().any(|stream| stream.pid() == pid && stream.runs());
            let found = self.finder.find(&self.setting.proc, &self.options, is_known, now).unwrap();
            self.streams.extend(found);
            for stream in &mut self.streams {
                let pass = stream.follow(&self.setting, &StreamPlace::default());
                self.events.extend(pass.events);
                self.problems.extend(pass.problems);
            }
        }
    }

    fn ended(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// What is resident of the second window, of which one page was, after `cat` has read seven windows of a file.
    fn resident_of_a_window_with_a_hot_page(in_a_database: bool) -> u64 {
        let dir = disk_dir();
        let path = dir.path().canonicalize().unwrap().join("table");
        std::fs::write(&path, vec![1; 8 << 21]).unwrap();
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
        let file = InspectedFile::open(&path, Links::Refuse).unwrap();
        for advice in [rustix::fs::Advice::DontNeed, rustix::fs::Advice::Random] {
            rustix::fs::fadvise(&file, 0, None, advice).unwrap();
        }
        file.file().read_exact_at(&mut [0; 1], WINDOW).unwrap();
        // By another name, as in a container.
        let name = path.with_extension("elsewhere");
        std::fs::hard_link(&path, &name).unwrap();
        let database =
            Command::new("sleep").arg("1000").stdin(std::fs::File::open(&name).unwrap()).spawn().unwrap();
        let databases = [(database.id(), Arc::new(Profile::built_in().remove(0)))];
        let mut stream = Command::new("cat").arg(&path).stdout(Stdio::piped()).spawn().unwrap();
        let databases = if in_a_database { databases.to_vec() } else { Vec::new() };
        let mut followed = Followed::new("cat", Targets::default(), databases);
        let output = stream.stdout.as_mut().unwrap();
        // As `cat` it is known once it has given something.
        output.read_exact(&mut [0; 1]).unwrap();
        for _ in 0..3 {
            followed.follow();
        }
        output.read_exact(&mut vec![0; 7 << 21]).unwrap();
        for _ in 0..3 {
            followed.follow();
        }
        let resident =
            |window: u64| residency(&file, window * WINDOW..(window + 1) * WINDOW).unwrap().resident;
        let second = resident(1);
        assert_eq!(resident(5), 0, "a window that was empty is the stream's, whoever has the file open");
        ended(stream);
        ended(database);
        // Another test's `cat` is a stream, too, and may be gone at any moment.
        let mut problems = followed.problems;
        problems.retain(|(path, _)| path.starts_with(dir.path().canonicalize().unwrap()));
        assert_eq!(problems, []);
        second
    }

    /// What is resident of a file that `cat` has read, but for its end, and what would have been done.
    fn after_cat(targets: impl Fn(u32, &Path) -> Targets) -> (u64, usize) {
        let dir = disk_dir();
        let path = dir.path().canonicalize().unwrap().join("dump");
        std::fs::write(&path, vec![1; 8 << 21]).unwrap();
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
        let file = InspectedFile::open(&path, Links::Refuse).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        // By a name of its own: the other test follows all that are called so, and so would this.
        let program = dir.path().join("selected-cat");
        std::os::unix::fs::symlink("/bin/cat", &program).unwrap();
        let mut stream = Command::new(&program).arg(&path).stdout(Stdio::piped()).spawn().unwrap();
        let mut followed = Followed::new("selected-cat", targets(stream.id(), &path), Vec::new());
        let output = stream.stdout.as_mut().unwrap();
        output.read_exact(&mut [0; 1]).unwrap();
        for _ in 0..3 {
            followed.follow();
        }
        output.read_exact(&mut vec![0; 7 << 21]).unwrap();
        for _ in 0..3 {
            followed.follow();
        }
        let resident = residency(&file, 0..6 * WINDOW).unwrap().resident;
        ended(stream);
        // Files that it has closed are seen to, too.
        for _ in 0..3 {
            followed.follow();
        }
        assert_eq!(residency(&file, 0..6 * WINDOW).unwrap().resident, resident);
        let own = |event: &&Event| matches!(event, Event::Would { path: of, .. } if *of == path);
        (resident, followed.events.iter().filter(own).count())
    }

    #[test]
    fn a_stream_is_left_alone_that_the_configuration_leaves_out() {
        let select = |text: String| -> Selector { text.parse().unwrap() };
        assert_eq!(after_cat(|_, _| Targets::default()), (0, 0));
        let canary = |text: String| Targets { canary: Some(select(text)), ..Targets::default() };
        assert_eq!(after_cat(|pid, _| canary(format!("pid:{pid}"))), (0, 0));
        let (resident, would) = after_cat(|pid, _| canary(format!("pid:{}", pid + 1)));
        assert!(resident == 6 * WINDOW && would > 0, "{resident} {would}");
        let never = |text: String| Targets { never: vec![select(text)], ..Targets::default() };
        assert_eq!(after_cat(|pid, _| never(format!("pid:{pid}"))), (6 * WINDOW, 0));
        let of_directory = |path: &Path| never(format!("dir:{}", path.parent().unwrap().display()));
        assert_eq!(after_cat(|_, path| of_directory(path)), (6 * WINDOW, 0));
        // A list of databases says nothing of programs that are none.
        let only = |pid| Targets { only: vec![select(format!("pid:{}", pid + 1))], ..Targets::default() };
        assert_eq!(after_cat(|pid, _| only(pid)), (0, 0));
    }

    #[test]
    fn pages_around_a_hot_one_go_unless_a_database_has_the_file_open() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: pages_around_a_hot_one_go_unless_a_database_has_the_file_open needs root");
            return;
        }
        assert_eq!(resident_of_a_window_with_a_hot_page(true), WINDOW);
        assert!(resident_of_a_window_with_a_hot_page(false) < WINDOW);
    }
}
