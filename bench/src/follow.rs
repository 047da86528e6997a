//! `follow`: a binlog with a follower near its writer and one that stays ten segments behind.
//!
//! The near follower must cause no reads from the device, according to the kernel's account of its thread. The far
//! follower does read from the device, which shows that the account works, and must not hold memory: the log's
//! residency is sampled throughout. Invariants: both see every record after their start, in order; the far one keeps
//! its distance. Fails where a record is missing or wrong.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use pagekeeper_log::{BinLog, BinLogOptions, Follower};

use crate::Run;
use crate::data::{MIB, resident_in};
use crate::gauges::{THREAD, device_bytes, latencies};
use crate::report::Unit;
use crate::rounds::{Plan, Samples, Subject, run as run_rounds};

/// Bytes of a record.
const RECORD: usize = 8 << 10;
/// Records of a group.
const GROUP: usize = 4;
/// Segments that the log keeps for near followers, which is its default.
const KEEP: u64 = 3;
/// Distance of the far follower, in segments.
const BEHIND: u64 = 10;
/// Groups from one sync to the next.
const SYNC_EVERY: u64 = 64;
/// Interval of the residency samples.
const EACH: Duration = Duration::from_millis(20);
/// The writer's pause after each MiB; a real one runs transactions meanwhile.
const REST: Duration = Duration::from_millis(4);
/// The time a follower waits for a record.
const PATIENCE: Duration = Duration::from_millis(100);

const OURS: &str = "binlog";

/// The size of a run.
#[derive(Debug, Clone, Copy)]
struct Setting {
    /// Bytes of a segment.
    segment: u64,
    /// Segments written while both follow.
    segments: u64,
}

/// The figures of one sample.
struct Sample {
    /// Pages that the near follower's thread read from the device.
    near_pages: f64,
    /// MiB that the far follower's thread read from the device.
    far_mib: f64,
    /// The largest residency of all segments, in MiB.
    resident_mib: f64,
    /// Nanoseconds from the append of a group until its last record was seen.
    lag: Histogram<u64>,
    /// MiB appended per second, pauses included.
    rate: f64,
}

