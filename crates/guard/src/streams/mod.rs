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

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub(crate) use self::context::StreamContext;
use self::file::StreamFile;
use self::names::Names;
use self::program::Program;
use crate::targets::ProcessTraits;
use crate::usage;

/// A pass over the names of all processes that takes a millisecond of CPU time is repeated after this many.
const NAMES_SHARE: u32 = 100;
/// But not later than that: whatever is read meanwhile is not seen.
const NAMES_WITHIN: Duration = Duration::from_secs(2);
/// How long a closed file is seen to while what was written to it is written out.
const WRITTEN_WITHIN: Duration = Duration::from_secs(60);
/// And while pages of it resist for another reason.
const FREE_WITHIN: Duration = Duration::from_secs(2);
/// Programs that are counted by name; those beyond are counted together.
const MAX_NAMES: usize = 64;
/// Closed files that are seen to at a time.
const MAX_CLOSING: usize = 256;

/// The streaming processes and their files.
#[derive(Debug)]
pub(crate) struct StreamWatch {
    names: Names,
    names_due: Instant,
    programs: Vec<Program>,
    closing: Vec<Closing>,
    due: Instant,
    /// Released in all, by program.
    released: BTreeMap<String, u64>,
    kept: u64,
}

/// A file that its process has closed.
#[derive(Debug)]
struct Closing {
    file: StreamFile,
    /// What its process may have brought into it since the last sample before, in bytes.
    brought: u64,
    pid: u32,
    program: String,
    traits: ProcessTraits,
    parent: u32,
    since: Instant,
}

impl StreamWatch {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            names: Names::default(),
            names_due: now,
            programs: Vec::new(),
            closing: Vec::new(),
            due: now,
            released: BTreeMap::new(),
            kept: 0,
        }
    }

    /// Reads the names of all processes again.
    pub(crate) fn forget_names(&mut self, now: Instant) {
        (self.names, self.names_due) = (Names::default(), now);
    }

    /// The time until the next pass.
    pub(crate) fn pause(&self, now: Instant) -> Duration {
        self.due.saturating_duration_since(now)
    }

    /// Released so far, in bytes, by program.
    pub(crate) fn released(&self) -> &BTreeMap<String, u64> {
        &self.released
    }

    /// What resisted at the time so far, in bytes.
    pub(crate) fn kept(&self) -> u64 {
        self.kept
    }

    /// Samples all streams once, and acts; the bytes released.
    pub(crate) fn follow(&mut self, context: &mut StreamContext<'_>) -> u64 {
        let began = Instant::now();
        if began < self.due {
            return 0;
        }
        self.find(context, began);
        let mut released = 0;
        let mut closed = Vec::new();
        for program in &mut self.programs {
            let (done, gone) = program.follow(context);
            self.kept += done.kept;
            released += count(&mut self.released, &program.name, done.released);
            closed.extend(gone.into_iter().map(|(file, brought)| Closing {
                file,
                brought,
                pid: program.pid,
                program: program.name.clone(),
                traits: program.traits.clone(),
                parent: program.parent,
                since: began,
            }));
        }
        let closing = std::mem::take(&mut self.closing).into_iter().chain(closed).take(MAX_CLOSING);
        for mut closing in closing.collect::<Vec<_>>() {
            let path = &closing.file.path;
            if !context.acts_on(&closing.traits, path) || context.leaves_alone(&closing.traits, path) {
                continue;
            }
            let done = match closing.file.close(context.proc, closing.parent, closing.brought) {
                Ok(Some(done)) => done,
                // Deleted, renamed, or not to be seen from here.
                Ok(None) => continue,
                Err(error) => {
                    context.problem(closing.file.path.clone(), &error);
                    continue;
                }
            };
            released += count(&mut self.released, &closing.program, done.released);
            if let Some(program) = self.programs.iter_mut().find(|program| program.pid == closing.pid) {
                program.released += done.released;
            }
            let patience = if done.unwritten > 0 { WRITTEN_WITHIN } else { FREE_WITHIN };
            if done.kept > 0 && closing.since.elapsed() < patience {
                self.closing.push(closing);
            } else {
                self.kept += done.kept;
            }
        }
        self.programs.retain(|program| {
            let waits = self.closing.iter().any(|closing| closing.pid == program.pid);
            let ended = program.ended && !waits;
            if ended {
                context.events.extend(program.end());
            }
            !ended
        });
        let busy = !self.programs.is_empty() || !self.closing.is_empty();
        let next = began + context.options.tick;
        self.due = if busy { next } else { next.max(self.names_due) };
        released
    }

    /// Finds streaming processes that are not known yet.
    fn find(&mut self, context: &mut StreamContext<'_>, now: Instant) {
        if now < self.names_due {
            return;
        }
        let before = usage::cpu_time();
        match self.names.read(context.proc, &context.options.processes) {
            Ok(found) => {
                for named in found {
                    if !self.programs.iter().any(|program| program.pid == named.pid && !program.ended) {
                        self.programs.extend(Program::new(context.proc, named.pid, named.name));
                    }
                }
            }
            Err(error) => context.problem(error.path().to_path_buf(), &error),
        }
        let cost = usage::cpu_time().saturating_sub(before);
        let tick = context.options.tick;
        self.names_due = now + (cost * NAMES_SHARE).clamp(tick, NAMES_WITHIN.max(tick));
    }
}

