//! Reports a directory with the profile `generic` of which nothing was released for minutes, once.
//! The patterns of that profile fit many names, and a log that they do not fit is otherwise left
//! alone silently. The time counts from when the guard acts on the directory.

use std::time::{Duration, Instant};

use pagekeeper_text::ByteSize;

use super::report::Report;
use super::watched::WatchList;

/// Time without a release after which a directory is reported.
const UNRELEASED_REPORT_AFTER: Duration = Duration::from_secs(180);
/// The profile that is checked.
const GENERIC_PROFILE: &str = "generic";

impl WatchList {
    /// Reports the directories of which nothing was released.
    pub(super) fn report_unreleased(&mut self, report: &mut Report, now: Instant) {
        for directory in
            self.directories.iter_mut().filter(|directory| directory.profile.name == GENERIC_PROFILE)
        {
            if !directory.acts {
                directory.unreleased_since = directory.unreleased_since.map(|_| now);
                continue;
            }
            let since = directory.unreleased_since;
            if since.is_none_or(|since| now.saturating_duration_since(since) < UNRELEASED_REPORT_AFTER) {
                continue;
            }
            directory.unreleased_since = None;
            let (files, resident) = (directory.entries.len(), directory.sums().resident);
            let warning = format!(
                "nothing of it was released in {} minutes: the patterns of the profile \"{GENERIC_PROFILE}\" name {files} log files in it, of \
                 which {} are resident; `pagekeeper guard --print-profile {GENERIC_PROFILE}` shows the patterns",
                UNRELEASED_REPORT_AFTER.as_secs() / 60,
                ByteSize(resident)
            );
            let path = directory.path.clone();
            report.warning(&mut directory.warned, path, warning);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Options;
    use crate::event::Event;
    use crate::guard::Guard;
    use pagekeeper_kernel::process::ProcRoot;

    /// Returns the paths for which the guard reports at this time that nothing was released.
    fn reported_paths(guard: &mut Guard, now: Instant) -> Vec<std::path::PathBuf> {
        let Guard { watched, report, .. } = guard;
        watched.report_unreleased(report, now);
        let mut said = Vec::new();
        report.pass_on(&mut |event| {
            if let Event::Warning { path, warning } = event
                && warning.contains("nothing of it was released")
            {
                said.push(path.clone());
            }
        });
        said
    }

    #[test]
    fn a_directory_that_is_only_reported_on_is_not_named() {
        let dir = pagekeeper_testing::disk_dir();
        std::fs::write(dir.path().join("000003.log"), vec![1; 9000]).unwrap();
        let options = Options {
            find: false,
            directories: vec![dir.path().to_path_buf()],
            profile: Some(GENERIC_PROFILE.to_owned()),
            ..Options::default()
        };
        let mut guard = Guard::new(options, ProcRoot::default()).unwrap();
        guard.tick(&mut |_| ());
        let acts = |guard: &mut Guard, acts| guard.watched.directories[0].acts = acts;
        acts(&mut guard, false);
        let later = Instant::now() + UNRELEASED_REPORT_AFTER;
        assert_eq!(reported_paths(&mut guard, later), [] as [std::path::PathBuf; 0]);
        acts(&mut guard, true);
        assert_eq!(reported_paths(&mut guard, later), [] as [std::path::PathBuf; 0], "it acts since now");
        assert_eq!(
            reported_paths(&mut guard, later + UNRELEASED_REPORT_AFTER),
            [dir.path().canonicalize().unwrap()]
        );
    }

    #[test]
    fn a_generic_directory_without_a_release_is_named_once() {
        let dirs = [(); 2].map(|()| pagekeeper_testing::disk_dir());
        // One of LevelDB's, of a few KiB; and one with a log that can go.
        std::fs::write(dirs[0].path().join("000003.log"), vec![1; 9000]).unwrap();
        for number in 1..=2 {
            std::fs::write(dirs[1].path().join(format!("{number:06}.log")), vec![1; 4 << 20]).unwrap();
        }
        for name in ["000001.log", "000002.log"] {
            std::fs::File::open(dirs[1].path().join(name)).unwrap().sync_all().unwrap();
        }
        let options = Options {
            find: false,
            directories: dirs.iter().map(|dir| dir.path().to_path_buf()).collect(),
            profile: Some(GENERIC_PROFILE.to_owned()),
            ..Options::default()
        };
        let mut guard = Guard::new(options, ProcRoot::default()).unwrap();
        let later = Instant::now() + UNRELEASED_REPORT_AFTER;
        let mut said = Vec::new();
        let mut note = |event: &Event| {
            if let Event::Warning { path, warning } = event
                && warning.contains("nothing of it was released")
            {
                said.push(path.clone());
            }
        };
        (0..8).for_each(|_| guard.tick(&mut note));
        for _ in 0..2 {
            let Guard { watched, report, .. } = &mut guard;
            watched.report_unreleased(report, later);
            report.pass_on(&mut note);
        }
        assert_eq!(said, [dirs[0].path().canonicalize().unwrap()]);
    }
}