/// A figure of the samples: its name, its unit, and how to get it.
type Figure = (&'static str, Unit, fn(&Sample) -> f64);

/// Runs the benchmark.
pub(crate) fn run(run: &mut Run) -> Result<()> {
    let setting = if run.quick {
        Setting { segment: 8 * MIB, segments: 14 }
    } else {
        Setting { segment: 64 * MIB, segments: 24 }
    };
    run.scratch.require_space((setting.segments + BEHIND + 2) * setting.segment)?;
    let limit = (KEEP + 1) * setting.segment / MIB;
    run.note(&format!(
        "segments of {} MiB, groups of {} KiB, synced every {SYNC_EVERY} groups; resident is to stay under {limit} MiB",
        setting.segment / MIB,
        (GROUP * RECORD) >> 10
    ));
    let written = setting.segments * setting.segment / MIB;
    let name = format!("{written} MiB, a near follower and one {BEHIND} segments behind");
    run.say(&name)?;
    let parent = run.scratch.path().to_path_buf();
    let mut seen = Vec::new();
    let mut subjects = [Subject::new(OURS, || {
        let dir = tempfile::tempdir_in(&parent)?;
        let sample = one(dir.path(), setting)?;
        let pages = sample.near_pages;
        seen.push(sample);
        Ok(pages)
    })];
    let until = run.quick.then(|| run.began + Duration::from_secs(40));
    let plan = Plan { rounds: run.rounds, until, warm_up: false };
    let pages = run_rounds(&mut subjects, plan, &mut run.random, &run.stop)?;
    drop(subjects);
    run.report.add_case(
        &format!("{name}: pages that the near one read from the device"),
        Unit::Count,
        &pages,
    );
    let figures: [Figure; 5] = [
        ("read from the device by the far one", Unit::Mib, |sample| sample.far_mib),
        ("most that was resident", Unit::Mib, |sample| sample.resident_mib),
        ("appended", Unit::MibPerSecond, |sample| sample.rate),
        ("from append to the near one, p50", Unit::Microseconds, |sample| lag_us(sample, 50.0)),
        ("from append to the near one, p99", Unit::Microseconds, |sample| lag_us(sample, 99.0)),
    ];
    for (what, unit, of) in figures {
        let values = seen.iter().map(of).collect();
        run.report.add_case(&format!("{name}: {what}"), unit, &[Samples { subject: OURS, values }]);
    }
    let most = |of: fn(&Sample) -> f64| seen.iter().map(of).fold(0.0, f64::max);
    run.report.ratios.insert("follow_near_device_reads", most(|sample| sample.near_pages));
    run.report.ratios.insert("follow_resident_mib", most(|sample| sample.resident_mib));
    run.report.ratios.insert("follow_resident_limit_mib", limit as f64);
    Ok(())
}

fn lag_us(sample: &Sample, percent: f64) -> f64 {
    sample.lag.value_at_percentile(percent) as f64 / 1e3
}

/// Fills a record with its number and its time.
fn make(number: u64, began: Instant, record: &mut [u8]) {
    let now = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    record[..8].copy_from_slice(&number.to_le_bytes());
    record[8..16].copy_from_slice(&now.to_le_bytes());
    let end = record.len() - 8;
    record[end..].copy_from_slice(&(!number).to_le_bytes());
}

/// Checks a record's number and returns the time in it.
fn check(number: u64, record: &[u8]) -> Result<u64> {
    ensure!(record.len() == RECORD, "a record of {} bytes", record.len());
    let found = u64::from_le_bytes(record[..8].try_into()?);
    ensure!(found == number, "record {found} where {number} should be");
    ensure!(record.ends_with(&(!number).to_le_bytes()), "record {number} is garbled");
    Ok(u64::from_le_bytes(record[8..16].try_into()?))
}

/// Appends until the log is in this segment and returns the number of the next record.
fn append_until(log: &BinLog, segment: u64, from: u64, began: Instant, rest: Duration) -> Result<u64> {
    let mut records = vec![vec![0xa5; RECORD]; GROUP];
    let mut number = from;
    while log.end().segment < segment {
        for record in &mut records {
            make(number, began, record);
            number += 1;
        }
        let group: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        log.append_group(&group)?;
        if number.is_multiple_of(MIB / RECORD as u64) {
            std::thread::sleep(rest);
        }
    }
    Ok(number)
}

fn one(dir: &Path, setting: Setting) -> Result<Sample> {
    let options = BinLogOptions::new().max_segment_bytes(setting.segment).keep_segments(KEEP);
    let log = options.sync_every(SYNC_EVERY).open(dir)?;
    let began = Instant::now();
    let first = append_until(&log, log.end().segment + BEHIND, 0, began, Duration::ZERO)?;
    let (near, far) = (log.follow(log.end())?, log.follow(log.first())?);
    let over = AtomicBool::new(false);
    let (log, over) = (&log, &over);
    std::thread::scope(|scope| {
        let near = scope.spawn(move || follow_near(near, first, began, over));
        let far = scope.spawn(move || follow_far(far, log, over));
        let sampler = scope.spawn(move || -> Result<u64> {
            let mut most = 0;
            // At least once, however late this thread begins.
            loop {
                most = most.max(resident_in(dir)?);
                if over.load(Ordering::Acquire) {
                    return Ok(most);
                }
                std::thread::sleep(EACH);
            }
        });
        let start = Instant::now();
        let written = append_until(log, log.end().segment + setting.segments, first, began, REST);
        let seconds = start.elapsed().as_secs_f64();
        let closed = log.sync();
        over.store(true, Ordering::Release);
        let (written, _) = (written?, closed?);
        let (lag, near_bytes) = join(near)?;
        let far_bytes = join(far)?;
        let most = join(sampler)?;
        let appended = ((written - first) * RECORD as u64) as f64 / MIB as f64;
        ensure!(lag.len() * GROUP as u64 == written - first, "the near follower saw {} groups", lag.len());
        Ok(Sample {
            near_pages: near_bytes as f64 / 4096.0,
            far_mib: far_bytes as f64 / MIB as f64,
            resident_mib: most as f64 / MIB as f64,
            lag,
            rate: appended / seconds,
        })
    })
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Reads every record until no more come. Returns the lags, and the bytes that this thread read from the device.
fn follow_near(
    mut follower: Follower,
    first: u64,
    began: Instant,
    over: &AtomicBool,
) -> Result<(Histogram<u64>, u64)> {
    let before = device_bytes(THREAD)?;
    let mut lag = latencies();
    let mut next = first;
    loop {
        // Read first, because the writer may pause for long where its disk does.
        let is_over = over.load(Ordering::Acquire);
        let Some(event) = follower.next_timeout(PATIENCE)? else {
            if is_over {
                break;
            }
            continue;
        };
        let made = check(next, &event.bytes)?;
        next += 1;
        if event.ends_group {
            let now = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            lag.saturating_record(now.saturating_sub(made));
        }
    }
    Ok((lag, device_bytes(THREAD)? - before))
}

/// Stays [`BEHIND`] segments behind until the end and returns the bytes that this thread read from the device.
fn follow_far(mut follower: Follower, log: &BinLog, over: &AtomicBool) -> Result<u64> {
    let before = device_bytes(THREAD)?;
    let mut next = 0;
    while !over.load(Ordering::Acquire) {
        if follower.position().segment + BEHIND > log.end().segment {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let event = follower.next_timeout(PATIENCE)?.context("the far follower found the end of the log")?;
        check(next, &event.bytes)?;
        next += 1;
    }
    Ok(device_bytes(THREAD)? - before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn followers_see_all_and_the_near_one_reads_from_memory() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let sample = one(dir.path(), Setting { segment: MIB, segments: 3 }).unwrap();
        assert!(sample.near_pages.abs() < 1.0, "{} pages read", sample.near_pages);
        assert!(sample.lag.max() > 0 && sample.rate > 0.0 && sample.resident_mib > 0.0);
    }

    #[test]
    fn a_wrong_record_is_seen() {
        let mut record = vec![0; RECORD];
        make(7, Instant::now(), &mut record);
        assert!(check(7, &record).is_ok());
        assert!(check(8, &record).is_err());
        record[RECORD - 1] ^= 1;
        assert!(check(7, &record).is_err());
    }
}
