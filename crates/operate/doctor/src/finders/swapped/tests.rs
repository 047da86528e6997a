use std::path::PathBuf;
use std::time::Duration;

use super::*;
use crate::testing::{DEV, GIB, MIB, cgroup, pages, sample};
use pagekeeper_kernel::Inode;
use pagekeeper_observe::Snapshot;

const SERVER: u32 = 100;
const TAR: u32 = 77;
const FILE: Inode = Inode { dev: DEV, ino: 1 };

fn filler(pid: u32, bytes: u64) -> CacheFiller {
    CacheFiller { pid, name: "tar".to_owned(), bytes }
}

/// Returns the swap of a database that is alone in its group, with this growth.
fn swap(swapped: u64, grown: u64) -> DatabaseSwap {
    DatabaseSwap {
        period: Duration::from_secs(10),
        swapped,
        grown,
        processes: 1,
        group: Some(GroupSwap { used: Some(swapped), refaults: Some(0), ..GroupSwap::default() }),
        came_back: Some(0),
        is_group_own: true,
        swappiness: Some(Swappiness { value: 60, group_file: None }),
    }
}

/// Returns a server in a full group of 1 GiB, of which 600 MiB are page cache.
fn snapshot() -> Snapshot {
    let mut after = sample();
    after.databases[0].cgroup = Some(cgroup(GIB, GIB));
    after.host.memory.swap_total = GIB;
    after.host.memory.swap_free = GIB;
    let trace = after.change.as_mut().unwrap().trace.as_mut().unwrap();
    trace.pages = Some(vec![pages(FILE, TAR, "tar", 900 * MIB, 0), pages(FILE, SERVER, "mariadbd", MIB, 0)]);
    after
}

fn streamer(directory: &str) -> Streamer {
    let mut group = cgroup(GIB, GIB);
    group.directory = PathBuf::from(directory);
    let title = "tar /var/backup".to_owned();
    Streamer { pid: TAR, title, cgroup: Some(group), group_beside: None, has_ended: false, files: Vec::new() }
}

fn find_in(after: &Snapshot, swap: DatabaseSwap, streamers: Vec<Streamer>) -> Vec<Finding> {
    let before = sample();
    let mut observation = Observation::new(&before, after);
    (observation.swaps, observation.streamers) = (vec![Some(swap)], streamers);
    super::find(&observation, EarlierFindings(&[]))
}

fn acts(finding: &Finding) -> Vec<&str> {
    finding.fixes.iter().map(|fix| fix.act.as_str()).collect()
}

#[test]
fn severity_follows_growth_and_swap_ins() {
    let of = |swapped, grown, read_back| severity(&swap(swapped, grown), read_back);
    assert_eq!(of(0, 0, 0), None);
    assert_eq!(of(SWAPPED_BYTES_MIN - 1, GROWN_BYTES_MIN - 1, SWAP_IN_RATE_MIN - 1), None);
    assert_eq!(of(SWAPPED_BYTES_MIN, 0, 0), Some(Severity::Note));
    assert_eq!(of(GROWN_BYTES_MIN, GROWN_BYTES_MIN, 0), Some(Severity::Warning));
    assert_eq!(of(MIB, 0, SWAP_IN_RATE_MIN), Some(Severity::Serious));
    assert_eq!(of(0, 0, SWAP_IN_RATE_MIN), None, "of another program in the group");
    let shared = DatabaseSwap { is_group_own: false, ..swap(MIB, 0) };
    assert_eq!(severity(&shared, SWAP_IN_RATE_MIN), Some(Severity::Warning), "perhaps of another");
}

#[test]
fn page_cache_is_the_cause_only_if_enough_came_in() {
    let fillers = |own, running, ended| CacheFillers {
        own,
        running: vec![filler(TAR, running)],
        ended: vec![filler(78, ended)],
        unplaced: Vec::new(),
    };
    let of = |own, running, ended| cause(10 * MIB, Some(&fillers(own * MIB, running * MIB, ended * MIB)));
    let mut with_unplaced = fillers(MIB, MIB, 7 * MIB);
    with_unplaced.unplaced.push(filler(79, MIB));
    assert_eq!(cause(10 * MIB, Some(&with_unplaced)), SwapCause::Unplaced);
    assert_eq!(of(1, 9, 0), SwapCause::Program { pid: TAR, name: "tar".to_owned() });
    assert_eq!(of(6, 5, 100), SwapCause::OwnReads);
    assert_eq!(of(1, 1, 8), SwapCause::Ended);
    assert_eq!(of(1, 1, 7), SwapCause::OtherMemory);
    assert_eq!(cause(10 * MIB, None), SwapCause::NotTraced);
    assert_eq!(cause(MIB, Some(&fillers(0, GIB, 0))), SwapCause::NoGrowth);
}

