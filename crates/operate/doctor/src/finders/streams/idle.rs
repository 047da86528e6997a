//! Reclaim of a database's data pages because they were idle, however much memory is free: by
//! DAMON's kernel threads (`kdamond`), or by a program that writes to `memory.reclaim`.
//!
//! Invariant: these pages are not attributed to any stream.

use std::collections::{BTreeMap, HashMap};

use pagekeeper_kernel::Inode;
use pagekeeper_observe::File;
use pagekeeper_text::{ByteSize, duration, rate};
use pagekeeper_trace::{PageCounts, TaskIdentity, TraceCounts};

use super::{CacheLoss, PUSHED_OUT_BYTES_MIN, reclaimed_by};
use crate::advice::step;
use crate::observed::attribution::database_of;
use crate::phrases::{per_second, process};
use crate::texts::text;
use crate::{Cost, Evidence, Finding, Fix, Kind, Observation, Severity};

/// The tasks that reclaimed a database's data as idle, largest first.
pub(super) struct IdleReclaimers<'a> {
    all: Vec<IdleReclaimer<'a>>,
}

struct IdleReclaimer<'a> {
    task: &'a TaskIdentity,
    bytes: u64,
    damon: bool,
}

impl<'a> IdleReclaimers<'a> {
    pub(super) fn of(
        observation: &Observation<'_>,
        trace: &TraceCounts,
        pages: &'a [PageCounts],
        data: &HashMap<Inode, &File>,
    ) -> Self {
        let proactive = observation
            .pages_counted(|vmstat| vmstat.get("pgsteal_proactive"))
            .is_some_and(|bytes| bytes >= PUSHED_OUT_BYTES_MIN);
        let mut taken: BTreeMap<u32, (&TaskIdentity, u64)> = BTreeMap::new();
        for (task, counts) in pages.iter().filter_map(|counts| Some((counts.task.as_ref()?, counts))) {
            if data.contains_key(&counts.file) {
                taken.entry(task.process).or_insert((task, 0)).1 += counts.flow.removed.bytes;
            }
        }
        let added = |pid| {
            let own =
                pages.iter().filter(|counts| counts.task.as_ref().is_some_and(|task| task.process == pid));
            own.map(|counts| counts.flow.added.bytes).sum::<u64>()
        };
        let takers = taken.into_values().filter_map(|(task, bytes)| {
            let damon = is_damon(observation, task);
            let by_hand = || {
                proactive
                    && bytes >= PUSHED_OUT_BYTES_MIN
                    && !is_background(observation, task)
                    && database_of(observation, task).is_none()
                    && reclaimed_by(trace, task.process) >= bytes / 2
                    && added(task.process) < bytes
            };
            (bytes > 0 && (damon || by_hand())).then_some(IdleReclaimer { task, bytes, damon })
        });
        let mut all: Vec<IdleReclaimer<'a>> = takers.collect();
        all.sort_by_key(|taker| (std::cmp::Reverse(taker.bytes), taker.task.process));
        Self { all }
    }

    pub(super) fn has(&self, task: &TaskIdentity) -> bool {
        self.all.iter().any(|taker| taker.task.process == task.process)
    }

    /// Returns a finding if enough was reclaimed to be reported.
    pub(super) fn finding(
        &self,
        observation: &Observation<'_>,
        index: usize,
        loss: &CacheLoss,
    ) -> Option<Finding> {
        let main = self.all.first()?;
        let taken: u64 = self.all.iter().map(|taker| taker.bytes).sum();
        if taken < PUSHED_OUT_BYTES_MIN {
            return None;
        }
        let period = observation.period();
        let missed = per_second(loss.missed().min(taken), period).unwrap_or_default();
        let mut evidence: Vec<Evidence> = self
            .all
            .iter()
            .take(super::finding::LISTED_STREAMS_MAX)
            .map(|taker| taker.evidence(observation))
            .collect();
        let host = &observation.after.host;
        evidence.push(
            Evidence::of("idle.free")
                .with("free_bytes", host.memory.free)
                .with("watermark_low_bytes", host.watermarks.low),
        );
        evidence.extend(super::finding::of_refaults(observation, loss));
        Some(Finding {
            kind: Kind::IdleReclaim,
            severity: if missed >= super::finding::SERIOUS_REREADS_RATE {
                Severity::Warning
            } else {
                Severity::Note
            },
            database: Some(observation.subject(index)),
            title: text(
                "idle.title",
                &[
                    ("process", &process(&main.task.name, main.task.process)),
                    ("rate", &rate(per_second(taken, period).unwrap_or_default())),
                ],
            ),
            evidence,
            cost: Cost::estimated(format!("{} at most that it has to read from storage again", rate(missed))),
            fixes: vec![main.fix()],
            remarks: Vec::new(),
            pagekeeper: None,
        })
    }
}

impl IdleReclaimer<'_> {
    fn evidence(&self, observation: &Observation<'_>) -> Evidence {
        Evidence::of("idle.removed")
            .with("process", self.task.process)
            .with("task", self.task.name.as_str())
            .with("removed_bytes", self.bytes)
            .say("who", process(&self.task.name, self.task.process))
            .say("period", duration(observation.period()))
            .say("damon", if self.damon { "damon" } else { "" })
    }

    fn fix(&self) -> Fix {
        let (pid, bytes) = (self.task.process, ByteSize(self.bytes));
        if self.damon {
            return step("damon-off", &[("pid", &pid), ("bytes", &bytes)]);
        }
        step("no-idle-reclaim", &[("process", &process(&self.task.name, pid)), ("bytes", &bytes)])
    }
}

/// Whether it is a kernel thread that reclaims idle pages.
fn is_damon(observation: &Observation<'_>, task: &TaskIdentity) -> bool {
    task.name.starts_with("kdamond") && is_kernels(observation, task)
}

/// Whether it is the kernel's background reclaim, for lack of memory.
pub(super) fn is_background(observation: &Observation<'_>, task: &TaskIdentity) -> bool {
    task.name.starts_with("kswapd") && is_kernels(observation, task)
}

/// Kernel threads have no command line.
fn is_kernels(observation: &Observation<'_>, task: &TaskIdentity) -> bool {
    let known = observation.streamers.iter().find(|streamer| streamer.pid == task.process);
    known.is_none_or(|streamer| streamer.title.is_empty())
}
