//! fio's random reads, by its own account and without its start and end.
//!
//! It reads the same file in blocks of 4 KiB at uniformly random offsets, and checks nothing it has read. Fails where
//! fio fails or prints something unexpected.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Cost;
use crate::peers::{Program, run as run_process};

/// fio's way of reading.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    /// Its name in tables.
    pub(super) name: &'static str,
    arguments: &'static [&'static str],
}

/// One read at a time.
pub(super) const DEPTH_1: How =
    How { name: "fio, io_uring, depth 1", arguments: &["--ioengine=io_uring", "--iodepth=1"] };

/// A new read for each that ends.
pub(super) const DEPTH_32: How =
    How { name: "fio, io_uring, depth 32", arguments: &["--ioengine=io_uring", "--iodepth=32"] };

/// As [`DEPTH_32`], with registered buffers and files.
pub(super) const DEPTH_32_FIXED: How = How {
    name: "fio, io_uring, depth 32, fixed",
    arguments: &["--ioengine=io_uring", "--iodepth=32", "--fixedbufs", "--registerfiles"],
};

/// The next 32 start when all 32 have ended.
pub(super) const BATCHES_OF_32: How = How {
    name: "fio, io_uring, batches of 32",
    arguments: &[
        "--ioengine=io_uring",
        "--iodepth=32",
        "--iodepth_batch=32",
        "--iodepth_batch_complete_min=32",
        "--iodepth_batch_complete_max=32",
    ],
};

/// One pread at a time in each of 32 threads.
pub(super) const THREADS_32: How =
    How { name: "fio, psync, 32 threads", arguments: &["--ioengine=psync", "--numjobs=32"] };

/// Reads for `duration`.
pub(super) fn random_reads(
    fio: &Program,
    path: &Path,
    how: How,
    duration: Duration,
    seed: u64,
) -> Result<Cost> {
    let mut command = fio.command();
    command
        .args(["--name=limit", "--readonly", "--direct=1", "--rw=randread", "--bs=4k", "--invalidate=0"])
        .args(["--norandommap", "--random_generator=tausworthe64", "--time_based", "--thread"])
        .args(["--group_reporting", "--eta=never", "--output-format=json"])
        .args(how.arguments)
        .arg(format!("--randseed={}", seed >> 33))
        .arg(format!("--runtime={}ms", duration.as_millis()))
        .arg(format!("--filename={}", path.display()));
    let text = run_process(&mut command)?.stdout;
    let cost = cost_in(&text).context("fio's output is not understood")?;
    ensure!(cost.rate > 0.0, "fio read nothing");
    Ok(cost)
}

fn cost_in(text: &str) -> Option<Cost> {
    // Warnings may precede the object.
    let json: Value = serde_json::from_str(text.get(text.find('{')?..)?).ok()?;
    let job = &json["jobs"][0];
    let reads = job["read"]["total_ios"].as_f64()?;
    // Shares of the time of all jobs together, which is in ms.
    let cpu_percent = job["usr_cpu"].as_f64()? + job["sys_cpu"].as_f64()?;
    let cpu_us = cpu_percent / 100.0 * job["job_runtime"].as_f64()? * 1e3 / reads;
    Some(Cost { rate: job["read"]["iops"].as_f64()?, cpu_us })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_cpu_are_read_from_what_fio_prints() {
        let text = r#"fio: a warning
            {"jobs": [{"usr_cpu": 0.5, "sys_cpu": 1.5, "job_runtime": 64000,
                       "read": {"iops": 100000.0, "total_ios": 200000}}]}"#;
        // 2 % of 64 s are 1.28 s, over 200,000 reads.
        let cost = cost_in(text).unwrap();
        assert!((cost.rate - 100_000.0).abs() < 1e-9 && (cost.cpu_us - 6.4).abs() < 1e-9, "{cost:?}");
        assert_eq!(cost_in("nothing"), None);
        assert_eq!(cost_in(r#"{"jobs": []}"#), None);
    }
}