#[test]
fn a_program_in_the_group_of_a_database_is_named_with_each_fix_and_its_undo() {
    let found = find_in(&snapshot(), swap(60 * MIB, 58 * MIB), vec![streamer("/sys/fs/cgroup/db")]);
    let [found] = &found[..] else { panic!("{found:?}") };
    assert_eq!((found.kind, found.severity), (Kind::Swapped, Severity::Warning));
    assert_eq!(
        found.title,
        "tar (process 77) fills the page cache, and 58 MiB of its memory went to swap in 10.0 s"
    );
    let file = "/sys/fs/cgroup/db/memory.swap.max";
    assert_eq!(
        acts(found),
        ["pagekeeper run -- tar ...", &format!("echo 0 >{file}"), "sysctl -w vm.swappiness=1"]
    );
    let undo: Vec<&str> = found.fixes.iter().map(|fix| fix.terms.undo.as_str()).collect();
    assert_eq!(undo, ["start it as before", &format!("echo max >{file}"), "sysctl -w vm.swappiness=60"]);
    let evidence: Vec<&str> = found.evidence.iter().map(|evidence| evidence.text.as_str()).collect();
    assert!(evidence[0].starts_with("60 MiB of its memory are in swap, 58 MiB more than"), "{evidence:#?}");
    assert!(evidence[2].ends_with("tar (process 77) 900 MiB; the database itself 1 MiB"), "{evidence:#?}");
    assert!(evidence[3].starts_with("in force: swappiness 60; no limit on the swap"), "{evidence:#?}");
    assert!(found.pagekeeper.is_some());
}

#[test]
fn a_program_in_another_group_is_not_the_cause() {
    let found = find_in(&snapshot(), swap(60 * MIB, 58 * MIB), vec![streamer("/sys/fs/cgroup/other/x")]);
    assert!(found[0].title.ends_with("for less page cache than that"), "{found:#?}");
    assert_eq!(acts(&found[0]).len(), 1, "{found:#?}");
    assert!(!found[0].evidence[2].text.contains("tar"), "{found:#?}");
}

#[test]
fn a_program_that_has_ended_is_listed_as_such() {
    let ended =
        Streamer { title: String::new(), cgroup: None, has_ended: true, ..streamer("/sys/fs/cgroup/db") };
    let found = find_in(&snapshot(), swap(60 * MIB, 58 * MIB), vec![ended.clone()]);
    assert!(found[0].title.ends_with("while programs that have ended filled the page cache"), "{found:#?}");
    assert!(found[0].evidence[2].text.contains("tar (process 77), which has ended, 900 MiB"), "{found:#?}");
    // A kernel thread has no title either, and not every program is inspected.
    let kernel_thread = Streamer { has_ended: false, ..ended };
    for streamers in [vec![kernel_thread], Vec::new()] {
        let found = find_in(&snapshot(), swap(60 * MIB, 58 * MIB), streamers);
        let [found] = &found[..] else { panic!("{found:?}") };
        assert!(found.title.ends_with("while programs in unknown memory cgroups filled the page cache"));
        let named = "tar (process 77), whose memory cgroup is unknown, 900 MiB";
        assert!(found.evidence[2].text.ends_with(named), "{found:#?}");
        assert!(!format!("{found:?}").contains("ended"), "{found:#?}");
    }
}

#[test]
fn missing_tracing_is_reported() {
    let mut after = snapshot();
    after.change.as_mut().unwrap().trace = None;
    let found = find_in(&after, swap(60 * MIB, 58 * MIB), vec![streamer("/sys/fs/cgroup/db")]);
    assert!(found[0].title.ends_with("was not traced"), "{found:#?}");
    assert_eq!(acts(&found[0]).len(), 2, "against swap alone");
}

#[test]
fn no_swap_is_advised_only_where_all_that_cannot_be_dropped_fits() {
    let tight = swap(500 * MIB, 58 * MIB);
    let found = find_in(&snapshot(), tight, vec![streamer("/sys/fs/cgroup/db")]);
    assert!(!acts(&found[0]).iter().any(|act| act.contains("swap.max")), "{found:#?}");
    assert!(found[0].remarks[0].starts_with("memory.swap.max=0 is not advised"), "{found:#?}");
    let mut off = swap(60 * MIB, 58 * MIB);
    off.group.as_mut().unwrap().limit = Some(0);
    let found = find_in(&snapshot(), off, vec![streamer("/sys/fs/cgroup/db")]);
    assert!(!acts(&found[0]).iter().any(|act| act.contains("swap.max")), "it has none already");
}

