//! fio with the same pattern of writes, as the limit of the disk. It keeps no log: it has no frames
//! and no checksums.
//!
//! The figures are fio's own, without its start and end. Fails where fio fails or prints something
//! unexpected.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::data::MIB;
use crate::peers::{InstalledProgram, run as run_process};

/// Its name in tables.
pub(super) const FIO_VOLUME_NAME: &str = "fio, buffered, the same pattern";
/// Its name in tables.
pub(super) const FIO_COMMITS_NAME: &str = "fio, 4 KiB and fdatasync, one thread";

/// Returns the MiB per second of writes of 64 KiB to a new file, synced each MiB.
pub(super) fn volume(fio: &InstalledProgram, dir: &Path, bytes: u64) -> Result<f64> {
    let json = write(fio, dir, &["--bs=64k", "--fdatasync=16", &format!("--size={bytes}"), "--end_fsync=0"])?;
    let kib = json["write"]["bw_bytes"].as_f64().context("fio reported no rate")?;
    Ok(kib / MIB as f64)
}

/// Returns durable writes per second over a file that was written before.
pub(crate) fn commits(fio: &InstalledProgram, dir: &Path, duration: Duration) -> Result<f64> {
    let size = format!("--size={}", 64 * MIB);
    let runtime = format!("--runtime={}ms", duration.as_millis());
    write(fio, dir, &["--bs=1m", &size, "--end_fsync=1"])?;
    let json =
        write(fio, dir, &["--bs=4k", "--fdatasync=1", "--overwrite=1", "--time_based", &size, &runtime])?;
    json["write"]["iops"].as_f64().context("fio reported no rate")
}

fn write(fio: &InstalledProgram, dir: &Path, arguments: &[&str]) -> Result<Value> {
    let mut command = fio.command();
    command
        .args(["--name=limit", "--rw=write", "--ioengine=psync", "--thread", "--eta=never"])
        .args(["--output-format=json", "--fallocate=none", "--invalidate=0"])
        .args(arguments)
        .arg(format!("--filename={}", dir.join("fio").display()));
    let text = run_process(&mut command)?.stdout;
    let start = text.find('{').context("fio printed no object")?;
    let json: Value = serde_json::from_str(&text[start..]).context("fio's output is not understood")?;
    let job = json["jobs"][0].clone();
    ensure!(job["write"]["io_bytes"].as_f64().is_some_and(|bytes| bytes > 0.0), "fio wrote nothing");
    Ok(job)
}
