//! Databases whose memory the kernel moves to swap to make room for page cache.
//!
//! Invariants: growth counts only while the doctor watches. Page cache is named as the cause only
//! if programs brought in at least as much as went to swap. A limit on swap is advised only if the
//! memory that can't be dropped fits without swap. A program is said to have ended only if that is
//! known. Without swap space on the host there is no finding.

use std::collections::BTreeMap;
use std::fmt::Display;

use pagekeeper_kernel::pressure::{CgroupVersion, GroupSwap, MemInfo, MemoryCgroup, Swappiness};
use pagekeeper_observe::Database;
use pagekeeper_text::{ByteSize, counted, duration, escaped, rate, shell_quoted};

use super::EarlierFindings;
use super::streams::{name_of, share_memory};
use crate::advice::step;
use crate::observed::attribution::database_of;
use crate::phrases::{per_second, process};
use crate::programs::{guard_follows, run_as_stream};
use crate::swap_watch::DatabaseSwap;
use crate::texts::text;
use crate::{Advised, Confidence, Cost, Evidence, Finding, Fix, Goal, Kind, Observation, Severity, Streamer};

/// Minimum bytes in swap to be reported without growth.
pub(super) const SWAPPED_BYTES_MIN: u64 = 16 << 20;
/// Minimum growth in bytes to be a warning.
const GROWN_BYTES_MIN: u64 = 4 << 20;
/// From this many bytes per second that come back from swap on, the database waits.
const SWAP_IN_RATE_MIN: u64 = 1 << 20;
/// Minimum bytes that a listed program brought in.
const SWAP_FILLER_BYTES_MIN: u64 = 1 << 20;
/// Maximum number of programs listed.
const LISTED_FILLERS_MAX: usize = 3;
/// Without swap, one part in this many of the limit, and of the host's memory, has to stay free.
const SPARE_PART: u64 = 10;
/// Value at which the kernel swaps only when hardly any page cache is left.
const LOW_SWAPPINESS: u64 = 1;

/// Returns a finding for each database with memory in swap.
pub(super) fn find(observation: &Observation<'_>, _: EarlierFindings<'_>) -> Vec<Finding> {
    observation.databases().filter_map(|(index, database)| swapped(observation, index, database)).collect()
}

fn swapped(observation: &Observation<'_>, index: usize, database: &Database) -> Option<Finding> {
    let swap = observation.swap_of(index)?;
    let read_back = swap.came_back.and_then(|bytes| per_second(bytes, swap.period)).unwrap_or(0);
    let severity = severity(swap, read_back)?;
    let fillers = CacheFillers::of(observation, index, database);
    let cause = cause(swap.grown, fillers.as_ref());
    let Advised { fixes, remarks } = fixes(observation, index, swap, &cause);
    Some(Finding {
        kind: Kind::Swapped,
        severity,
        database: Some(observation.subject(index)),
        title: title(swap, read_back, &cause),
        evidence: evidence(observation, swap, fillers.as_ref()),
        cost: cost(swap, read_back),
        fixes,
        remarks,
        pagekeeper: pagekeeper(&cause),
    })
}

/// Returns how much it matters; `None` if it does not.
fn severity(swap: &DatabaseSwap, read_back: u64) -> Option<Severity> {
    let waits = read_back >= SWAP_IN_RATE_MIN && swap.swapped > 0;
    if waits && swap.is_group_own {
        Some(Severity::Serious)
    } else if waits || swap.grown >= GROWN_BYTES_MIN {
        Some(Severity::Warning)
    } else {
        (swap.swapped >= SWAPPED_BYTES_MIN).then_some(Severity::Note)
    }
}

/// The cause of growth.
#[derive(Debug, PartialEq, Eq)]
enum SwapCause {
    /// There was hardly any growth.
    NoGrowth,
    /// A running program brought in most pages.
    Program { pid: u32, name: String },
    /// The database itself brought in most.
    OwnReads,
    /// Enough came in, counting programs that ended; their memory cgroups are unknown.
    Ended,
    /// Enough came in, counting programs whose memory cgroups are unknown for another reason.
    Unplaced,
    /// Pages were not traced.
    NotTraced,
    /// Fewer pages came in than went to swap.
    OtherMemory,
}

