//! `mixed`: random direct reads and writes of a file while others use its page cache, on ext4, XFS and btrfs.
//!
//! It looks for one fault: in 2015, a few pages left by one buffered read made XFS serialize direct reads of the file.
//! `pagekeeper-probe` does the measuring, here on a new file system of each kind, on a loop device that bypasses the
//! page cache of the file below.
//!
//! Invariants: all subjects take turns in each round, in an order that is shuffled anew; reads are checked; the first
//! round does not count. Fails with a plain message without root.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pagekeeper_probe::{Access, Beside, MixedCase, MixedReport, Part, Probe};

use crate::Run;
use crate::data::MIB;
use crate::image::Image;
use crate::peers::Program;
use crate::report::Unit;
use crate::rounds::{Better, Samples, ratio};

/// A file system, the program that creates it, and the names of its ratios: reads and writes with leftover pages, and
/// the same beside a buffered writer.
struct Kind {
    name: &'static str,
    maker: &'static str,
    leftover: [&'static str; 2],
    writer: [&'static str; 2],
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "ext4",
        maker: "mkfs.ext4",
        leftover: ["mixed_ext4_read", "mixed_ext4_write"],
        writer: ["mixed_ext4_read_writer", "mixed_ext4_write_writer"],
    },
    Kind {
        name: "xfs",
        maker: "mkfs.xfs",
        leftover: ["mixed_xfs_read", "mixed_xfs_write"],
        writer: ["mixed_xfs_read_writer", "mixed_xfs_write_writer"],
    },
    Kind {
        name: "btrfs",
        maker: "mkfs.btrfs",
        leftover: ["mixed_btrfs_read", "mixed_btrfs_write"],
        writer: ["mixed_btrfs_read_writer", "mixed_btrfs_write_writer"],
    },
];

const ACCESSES: [(Access, &str); 2] = [(Access::Read, "reads"), (Access::Write, "writes")];
const THREADS: [usize; 2] = [1, 8];

/// In the order of the table.
const BESIDE: [(Beside, &str); 6] = [
    (Beside::Leftovers, "a few leftover pages"),
    (Beside::Nothing, "no page resident"),
    (Beside::Reader, "beside a buffered reader"),
    (Beside::ReaderElsewhere, "beside a reader of another file"),
    (Beside::Writer, "beside a buffered writer"),
    (Beside::WriterElsewhere, "beside a writer of another file"),
];

/// Runs the benchmark.
pub(crate) fn run(run: &mut Run) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "this bench mounts file systems on loop devices: it needs root"
    );
    let (file, window) = if run.quick { (128 * MIB, 40) } else { (512 * MIB, 200) };
    let rounds = u32::try_from(run.rounds.min(if run.quick { 4 } else { usize::MAX }))?;
    for kind in KINDS {
        if Program::find(kind.maker).is_none() {
            run.report.add_missing(kind.maker);
            continue;
        }
        run.say(&format!("direct I/O on {} beside buffered", kind.name))?;
        // The file, another one, and the file system's own needs.
        let image = Image::new(&run.scratch, kind.name, 3 * file + 512 * MIB)?;
        let seed = run.random.next_u64();
        let probe = Probe::new(image.path()).only([Part::Mixed]).file_bytes(file).seed(seed);
        // One more round, which does not count.
        let probe = probe.interval(Duration::from_millis(window)).rounds(rounds + 1);
        let measured = probe.cancel(run.stop.flag()).run();
        run.stop.check()?;
        let measured = measured.with_context(|| kind.name.to_owned())?;
        if measured.profile.file_bytes < file {
            run.note(&format!(
                "{}: the disk wrote only {} MiB of the file in 15 s",
                kind.name,
                measured.profile.file_bytes / MIB
            ));
        }
        match &measured.found.mixed {
            Some(mixed) => tell(run, &kind, mixed),
            None => run.note(&format!("{} refuses direct I/O", kind.name)),
        }
    }
    run.note("a reader or writer beside goes through the page cache, 4 KiB at a time, some thousand times a second");
    Ok(())
}

/// Returns the rounds that count.
fn counted(case: &MixedCase) -> &[f64] {
    case.rounds.get(1..).unwrap_or_default()
}

fn tell(run: &mut Run, kind: &Kind, mixed: &MixedReport) {
    for (access, name) in ACCESSES {
        for threads in THREADS {
            let s = if threads == 1 { "" } else { "s" };
            let of = |(beside, subject): (Beside, &'static str)| {
                let case = mixed.case(access, threads, beside)?;
                Some(Samples { subject, values: counted(case).to_vec() })
            };
            let samples: Vec<Samples> = BESIDE.into_iter().filter_map(of).collect();
            let title = format!("{}: direct {name}, {threads} thread{s}", kind.name);
            run.report.add_case(&title, Unit::RequestsPerSecond, &samples);
        }
    }
    let queue = |(beside, subject): (Beside, &'static str)| {
        let queue = mixed.case(Access::Read, 8, beside)?.events.disk_queue?;
        Some(Samples { subject, values: vec![queue] })
    };
    let queues: Vec<Samples> = BESIDE.into_iter().filter_map(queue).collect();
    run.report.add_case(
        &format!("{}: requests at the disk at a time, 8 threads that read", kind.name),
        Unit::Deep,
        &queues,
    );
    for ((access, _), (leftover, writer)) in ACCESSES.iter().zip(kind.leftover.iter().zip(kind.writer)) {
        for (name, beside) in [(*leftover, Beside::Leftovers), (writer, Beside::Writer)] {
            if let Some(worst) = worst(mixed, *access, beside) {
                run.report.ratios.insert(name, worst);
            }
        }
    }
}

/// Returns the worse of one thread and eight.
fn worst(mixed: &MixedReport, access: Access, beside: Beside) -> Option<f64> {
    let of = |threads: &usize| {
        let [case, control] =
            [beside, beside.control()].map(|beside| mixed.case(access, *threads, beside).map(counted));
        ratio(case?, control?, Better::More)
    };
    THREADS.iter().filter_map(of).min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use pagekeeper_probe::{EventRates, Subject};

    use super::*;

    #[test]
    fn the_first_round_does_not_count_and_the_worse_does() {
        let case = |threads, beside, rounds: &[f64]| MixedCase {
            subject: Subject { access: Access::Read, threads, beside },
            per_second: 0.0,
            rounds: rounds.to_vec(),
            ratio: None,
            sure_share: None,
            beside_per_second: 0.0,
            resident_before_bytes: None,
            resident_after_bytes: None,
            events: EventRates::default(),
        };
        let mixed = MixedReport {
            events: String::new(),
            cases: vec![
                case(1, Beside::Nothing, &[1.0, 10.0, 100.0]),
                case(1, Beside::Leftovers, &[1000.0, 9.0, 90.0]),
                case(8, Beside::Nothing, &[1.0, 10.0, 100.0]),
                case(8, Beside::Leftovers, &[1000.0, 5.0, 50.0]),
            ],
        };
        assert_eq!(worst(&mixed, Access::Read, Beside::Leftovers), Some(0.5));
        assert_eq!(worst(&mixed, Access::Write, Beside::Leftovers), None);
    }
}