/// Adds to a program's figure; gives the bytes back.
fn count(released: &mut BTreeMap<String, u64>, name: &str, bytes: u64) -> u64 {
    if bytes > 0 {
        let name = if released.contains_key(name) || released.len() < MAX_NAMES { name } else { "other" };
        *released.entry(name.to_owned()).or_default() += bytes;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Streams;
    use crate::event::Event;
    use crate::targets::{Selector, Targets};
    use globset::Glob;
    use pagekeeper_catalog::Profile;
    use pagekeeper_kernel::process::ProcRoot;
    use pagekeeper_kernel::{InspectedFile, Links, residency};
    use pagekeeper_testing::disk_dir;
    use std::io::Read;
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::sync::Arc;

    const WINDOW: u64 = 2 << 20;

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
        let options = Streams {
            on: true,
            processes: vec![Glob::new("cat").unwrap().compile_matcher()],
            tick: Duration::from_millis(1),
        };
        let mut watch = StreamWatch::new(Instant::now());
        let (mut events, mut problems) = (Vec::new(), Vec::new());
        let mut follow = || {
            std::thread::sleep(Duration::from_millis(2));
            watch.names_due = Instant::now();
            watch.follow(&mut StreamContext {
                proc: &ProcRoot::default(),
                options: &options,
                dry_run: false,
                targets: &Targets::default(),
                databases: if in_a_database { &databases } else { &[] },
                events: &mut events,
                problems: &mut problems,
            });
        };
        let output = stream.stdout.as_mut().unwrap();
        // As `cat` it is known once it has given something.
        output.read_exact(&mut [0; 1]).unwrap();
        for _ in 0..3 {
            follow();
        }
        output.read_exact(&mut vec![0; 7 << 21]).unwrap();
        for _ in 0..3 {
            follow();
        }
        let resident =
            |window: u64| residency(&file, window * WINDOW..(window + 1) * WINDOW).unwrap().resident;
        let second = resident(1);
        assert_eq!(resident(5), 0, "a window that was empty is the stream's, whoever has the file open");
        ended(stream);
        ended(database);
        // Another test's `cat` is a stream, too, and may be gone at any moment.
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
        let options = Streams {
            on: true,
            processes: vec![Glob::new("selected-cat").unwrap().compile_matcher()],
            tick: Duration::from_millis(1),
        };
        let targets = targets(stream.id(), &path);
        let mut watch = StreamWatch::new(Instant::now());
        let (mut events, mut problems) = (Vec::new(), Vec::new());
        let mut follow = || {
            std::thread::sleep(Duration::from_millis(2));
            watch.names_due = Instant::now();
            watch.follow(&mut StreamContext {
                proc: &ProcRoot::default(),
                options: &options,
                dry_run: false,
                targets: &targets,
                databases: &[],
                events: &mut events,
                problems: &mut problems,
            });
        };
        let output = stream.stdout.as_mut().unwrap();
        output.read_exact(&mut [0; 1]).unwrap();
        for _ in 0..3 {
            follow();
        }
        output.read_exact(&mut vec![0; 7 << 21]).unwrap();
        for _ in 0..3 {
            follow();
        }
        let resident = residency(&file, 0..6 * WINDOW).unwrap().resident;
        ended(stream);
        // Files that it has closed are seen to, too.
        for _ in 0..3 {
            follow();
        }
        assert_eq!(residency(&file, 0..6 * WINDOW).unwrap().resident, resident);
        let own = |event: &&Event| matches!(event, Event::Would { path: of, .. } if *of == path);
        (resident, events.iter().filter(own).count())
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
