//! `warm`: loading a cold file beside `vmtouch -t` and the disk's own rate, and restoring scattered pages beside single
//! reads.
//!
//! The file is cold before each sample. After it, what was asked for must be resident, except for at most 2 % that the
//! kernel reclaimed where memory is short. The limit is fio's own figure for direct sequential reads, without its start
//! and end, so it is stricter than whole processes can reach. The host of a virtual machine may cache the disk: the
//! rates are this machine's, not a device's.

use std::ops::Range;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use pagekeeper_kernel::{Error, residency};
use serde_json::Value;

use crate::Run;
use crate::data::{GIB, make_cold, open, require_resident, resident, write_synced};
use crate::machine::read_ahead_setting;
use crate::peers::{Program, run as run_process, this_program};
use crate::report::Unit;
use crate::rounds::{Random, Samples, Subject};
use crate::scratch::Setting;

const OURS: &str = "pagekeeper warm";
const VMTOUCH: &str = "vmtouch -t";
const LIMIT: &str = "fio, direct, sequential";
const RESTORE: &str = "pagekeeper warm --from";
const PREAD: &str = "pread, one thread";
const RANDOM_LIMIT: &str = "fio, direct, random, depth 64";

/// Default read-ahead of most machines, in KiB.
const COMMON_READ_AHEAD: &str = "128";

/// Runs the benchmark.
pub(crate) fn run(run: &mut Run) -> Result<()> {
    run.note("whole processes from start to end, but for fio: its own figure");
    let vmtouch = run.peer("vmtouch");
    let fio = run.peer("fio");
    let size = if run.quick { GIB } else { 4 * GIB };
    run.scratch.require_space(size)?;
    let path = run.scratch.path().join("file");
    run.say("writing the file")?;
    write_synced(&path, size)?;

    let case = |kib: &str| format!("{} GiB cold, read-ahead {kib} KiB", size / GIB);
    let kib = run.report.machine.read_ahead_kb.map_or_else(|| "unknown".to_owned(), |kib| kib.to_string());
    run.say(&case(&kib))?;
    let samples = sequential(run, vmtouch.as_ref(), fio.as_ref(), &path, size, 40)?;
    run.report.add_case(&case(&kib), Unit::GibPerSecond, &samples);
    run.report.add_ratio("warm_vs_vmtouch", Unit::GibPerSecond, &samples, OURS, VMTOUCH);
    run.report.add_ratio("warm_vs_limit", Unit::GibPerSecond, &samples, OURS, LIMIT);
    if run.quick {
        return Ok(());
    }

    let setting = read_ahead_setting(run.scratch.path());
    match setting.as_deref().map(|path| Setting::change(path, COMMON_READ_AHEAD)) {
        _ if kib == COMMON_READ_AHEAD => {}
        Some(Ok(changed)) => {
            run.say(&case(COMMON_READ_AHEAD))?;
            let samples = sequential(run, vmtouch.as_ref(), fio.as_ref(), &path, size, 0)?;
            run.report.add_case(&case(COMMON_READ_AHEAD), Unit::GibPerSecond, &samples);
            drop(changed);
        }
        _ => run.note("left out: another read-ahead, which takes root and a single disk"),
    }
    restore(run, fio.as_ref(), &path, size)
}

fn sequential(
    run: &mut Run,
    vmtouch: Option<&Program>,
    fio: Option<&Program>,
    path: &Path,
    size: u64,
    quick_end: u64,
) -> Result<Vec<Samples>> {
    let pagekeeper = run.pagekeeper.clone();
    let load = |mut command: Command| {
        make_cold(path)?;
        let seconds = run_process(&mut command)?.seconds;
        let loaded = resident(path)?;
        require_resident(loaded, size)?;
        Ok(size as f64 / GIB as f64 / seconds)
    };
    let mut subjects = vec![Subject::new(OURS, || {
        let mut command = pagekeeper.command();
        command.args(["warm", "--json", "--pace", "off"]).arg(path);
        load(command)
    })];
    if let Some(vmtouch) = vmtouch {
        subjects.push(Subject::new(VMTOUCH, move || {
            let mut command = vmtouch.command();
            command.args(["-q", "-t"]).arg(path);
            load(command)
        }));
    }
    if let Some(fio) = fio {
        subjects.push(Subject::new(LIMIT, move || {
            make_cold(path)?;
            fio_rate(fio, path, &["--rw=read", "--bs=256k", "--iodepth=32"])
        }));
    }
    run.rounds(&mut subjects, quick_end)
}

/// Returns the GiB/s of direct reads, by fio's own account.
fn fio_rate(fio: &Program, path: &Path, how: &[&str]) -> Result<f64> {
    let mut command = fio.command();
    command
        .args([
            "--name=limit",
            "--readonly",
            "--direct=1",
            "--ioengine=libaio",
            "--invalidate=0",
            "--output-format=json",
        ])
        .args(how)
        .arg(format!("--filename={}", path.display()));
    rate_of_fio(&run_process(&mut command)?.stdout).context("fio's output is not understood")
}

fn rate_of_fio(text: &str) -> Option<f64> {
    // Warnings may precede the object.
    let json: Value = serde_json::from_str(text.get(text.find('{')?..)?).ok()?;
    Some(json["jobs"][0]["read"]["bw_bytes"].as_f64()? / GIB as f64)
}

/// The scattered extents of a restore.
const EXTENTS: u64 = 60_000;
const EXTENT_BYTES: u64 = 16 << 10;