/// Names the cause of growth by the pages that came in meanwhile.
fn cause(grown: u64, fillers: Option<&CacheFillers>) -> SwapCause {
    let Some(fillers) = fillers.filter(|_| grown >= GROWN_BYTES_MIN) else {
        return if grown < GROWN_BYTES_MIN { SwapCause::NoGrowth } else { SwapCause::NotTraced };
    };
    let sum = |fillers: &[CacheFiller]| fillers.iter().map(|filler| filler.bytes).sum::<u64>();
    let (running, ended) = (sum(&fillers.running), sum(&fillers.ended));
    match fillers.running.first() {
        Some(most) if running + fillers.own >= grown && most.bytes >= fillers.own => {
            SwapCause::Program { pid: most.pid, name: most.name.clone() }
        }
        _ if running + fillers.own >= grown => SwapCause::OwnReads,
        _ if running + fillers.own + ended >= grown => SwapCause::Ended,
        _ if running + fillers.own + ended + sum(&fillers.unplaced) >= grown => SwapCause::Unplaced,
        _ => SwapCause::OtherMemory,
    }
}

/// A program that brought pages into the page cache.
#[derive(Debug, PartialEq, Eq)]
struct CacheFiller {
    pid: u32,
    name: String,
    bytes: u64,
}

/// The programs that brought pages into memory that the database shares, largest first.
#[derive(Debug, Default, PartialEq, Eq)]
struct CacheFillers {
    /// Bytes that the database's own processes brought in.
    own: u64,
    running: Vec<CacheFiller>,
    /// Those known to have ended meanwhile, wherever they ran.
    ended: Vec<CacheFiller>,
    /// Those that were not inspected, or could not be, and kernel threads.
    unplaced: Vec<CacheFiller>,
}

impl CacheFillers {
    /// Returns them; `None` if pages were not traced.
    fn of(observation: &Observation<'_>, index: usize, database: &Database) -> Option<Self> {
        let pages = observation.trace()?.pages.as_ref()?;
        let (mut fillers, mut others) = (Self::default(), BTreeMap::<u32, u64>::new());
        for counts in pages.iter().filter(|counts| counts.flow.added.bytes > 0) {
            let Some(task) = &counts.task else { continue };
            if database_of(observation, task) == Some(index) {
                fillers.own += counts.flow.added.bytes;
            } else {
                *others.entry(task.process).or_default() += counts.flow.added.bytes;
            }
        }
        for (pid, bytes) in others.into_iter().filter(|(_, bytes)| *bytes >= SWAP_FILLER_BYTES_MIN) {
            let filler = CacheFiller { pid, name: name_of(pages, pid).to_owned(), bytes };
            match observation.streamers.iter().find(|streamer| streamer.pid == pid) {
                Some(Streamer { has_ended: true, .. }) => fillers.ended.push(filler),
                Some(Streamer { title, cgroup, .. }) if !title.is_empty() || cgroup.is_some() => {
                    if share_memory(observation, cgroup.as_ref(), database.cgroup.as_ref()) {
                        fillers.running.push(filler);
                    }
                }
                _ => fillers.unplaced.push(filler),
            }
        }
        for list in [&mut fillers.running, &mut fillers.ended, &mut fillers.unplaced] {
            list.sort_by_key(|filler| (std::cmp::Reverse(filler.bytes), filler.pid));
        }
        Some(fillers)
    }

    fn evidence(&self) -> Evidence {
        let named = |fillers: &[CacheFiller], known: &str| {
            let shown = fillers.iter().take(LISTED_FILLERS_MAX);
            let name = |filler: &CacheFiller| {
                format!("{}{known} {}", process(&filler.name, filler.pid), ByteSize(filler.bytes))
            };
            shown.map(name).collect::<Vec<_>>()
        };
        let own = format!("the database itself {}", ByteSize(self.own));
        let ended = named(&self.ended, ", which has ended,");
        let unplaced = named(&self.unplaced, ", whose memory cgroup is unknown,");
        let all = [named(&self.running, ""), vec![own], ended, unplaced].concat().join("; ");
        Evidence::new(format!("brought into the page cache meanwhile: {all}"))
            .with("added_bytes", self.running.iter().map(|filler| filler.bytes).sum::<u64>())
            .with("added_of_database_bytes", self.own)
    }
}

