use super::*;
use crate::FixKind;
use crate::testing::{DEV, GIB, MIB, pages, pauses, sample};
use pagekeeper_kernel::Inode;
use pagekeeper_kernel::pressure::{BackingDevice, BackingDeviceStats};
use pagekeeper_observe::Snapshot;
use pagekeeper_trace::DirtyLevels;

fn find(observation: &Observation<'_>) -> Vec<Finding> {
    super::find(observation, EarlierFindings(&[]))
}

/// Returns limits of 16 and 32 MiB in force; in 10 s `dirtied` MiB were dirtied and `written` MiB
/// written.
fn low_limits(dirtied: u64, written: u64) -> (Snapshot, Snapshot) {
    let before = sample();
    let mut after = sample();
    let dirty = &mut after.host.dirty;
    dirty.parameters.background = DirtyLimit::Bytes(16 * MIB);
    dirty.parameters.limit = DirtyLimit::Bytes(32 * MIB);
    dirty.thresholds = dirty.parameters.thresholds(dirty.dirtyable);
    dirty.dirty = 4 * MIB;
    dirty.writeback = 8 * MIB;
    let machine = &mut after.change.as_mut().unwrap().machine;
    (machine.dirtied, machine.written) = (Some(dirtied * MIB), Some(written * MIB));
    (before, after)
}

fn pause(snapshot: &mut Snapshot, pid: u32, milliseconds: u64) {
    let levels = DirtyLevels { dirty: 31 * MIB, ..DirtyLevels::default() };
    let trace = snapshot.change.as_mut().unwrap().trace.as_mut().unwrap();
    trace.pauses.as_mut().unwrap().push(pauses(pid, "db", &[milliseconds], levels));
    let file = Inode { dev: DEV, ino: 1 };
    trace.pages.as_mut().unwrap().push(pages(file, pid, "db", 300 * MIB, 0));
}

fn text(finding: &Finding) -> String {
    finding.evidence.iter().map(|evidence| evidence.text.clone() + "\n").collect()
}

#[test]
fn limits_that_nobody_reaches_are_no_finding() {
    let (before, after) = low_limits(100, 100);
    assert_eq!(find(&Observation::new(&before, &after)), []);
    assert_eq!(find(&Observation::new(&sample(), &sample())), []);
}

#[test]
fn full_limits_are_reported_with_the_effect_of_other_limits() {
    let (before, mut after) = low_limits(400, 380);
    // A quarter of the time: 30 MiB/s that would have been 40.
    pause(&mut after, 100, 2500);
    let stats = |dirtied: u64| BackingDeviceStats {
        writeback: 0,
        dirty: 0,
        dirty_threshold: 9 * MIB,
        dirtied,
        written: dirtied / 2,
    };
    let device = |dirtied| BackingDevice {
        name: "8:0".to_owned(),
        read_ahead: 0,
        max_ratio: 100,
        max_bytes: None,
        strict_limit: None,
        stats: Some(stats(dirtied)),
    };
    let mut before = before;
    before.host.devices = vec![(DEV, device(0)), (DEV + 1, device(0))];
    after.host.devices = vec![(DEV, device(300 * MIB)), (DEV + 1, device(300 * MIB))];
    let findings = find(&Observation::new(&before, &after));
    assert_eq!(findings.len(), 1, "{findings:?}");
    let found = &findings[0];
    assert_eq!((found.severity, &found.database), (Severity::Warning, &None));
    assert_eq!(
        found.title,
        "dirty pages reached their limits: throttling begins at 24 MiB, 31 MiB were dirty"
    );
    let said = text(found);
    for part in [
        "begins at 16 MiB (vm.dirty_background_bytes=16777216; vm.dirty_background_ratio is 0 and without effect)",
        "throttling at 24 MiB, and the limit is 32 MiB (vm.dirty_bytes=33554432;",
        "31 MiB were dirty or under writeback (7 MiB over where throttling begins); 12 MiB at the end",
        "dirty for 30 s, by a thread that wakes every 5 s",
        "40 MiB/s were made dirty, and about 50 MiB/s would have been without throttling; 38 MiB/s were written",
        "for device 8:0: 30 MiB/s made dirty, 15 MiB/s written; its share of the limit is 9 MiB",
        "with vm.dirty_bytes=67108864 (64 MiB) after 1 s more",
        "a guess",
    ] {
        assert!(said.contains(part), "{part:?} in {said}");
    }
    assert_eq!(said.matches("for device 8:0").count(), 1, "partitions have one device: {said}");
    // 12 MiB/s more than is written for 10 s is 120 MiB; with a quarter in reserve throttling would
    // start at 150 MiB.
    assert_eq!(found.fixes[0].act, format!("sysctl -w vm.dirty_bytes={}", 320 * MIB));
    let note = &found.fixes[0].does;
    for part in [
        "estimate",
        "320 MiB",
        "50 MiB/s made dirty against 38 MiB/s written, for 10.0 s",
        ", 8.4 s at the rate",
    ] {
        assert!(note.contains(part), "{part:?} in {note}");
    }
}