fn restore(run: &mut Run, fio: Option<&Program>, path: &Path, size: u64) -> Result<()> {
    let extents = scattered(&mut run.random, size, EXTENTS);
    let wanted = extents.len() as u64 * EXTENT_BYTES;
    let name = format!("{} scattered extents of {} KiB", extents.len(), EXTENT_BYTES >> 10);
    run.say(&name)?;
    let list = run.scratch.path().join("extents");
    std::fs::write(&list, listed(&extents)).context("can't write the list of extents")?;
    let snapshot = run.scratch.path().join("snapshot");
    let file = open(path)?;
    let loaded = || {
        extents
            .iter()
            .try_fold(0, |sum, extent| Ok::<_, Error>(sum + residency(&file, extent.clone())?.resident))
    };
    make_cold(path)?;
    pread(path, &list)?;
    require_resident(loaded()?, wanted)?;
    run_process(run.pagekeeper.command().arg("snapshot").arg(path).arg("-o").arg(&snapshot))?;

    let pagekeeper = run.pagekeeper.clone();
    let load = |mut command: Command| {
        make_cold(path)?;
        let seconds = run_process(&mut command)?.seconds;
        require_resident(loaded()?, wanted)?;
        Ok(wanted as f64 / GIB as f64 / seconds)
    };
    let mut subjects = vec![
        Subject::new(RESTORE, || {
            let mut command = pagekeeper.command();
            command.args(["warm", "--json", "--pace", "off", "--from"]).arg(&snapshot);
            load(command)
        }),
        Subject::new(PREAD, || {
            let mut command = this_program()?;
            command.arg("pread").arg(path).arg(&list);
            load(command)
        }),
    ];
    if let Some(fio) = fio {
        // The same amount, in random order.
        let io_size = format!("--io_size={wanted}");
        let mut random = run.random.clone();
        subjects.push(Subject::new(RANDOM_LIMIT, move || {
            make_cold(path)?;
            let seed = format!("--randseed={}", random.below(1 << 31));
            fio_rate(fio, path, &["--rw=randread", "--bs=16k", "--iodepth=64", &io_size, &seed])
        }));
    }
    let samples = run.rounds(&mut subjects, 0)?;
    drop(subjects);
    run.report.add_case(&name, Unit::GibPerSecond, &samples);
    run.report.add_ratio("restore_vs_pread", Unit::GibPerSecond, &samples, RESTORE, PREAD);
    Ok(())
}

/// Returns at most `count` extents, in file order and not touching: one at a random place of each equal part of the
/// file.
fn scattered(random: &mut Random, size: u64, count: u64) -> Vec<Range<u64>> {
    let count = count.min(size / (4 * EXTENT_BYTES)).max(1);
    let part = size / count / EXTENT_BYTES * EXTENT_BYTES;
    (0..count)
        .map(|index| {
            // Not in the last place of its part, so that there is a gap to the next.
            let start = index * part + random.below(part / EXTENT_BYTES - 1) * EXTENT_BYTES;
            start..start + EXTENT_BYTES
        })
        .collect()
}

/// Returns the list that [`pread`] reads.
fn listed(extents: &[Range<u64>]) -> String {
    extents.iter().fold(String::new(), |list, extent| {
        list + &format!("{} {}\n", extent.start, extent.end - extent.start)
    })
}

/// The hidden command `pread`: reads the extents one after the other, each without read-ahead.
pub(crate) fn pread(path: &Path, list: &Path) -> Result<()> {
    use std::os::unix::fs::FileExt;
    const LONGEST: usize = 1 << 20;
    let file = open(path)?;
    pagekeeper_kernel::advise(&file, pagekeeper_kernel::Advice::Random, 0..u64::MAX, path)?;
    let text = std::fs::read_to_string(list).with_context(|| format!("can't read {}", list.display()))?;
    let mut buffer = vec![0; LONGEST];
    for line in text.lines() {
        let parsed =
            line.split_once(' ').and_then(|(at, len)| Some((at.parse().ok()?, len.parse::<usize>().ok()?)));
        let (at, len): (u64, usize) =
            parsed.filter(|&(_, len)| len <= LONGEST).with_context(|| format!("not an extent: {line}"))?;
        file.file()
            .read_exact_at(&mut buffer[..len], at)
            .with_context(|| format!("can't read {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::MIB;

    #[test]
    fn extents_are_scattered_apart_and_read_exactly() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let (path, list) = (dir.path().join("file"), dir.path().join("list"));
        let size = 8 * MIB;
        write_synced(&path, size).unwrap();
        let extents = scattered(&mut Random::new(1), size, 100);
        assert_eq!(extents.len(), 100);
        assert!(extents.windows(2).all(|pair| pair[0].end < pair[1].start));
        assert!(extents.iter().all(|extent| extent.end <= size));
        std::fs::write(&list, listed(&extents)).unwrap();
        make_cold(&path).unwrap();
        pread(&path, &list).unwrap();
        assert_eq!(resident(&path).unwrap(), 100 * EXTENT_BYTES);
        std::fs::write(&list, "x\n").unwrap();
        assert!(pread(&path, &list).is_err());
    }

    #[test]
    fn the_rate_is_read_from_what_fio_prints() {
        let text = format!("fio: a warning\n{{\"jobs\": [{{\"read\": {{\"bw_bytes\": {}}}}}]}}", 2 * GIB);
        assert_eq!(rate_of_fio(&text), Some(2.0));
        assert_eq!(rate_of_fio("nothing"), None);
    }
}