fn title(swap: &DatabaseSwap, read_back: u64, cause: &SwapCause) -> String {
    let grown = format!("{} of its memory went to swap in {}", ByteSize(swap.grown), duration(swap.period));
    match cause {
        SwapCause::NoGrowth if read_back >= SWAP_IN_RATE_MIN => {
            format!("its memory comes back from swap, {}", rate(read_back))
        }
        SwapCause::NoGrowth => format!("{} of its memory are in swap", ByteSize(swap.swapped)),
        SwapCause::Program { pid, name } => {
            format!("{} fills the page cache, and {grown}", process(name, *pid))
        }
        SwapCause::OwnReads => format!("its own reads fill the page cache, and {grown}"),
        SwapCause::Ended => format!("{grown}, while programs that have ended filled the page cache"),
        SwapCause::Unplaced => {
            format!("{grown}, while programs in unknown memory cgroups filled the page cache")
        }
        SwapCause::NotTraced => format!("{grown}; which program took that memory was not traced"),
        SwapCause::OtherMemory => format!("{grown}, for less page cache than that"),
    }
}

fn evidence(
    observation: &Observation<'_>,
    swap: &DatabaseSwap,
    fillers: Option<&CacheFillers>,
) -> Vec<Evidence> {
    let source = if swap.is_group_own { ", shared memory included" } else { ", without shared memory" };
    let own = Evidence::of("swapped.own")
        .with("swapped_bytes", swap.swapped)
        .with("swapped_growth_bytes", swap.grown)
        .with("processes", swap.processes)
        .say("count", counted(swap.processes as u64, "process", "processes"))
        .say("have", if swap.processes == 1 { "has" } else { "have" })
        .say("source", source);
    let fillers = fillers.map_or_else(
        || Evidence::new("which programs brought pages in meanwhile was not traced"),
        CacheFillers::evidence,
    );
    [Some(own), of_group(swap), Some(fillers), Some(in_force(observation, swap))]
        .into_iter()
        .flatten()
        .collect()
}

fn of_group(swap: &DatabaseSwap) -> Option<Evidence> {
    let used = swap.group.as_ref()?.used?;
    let evidence = Evidence::of("swapped.group")
        .with("group_swapped_bytes", used)
        .with_known("swapped_in_bytes", swap.came_back);
    Some(evidence.say("others", if swap.is_group_own { "" } else { ", other programs in it included" }))
}

/// Describes the settings that decide how much is swapped.
fn in_force(observation: &Observation<'_>, swap: &DatabaseSwap) -> Evidence {
    let memory = &observation.after.host.memory;
    let mut evidence = Evidence::new(String::new());
    let mut parts = Vec::new();
    if let Some(swappiness) = &swap.swappiness {
        let of = swappiness.group_file.as_ref().map(|path| format!(" ({})", escaped(path)));
        parts.push(format!("swappiness {}{}", swappiness.value, of.unwrap_or_default()));
        evidence = evidence.with("swappiness", swappiness.value);
    }
    if let Some(group) = &swap.group {
        let limit = group.limit.map_or_else(|| "no limit".to_owned(), |limit| ByteSize(limit).to_string());
        parts.push(format!("{limit} on the swap of its memory cgroup"));
        if let Some(limit) = group.limit {
            evidence = evidence.with("swap_limit_bytes", limit);
        }
    }
    parts.push(format!("{} of {} of swap free", ByteSize(memory.swap_free), ByteSize(memory.swap_total)));
    evidence.text = format!("in force: {}", parts.join("; "));
    evidence.with("swap_free_bytes", memory.swap_free).with("swap_total_bytes", memory.swap_total)
}

fn cost(swap: &DatabaseSwap, read_back: u64) -> Cost {
    if read_back >= SWAP_IN_RATE_MIN {
        let whose = if swap.is_group_own { "" } else { " in its memory cgroup, for it or for others there" };
        return Cost::measured(text("swapped.cost-read", &[("rate", &rate(read_back)), ("whose", &whose)]));
    }
    let little = if swap.grown < GROWN_BYTES_MIN { "Nothing while it is not used. " } else { "" };
    Cost::estimated(text("swapped.cost", &[("little", &little)]))
}

/// Describes what pagekeeper can do about the program from outside.
fn pagekeeper(cause: &SwapCause) -> Option<String> {
    let SwapCause::Program { name, .. } = cause else { return None };
    let guard = guard_follows(name);
    Some(format!("{guard} follows the program from outside: it releases what the program brings in"))
}