#[test]
fn no_swap_is_not_advised_below_a_limit_of_others_or_on_a_full_host() {
    let group = cgroup(GIB, GIB);
    let is_advised = |of: &dyn Fn(&mut Snapshot, &mut GroupSwap)| {
        let (mut after, mut own) = (snapshot(), swap(60 * MIB, 58 * MIB));
        of(&mut after, own.group.as_mut().unwrap());
        let found = find_in(&after, own, vec![streamer("/sys/fs/cgroup/db")]);
        let [found] = &found[..] else { panic!("{found:?}") };
        let is_advised = acts(found).iter().any(|act| act.contains("swap.max"));
        let is_explained = found.remarks.iter().any(|remark| remark.starts_with("memory.swap.max=0 is not"));
        assert_ne!(is_advised, is_explained, "{found:#?}");
        is_advised
    };
    assert!(is_advised(&|_, _| {}));
    assert!(!is_advised(&|_, own| own.has_memory_limit_above = true));
    let above = MemoryCgroup { limited_by: Some(PathBuf::from("/sys/fs/cgroup")), ..group.clone() };
    assert!(!is_advised(&|after, _| after.databases[0].cgroup = Some(above.clone())));
    let full = |after: &mut Snapshot, _: &mut GroupSwap| {
        let memory = &mut after.host.memory;
        memory.available = memory.total / 10 + 59 * MIB;
    };
    assert!(!is_advised(&full));
    let unlimited = MemoryCgroup { limit: None, effective_limit: None, ..group };
    let reason = |available| {
        let memory = MemInfo { available, ..snapshot().host.memory };
        reason_for_swap(&memory, &unlimited, &GroupSwap::default(), 60 * MIB)
    };
    let tenth = snapshot().host.memory.total / 10;
    assert_eq!(reason(tenth + 60 * MIB), None);
    assert!(reason(tenth + 59 * MIB).is_some() && reason(0).is_some());
}

#[test]
fn the_undo_has_the_groups_own_limit_and_not_the_one_above() {
    let of = |own_limit| {
        let mut own = swap(60 * MIB, 58 * MIB);
        let group = own.group.as_mut().unwrap();
        (group.limit, group.own_limit) = (Some(100 * MIB), own_limit);
        let found = find_in(&snapshot(), own, vec![streamer("/sys/fs/cgroup/db")]);
        found[0].fixes[1].terms.undo.clone()
    };
    assert_eq!(of(None), "echo max >/sys/fs/cgroup/db/memory.swap.max");
    assert_eq!(of(Some(GIB)), "echo 1073741824 >/sys/fs/cgroup/db/memory.swap.max");
}

#[test]
fn rates_are_over_the_time_between_the_readings_of_swap() {
    let longer = DatabaseSwap {
        period: Duration::from_secs(20),
        came_back: Some(20 * SWAP_IN_RATE_MIN),
        ..swap(60 * MIB, 0)
    };
    let found = find_in(&snapshot(), longer, Vec::new());
    assert_eq!(found[0].title, "its memory comes back from swap, 1 MiB/s");
}

#[test]
fn other_programs_are_mentioned_only_where_the_group_may_hold_them() {
    let alone = swap(60 * MIB, 0);
    assert!(of_group(&alone).unwrap().text.starts_with("its memory cgroup has 60 MiB in swap; "));
    let shared = DatabaseSwap { is_group_own: false, ..alone };
    assert!(of_group(&shared).unwrap().text.contains("in swap, other programs in it included; "));
}

#[test]
fn version_1_has_its_own_swappiness_and_a_low_one_is_not_lowered() {
    let mut after = snapshot();
    after.databases[0].cgroup.as_mut().unwrap().version = CgroupVersion::V1;
    let file = Some(PathBuf::from("/m/db/memory.swappiness"));
    let mut own = swap(60 * MIB, 0);
    own.swappiness = Some(Swappiness { value: 60, group_file: file.clone() });
    let found = find_in(&after, own.clone(), Vec::new());
    assert_eq!((found[0].severity, &*found[0].title), (Severity::Note, "60 MiB of its memory are in swap"));
    assert_eq!(acts(&found[0]), ["echo 1 >/m/db/memory.swappiness"]);
    assert_eq!(found[0].fixes[0].terms.undo, "echo 60 >/m/db/memory.swappiness");
    own.swappiness = Some(Swappiness { value: 1, group_file: file });
    assert!(find_in(&after, own, Vec::new())[0].fixes.is_empty());
}
