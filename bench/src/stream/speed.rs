//! The speed of streams without a rate limit: common whole programs, plain and under `run`.
//!
//! Invariants: files that are read are cold at the beginning; output is new, compared with its source where it is a
//! copy, and on disk when the time ends, because a backup that is only in memory is none.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::site::{StreamSetup, Way};
use super::{PLAIN, UNDER_RUN};
use crate::Run;
use crate::data::{GIB, MIB, make_cold};
use crate::peers::run as run_process;
use crate::report::Unit;
use crate::rounds::{Better, Plan, Subject, median, ratio, run as run_rounds};

/// Files of the tree that are read or copied: a GiB.
const FILES: usize = 4;
/// Whole programs: the name in tables, and a shell line with the new path as `$0` and the files to read after it.
const TOOLS: [(&str, &str); 4] = [
    ("tar to a pipe", "tar -cPf - \"$@\" | cat >/dev/null"),
    ("dd of files", "for file; do dd if=\"$file\" of=/dev/null bs=128K status=none || exit; done"),
    ("cp of files, and sync -d", "mkdir \"$0\" && cp \"$@\" \"$0\" && sync -d \"$0\"/*"),
    (
        "dd to a new file, conv=fsync",
        "mkdir \"$0\" && dd if=/dev/zero of=\"$0/zero\" bs=128K count=8192 conv=fsync status=none",
    ),
];

/// Runs the benchmark. In the cgroup memory is short; outside it is not.
pub(super) fn run(run: &mut Run, site: &StreamSetup<'_>) -> Result<()> {
    for (where_to, ratio_name, in_group) in [
        ("in the group, no load", "stream_speed", true),
        ("outside of the group", "stream_speed_memory_free", false),
    ] {
        let mut ratios = Vec::new();
        for (tool, line) in TOOLS {
            run.say(&format!("{tool}, {where_to}"))?;
            let new = run.scratch.path().join("new");
            let time = |way| one(site, way, in_group, line, &new);
            let mut subjects =
                [Subject::new(UNDER_RUN, || time(Way::Run)), Subject::new(PLAIN, || time(Way::Plain))];
            let plan = Plan { rounds: run.rounds, until: None, warm_up: true };
            let rates = run_rounds(&mut subjects, plan, &mut run.random, &run.stop)?;
            drop(subjects);
            ratios.extend(ratio(&rates[0].values, &rates[1].values, Better::More));
            run.report.add_case(
                &format!("{tool}, as fast as it goes, {where_to}"),
                Unit::MibPerSecond,
                &rates,
            );
        }
        if let Some(middle) = median(&ratios) {
            run.report.ratios.insert(ratio_name, middle);
        }
    }
    Ok(())
}

/// Returns the MiB/s of a GiB.
fn one(site: &StreamSetup<'_>, way: Way, in_group: bool, line: &str, new: &Path) -> Result<f64> {
    let files = &site.tree()[..FILES];
    files.iter().try_for_each(|path| make_cold(path))?;
    let mut command = if in_group { site.command(way) } else { site.free_command(way) };
    let took = run_process(command.args(["sh", "-c", line]).arg(new).args(files))?.seconds;
    judge(files, new)?;
    Ok((GIB / MIB) as f64 / took)
}

/// Checks the output, and removes it.
fn judge(files: &[PathBuf], new: &Path) -> Result<()> {
    if !new.exists() {
        return Ok(());
    }
    let mut written = 0;
    for path in super::database::files_below(new)? {
        written += path.metadata()?.len();
        let source = files.iter().find(|file| file.file_name() == path.file_name());
        run_process(
            Command::new("cmp")
                .arg("--bytes=1073741824")
                .arg(&path)
                .arg(source.map_or(Path::new("/dev/zero"), |source| source)),
        )?;
    }
    ensure!(written == GIB, "{written} bytes were written instead of a GiB");
    std::fs::remove_dir_all(new).with_context(|| format!("can't remove {}", new.display()))
}