#[test]
fn a_devices_own_limit_is_told_from_the_global_one() {
    let (before, mut after) = low_limits(400, 380);
    // Pauses would start at 24 MiB; 5 MiB were dirty.
    let levels = DirtyLevels {
        dirty: 5 * MIB,
        setpoint: 28 * MIB,
        limit: 32 * MIB,
        device_dirty: 4 * MIB,
        device_setpoint: 3 * MIB,
    };
    let dirty = &mut after.host.dirty;
    (dirty.dirty, dirty.writeback) = (4 * MIB, 0);
    let trace = after.change.as_mut().unwrap().trace.as_mut().unwrap();
    trace.pauses.as_mut().unwrap().push(pauses(100, "db", &[60; 20], levels));
    let found = find(&Observation::new(&before, &after));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].title, "device 8:0 has a limit on dirty pages of its own, and that was full");
    assert_eq!(found[0].severity, Severity::Warning);
    assert!(text(&found[0]).contains("which could not be read"), "{}", text(&found[0]));
    let device = BackingDevice {
        name: "8:0".to_owned(),
        read_ahead: 0,
        max_ratio: 1,
        max_bytes: Some(2 * MIB),
        strict_limit: Some(true),
        stats: None,
    };
    after.host.devices = vec![(DEV, device)];
    let found = find(&Observation::new(&before, &after));
    let said = text(&found[0]);
    for part in [
        "5 MiB were dirty on the whole host, of 24 MiB where throttling begins; for device 8:0 it was 4 MiB",
        "in /sys/class/bdi/8:0: strict_limit=1",
        "max_ratio=1, max_bytes=2097152",
    ] {
        assert!(said.contains(part), "{part:?} in {said}");
    }
    assert!(!said.contains("estimated"), "{said}");
    let acts: Vec<&str> = found[0].fixes.iter().map(|fix| fix.act.as_str()).collect();
    assert_eq!(
        acts,
        ["echo 0 >/sys/class/bdi/8:0/strict_limit", "echo 4 >/sys/class/bdi/8:0/max_ratio"],
        "a higher vm.dirty_bytes does nothing"
    );
    // If the global limit was full as well, both are reported.
    pause(&mut after, 101, 100);
    after.databases[0].workers = vec![101];
    assert_eq!(find(&Observation::new(&before, &after)).len(), 2);
}

#[test]
fn pauses_of_other_programs_are_at_most_a_note() {
    let (before, mut after) = low_limits(400, 400);
    pause(&mut after, 77, 10);
    let findings = find(&Observation::new(&before, &after));
    assert_eq!(findings[0].severity, Severity::Note);
    // Written as fast as dirtied: room for the maximum is enough.
    assert_eq!(findings[0].fixes[0].act, format!("sysctl -w vm.dirty_bytes={}", 64 * MIB));
}

#[test]
fn no_limit_bridges_a_disk_that_is_far_too_slow() {
    let (before, mut after) = low_limits(10_000, 1000);
    pause(&mut after, 100, 100);
    after.host.dirty.dirtyable = 2 * GIB;
    let observation = Observation::new(&before, &after);
    assert_eq!(find(&observation)[0].fixes[0].kind, FixKind::Advice);
    assert_eq!(raise(&observation), None);
    // Nothing is advised if nothing was counted.
    after.change.as_mut().unwrap().machine.written = None;
    assert_eq!(find(&Observation::new(&before, &after))[0].fixes, []);
}

#[test]
fn odd_settings_are_notes() {
    let mut parameters = sample().host.dirty.parameters;
    let of = |parameters: &DirtyParameters| {
        let findings = odd(parameters, &parameters.thresholds(10 * GIB), 10 * GIB);
        findings.into_iter().map(|finding| (finding.title, finding.fixes[0].act.clone())).collect::<Vec<_>>()
    };
    assert_eq!(of(&parameters), []);
    parameters.background = DirtyLimit::Bytes(GIB);
    parameters.limit = DirtyLimit::Bytes(GIB);
    let found = of(&parameters);
    assert!(found[0].0.contains("at or above the limit"), "{found:?}");
    assert_eq!(found[0].1, format!("sysctl -w vm.dirty_background_bytes={}", GIB / 4));
    parameters.background = DirtyLimit::Bytes(GIB - MIB);
    assert!(of(&parameters)[0].0.contains("close below the limit"));
    parameters.background = DirtyLimit::Ratio(1);
    parameters.writeback_centisecs = 0;
    let found = of(&parameters);
    assert_eq!(found.len(), 1);
    assert!(found[0].0.contains("periodic writeback is off"), "{found:?}");
}

#[test]
fn missing_tracing_is_reported_once_and_no_task_is_blamed() {
    let (before, mut after) = low_limits(10_000, 400);
    after.change.as_mut().unwrap().trace = None;
    after.change.as_mut().unwrap().machine.io_stalled = Some(Duration::from_secs(2));
    assert_eq!(find(&Observation::new(&before, &after)), [], "not full");
    after.host.dirty.writeback = 30 * MIB;
    let observation = Observation::new(&before, &after);
    let findings = crate::examine(&observation);
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!((findings[0].severity, &findings[0].database), (Severity::Warning, &None));
    assert!(findings[0].cost.text.contains("is not known without tracing"), "{}", findings[0].cost.text);
    assert!(
        text(&findings[0]).contains("waited for storage during 2.0 s of 10.0 s"),
        "{}",
        text(&findings[0])
    );
}

#[test]
fn a_writeback_of_less_than_a_second_is_not_shown_as_zero() {
    let flow = DirtyFlow { dirtied: 0, written: 1 << 30, wanted: 0 };
    let note =
        LimitRaise { limit: 64 * MIB, burst: Duration::from_secs(10), flow, undo: String::new() }.fix().does;
    assert!(note.contains(", 62.5 ms at the rate that was watched,"), "{note}");
}