fn fixes(observation: &Observation<'_>, index: usize, swap: &DatabaseSwap, cause: &SwapCause) -> Advised {
    let database = &observation.after.databases[index];
    let mut advised = match cause {
        SwapCause::Program { name, .. } => {
            let run = run_as_stream(name, Confidence::Measured, in_words(swap));
            Advised { fixes: run.into_iter().collect(), remarks: Vec::new() }
        }
        SwapCause::OwnReads => observation.advise(Goal::LessPageCache, index),
        SwapCause::Ended => Advised {
            remarks: vec!["`pagekeeper doctor` names the program while it runs".to_owned()],
            ..Advised::default()
        },
        SwapCause::NoGrowth | SwapCause::Unplaced | SwapCause::NotTraced => Advised::default(),
        SwapCause::OtherMemory => {
            return Advised {
                fixes: vec![step("smaller-cache-than-swap", &[("swap", &in_words(swap))])],
                remarks: vec![text("swapped.remark", &[])],
            };
        }
    };
    if let Some(group) = database.cgroup.as_ref() {
        match no_swap(observation, group, swap) {
            Ok(fix) => advised.fixes.extend(fix),
            Err(remark) => advised.remarks.push(remark),
        }
    }
    advised.fixes.extend(low_swappiness(swap));
    advised
}

fn in_words(swap: &DatabaseSwap) -> String {
    let (swapped, grown) = (ByteSize(swap.swapped), ByteSize(swap.grown));
    format!("{swapped} of its memory are in swap, {grown} of it since the watch began")
}

/// Returns the memory of a group that can't be dropped, in bytes, with the part of it that is in
/// swap.
fn undroppable(group: &MemoryCgroup, in_swap: u64) -> u64 {
    group.usage.saturating_sub(group.page_cache()).saturating_add(in_swap)
}

/// Returns the fix of a group without swap, or why it is not advised. None on version 1, where only
/// swappiness is a group's own.
fn no_swap(
    observation: &Observation<'_>,
    group: &MemoryCgroup,
    swap: &DatabaseSwap,
) -> Result<Option<Fix>, String> {
    let Some(own) = swap.group.as_ref().filter(|own| own.limit != Some(0)) else { return Ok(None) };
    let (CgroupVersion::V2, Some(used)) = (group.version, own.used) else { return Ok(None) };
    if let Some(reason) = reason_for_swap(&observation.after.host.memory, group, own, used) {
        return Err(format!("memory.swap.max=0 is not advised: {reason}"));
    }
    let file = shell_quoted(&group.directory.join("memory.swap.max")).to_string();
    let before = own.own_limit.map_or_else(|| "max".to_owned(), |limit| limit.to_string());
    let values: &[(&str, &dyn Display)] = &[("file", &file), ("before", &before), ("swap", &in_words(swap))];
    Ok(Some(step("no-swap-in-group", values)))
}

/// Returns why a group may need swap; `None` if all its memory fits without, below its own limit
/// and on the host.
fn reason_for_swap(host: &MemInfo, group: &MemoryCgroup, own: &GroupSwap, used: u64) -> Option<String> {
    if group.limited_by.is_some() || own.has_memory_limit_above {
        return Some(text("swapped.limit-above", &[]));
    }
    let needed = undroppable(group, used);
    if let Some(limit) = group.limit.filter(|limit| needed > limit - limit / SPARE_PART) {
        return Some(text("swapped.needed", &[("needed", &ByteSize(needed)), ("limit", &ByteSize(limit))]));
    }
    (used > host.available.saturating_sub(host.total / SPARE_PART)).then(|| {
        text("swapped.no-room", &[("used", &ByteSize(used)), ("available", &ByteSize(host.available))])
    })
}

/// Returns the command that sets the swappiness in force to another value.
fn set(swappiness: &Swappiness, value: u64) -> String {
    match &swappiness.group_file {
        Some(path) => format!("echo {value} >{}", shell_quoted(path)),
        None => format!("sysctl -w vm.swappiness={value}"),
    }
}

/// Returns the fix of a low swappiness: of the group on version 1, else of the host.
fn low_swappiness(swap: &DatabaseSwap) -> Option<Fix> {
    let swappiness = swap.swappiness.as_ref().filter(|swappiness| swappiness.value > LOW_SWAPPINESS)?;
    let whose = if swappiness.group_file.is_some() { "its memory cgroup" } else { "the whole host" };
    let (act, undo) = (set(swappiness, LOW_SWAPPINESS), set(swappiness, swappiness.value));
    let values: &[(&str, &dyn Display)] =
        &[("act", &act), ("whose", &whose), ("undo", &undo), ("swap", &in_words(swap))];
    Some(step("low-swappiness", values))
}

#[cfg(test)]
mod tests;
