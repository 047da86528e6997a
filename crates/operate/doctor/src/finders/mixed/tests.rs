use super::*;
use crate::testing::{DEV, MIB, change, disk, file, opener, residency, sample};
use pagekeeper_observe::Snapshot;
use pagekeeper_policy::FileClass;
use pagekeeper_trace::{PageCounts, PageFlow, PageTotals, TaskIdentity};

fn find(observation: &Observation<'_>) -> Vec<Finding> {
    super::find(observation, EarlierFindings(&[]))
}

const DIRECT: OpenerKind = OpenerKind::Direct(AccessMode::ReadWrite);

/// Returns a table file that the server holds with `O_DIRECT`, 64 KiB of it resident, with further
/// openers.
fn table(name: &str, others: Vec<Opener>) -> File {
    let mut table = file(&format!("/var/lib/mysql/test/{name}"), FileClass::Data, 64 * MIB, 64 << 10);
    table.openers.push(opener(100, "mariadbd", DIRECT));
    table.openers.extend(others);
    table
}

fn sample_of(files: Vec<File>) -> Snapshot {
    Snapshot { files, ..sample() }
}

fn find_in(snapshot: &Snapshot, measured: Option<MixedProfile>) -> Vec<Finding> {
    let before = crate::testing::sample();
    let mut observation = Observation::new(&before, snapshot);
    if let Some(mixed) = measured {
        observation.disks.push((DEV, disk(mixed)));
    }
    find(&observation)
}

#[test]
fn only_files_with_direct_io_and_another_use_are_reported() {
    let mut alone = table("alone.ibd", Vec::new());
    alone.residency = Some(residency(0, 0));
    let mut buffered = table("buffered.ibd", Vec::new());
    buffered.openers[0].kind = OpenerKind::Buffered(AccessMode::ReadWrite);
    let mut shown = table("shown.ibd", Vec::new());
    shown.residency = Some(residency(0, 0));
    shown.openers.push(opener(7, "lsof", OpenerKind::Buffered(AccessMode::Neither)));
    let closed = file("/var/lib/mysql/test/closed.ibd", FileClass::Data, MIB, MIB);
    assert_eq!(find_in(&sample_of(vec![alone, buffered, shown, closed]), None), []);
}

#[test]
fn each_kind_of_use_is_distinguished() {
    for (kind, mixed_with) in [
        (OpenerKind::Buffered(AccessMode::WriteOnly), MixedWith::Writer),
        (OpenerKind::Buffered(AccessMode::ReadWrite), MixedWith::Writer),
        (OpenerKind::Mapped { writable: true }, MixedWith::Writer),
        (OpenerKind::Buffered(AccessMode::ReadOnly), MixedWith::Reader),
        (OpenerKind::Mapped { writable: false }, MixedWith::Reader),
        (DIRECT, MixedWith::Leftover),
        (OpenerKind::Buffered(AccessMode::Neither), MixedWith::Leftover),
    ] {
        let table = table("t.ibd", vec![opener(7, "other", kind)]);
        assert_eq!(super::mixed_with(&sample(), &table), Some(mixed_with), "{kind:?}");
    }
}

#[test]
fn a_database_that_uses_both_is_not_asked_to_stop() {
    let after = |profile: &str, path: &str, others: Vec<Opener>| {
        let mut file = file(path, FileClass::Data, 64 * MIB, 32 * MIB);
        file.openers.push(opener(100, profile, OpenerKind::Direct(AccessMode::ReadOnly)));
        file.openers.extend(others);
        Snapshot {
            databases: vec![crate::testing::database(profile, 100, "/d")],
            files: vec![file],
            ..sample()
        }
    };
    let own = |kind| vec![opener(100, "itself", kind)];
    let part = "/d/store/5a1/all_1_1_0/value.bin";
    for others in [
        vec![],
        own(OpenerKind::Buffered(AccessMode::ReadOnly)),
        own(OpenerKind::Buffered(AccessMode::ReadWrite)),
        own(OpenerKind::Mapped { writable: false }),
    ] {
        let found = find_in(&after("clickhouse", part, others), None);
        assert_eq!((found.len(), found[0].severity), (1, Severity::Note), "{found:?}");
        assert_eq!(
            found[0].title,
            "1 file used with O_DIRECT and through the page cache, 32 MiB resident: the database uses both on purpose"
        );
        assert_eq!(found[0].fixes, []);
        let offered = found[0].pagekeeper.as_deref().unwrap();
        assert!(offered.starts_with("Leaves them to the database"), "{offered}");
    }
    let mapped = own(OpenerKind::Mapped { writable: false });
    let found = find_in(&after("opensearch", "/d/indices/U/0/index/_1.vec", mapped), None);
    let evidence = &found[0].evidence[0].text;
    assert!(evidence.contains("mapped by itself (process 100, the database itself); "), "{evidence}");
    // Other programs are distinguished from it.
    let mut both = own(OpenerKind::Buffered(AccessMode::ReadOnly));
    both.push(opener(7, "scrub", OpenerKind::Buffered(AccessMode::WriteOnly)));
    let found = find_in(&after("clickhouse", part, both), None);
    assert!(found[0].title.contains("by a writer"), "{found:?}");
    assert_eq!(found[0].fixes[0].act, "let scrub (process 7) use O_DIRECT too, or stop it");
    // Another program's direct I/O beside a database that uses only the page cache.
    let mut backup = after("postgresql", "/d/base/5/2619", Vec::new());
    backup.files[0].openers = vec![
        opener(7, "dd", OpenerKind::Direct(AccessMode::ReadOnly)),
        opener(100, "postgres", OpenerKind::Buffered(AccessMode::ReadWrite)),
    ];
    assert_eq!(find_in(&backup, None), []);
    // A worker is the database, too.
    let mut worker =
        after("clickhouse", part, vec![opener(101, "worker", OpenerKind::Buffered(AccessMode::ReadOnly))]);
    assert_eq!(super::mixed_with(&worker, &worker.files[0]), Some(MixedWith::Reader));
    worker.databases[0].workers.push(101);
    assert_eq!(super::mixed_with(&worker, &worker.files[0]), Some(MixedWith::OnPurpose));
    // For a directory whose database does not run, any opener with O_DIRECT counts as the database.
    worker.databases[0].pid = None;
    worker.files[0].openers[1].pid = 100;
    assert_eq!(super::mixed_with(&worker, &worker.files[0]), Some(MixedWith::OnPurpose));
}

#[test]
fn reads_by_others_are_known_by_tracing_or_by_growth() {
    let table = table("a.ibd", Vec::new());
    let inode = table.inode;
    let after = sample_of(vec![table]);
    let mut before = after.clone();
    let was_read = |before: &Snapshot, change| {
        let after = Snapshot { change: Some(change), ..after.clone() };
        was_read_through_cache(&Observation::new(before, &after), &after.files[0])
    };
    let traced = |pages| {
        let mut change = change();
        change.trace.as_mut().unwrap().pages = pages;
        change
    };
    let by = |pid, name| Some(vec![crate::testing::pages(inode, pid, name, MIB, 0)]);
    assert!(!was_read(&before, traced(Some(Vec::new()))));
    assert!(was_read(&before, traced(by(7, "cat"))));
    assert!(!was_read(&before, traced(by(100, "mariadbd"))), "its database leaves pages, and reads none");
    // Without tracing.
    assert!(!was_read(&before, traced(None)));
    before.files[0].residency = Some(residency(4096, 0));
    assert!(was_read(&before, traced(None)));
    before.files.clear();
    assert!(was_read(&before, traced(None)), "what was resident before is not known");
}

#[test]
fn leftovers_are_reported_with_their_place_and_the_measured_cost() {
    let after = sample_of(vec![table("a.ibd", Vec::new()), table("b.ibd", Vec::new())]);
    let before = sample();
    let mut observation = Observation::new(&before, &after);
    observation.stretches.push((after.files[0].inode, vec![0..16 << 10, MIB..MIB + (48 << 10)]));
    let found = find(&observation);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].title, "128 KiB left in the page cache of 2 files used with O_DIRECT");
    assert_eq!(found[0].severity, Severity::Note);
    assert_eq!(
        found[0].evidence[0].text,
        "a.ibd: O_DIRECT by mariadbd (process 100); 64 KiB resident (16 KiB from 0 B, 48 KiB from 1 MiB)"
    );
    assert!(
        found[0].cost.text.contains("`pagekeeper probe --save /var/lib/mysql/test` does that"),
        "{found:?}"
    );
    assert!(found[0].pagekeeper.as_ref().unwrap().contains("doctor --pid 100 --fix`"), "{found:?}");
    let half = MixedProfile { leftover_write: Some(1.0), ..MixedProfile::default() };
    assert!(
        find_in(&after, Some(half))[0].cost.text.starts_with("Not measured"),
        "of reads nothing is known"
    );
    for (read, write, severity, words) in [
        (1.0, 0.99, Severity::Note, "Next to nothing: direct reads ran at 100 %"),
        (0.8, 1.0, Severity::Warning, "Direct reads ran at 80 % of their rate"),
        (0.2, 1.0, Severity::Serious, "Direct reads ran at 20 % of their rate"),
    ] {
        let mixed = MixedProfile {
            leftover_read: Some(read),
            leftover_write: Some(write),
            ..MixedProfile::default()
        };
        let found = find_in(&after, Some(mixed));
        assert_eq!(found[0].severity, severity, "{found:?}");
        assert!(found[0].cost.text.starts_with(words), "{found:?}");
    }
}

#[test]
fn an_ended_reader_of_leftovers_is_named() {
    let after = sample_of(vec![table("a.ibd", Vec::new()), table("b.ibd", Vec::new())]);
    let mut change = change();
    let (a, b) = (after.files[0].inode, after.files[1].inode);
    let counts = |file, pid| crate::testing::pages(file, pid, "cat", 64 << 10, 0);
    // Five processes one after the other, none of which has the file open now.
    let of_b = crate::testing::pages(b, 900, "scrub", MIB, 0);
    change.trace.as_mut().unwrap().pages = Some((800..805).map(|pid| counts(a, pid)).chain([of_b]).collect());
    let found = find_in(&Snapshot { change: Some(change), ..after }, None);
    let texts: Vec<&str> = found[0].evidence.iter().map(|evidence| evidence.text.as_str()).collect();
    assert!(texts[0].contains("brought in through the page cache while watching by cat (5 processes);"));
    assert!(texts[1].contains("while watching by scrub (process 900);"), "{texts:?}");
    assert_eq!(
        found[0].fixes[0].act,
        "let scrub (process 900), cat (5 processes) use O_DIRECT too, or stop it"
    );
}

#[test]
fn few_of_many_readers_of_leftovers_are_named_and_never_the_database() {
    let mut one = table("a.ibd", Vec::new());
    one.database = Some(0);
    let inode = one.inode;
    let after = sample_of(vec![one]);
    let mut change = change();
    let hostile = (0..200).map(|pid| crate::testing::pages(inode, 800 + pid, &format!("x{pid}"), MIB, 0));
    let own = crate::testing::pages(inode, 100, "mariadbd", 9 * MIB, 0);
    change.trace.as_mut().unwrap().pages = Some(hostile.chain([own]).collect());
    let found = find_in(&Snapshot { change: Some(change.clone()), ..after.clone() }, None);
    let fix = &found[0].fixes[0].act;
    assert!(fix.starts_with("let x0 (process 800), "), "{fix}");
    assert!(fix.ends_with(" and 195 more use O_DIRECT too, or stop it"), "{fix}");
    assert!(found[0].evidence[0].text.contains(" and 195 more;"), "{found:?}");
    // If nobody else did, there is nobody to stop.
    change.trace.as_mut().unwrap().pages.as_mut().unwrap().drain(..200);
    let found = find_in(&Snapshot { change: Some(change), ..after }, None);
    assert!(!found[0].fixes.iter().any(|fix| fix.act.contains("or stop it")), "{found:?}");
}

#[test]
fn a_buffered_writer_is_the_costly_case() {
    let writer = opener(77, "dd", OpenerKind::Buffered(AccessMode::WriteOnly));
    let mixed = MixedProfile {
        buffered_writer_read: Some(0.42),
        buffered_writer_write: Some(0.48),
        ..MixedProfile::default()
    };
    let mut after = sample_of(vec![table("a.ibd", vec![writer.clone()]), table("b.ibd", Vec::new())]);
    // Open for writing, but nothing was seen to be written.
    let found = find_in(&after, Some(mixed));
    assert_eq!(found.len(), 2, "the writer's file, and the leftovers of the other");
    assert_eq!(found[0].severity, Severity::Warning);
    // Dirty pages.
    after.files[0].residency = Some(residency(64 << 10, 4096));
    let found = find_in(&after, Some(mixed));
    assert_eq!(found[0].severity, Severity::Serious);
    assert_eq!(
        found[0].cost.text,
        "Direct reads ran at 42 % of their rate and direct writes ran at 48 % of their rate beside a buffered \
         writer, as pagekeeper probe measured on this file system."
    );
    assert_eq!(
        found[0].evidence[0].text,
        "a.ibd: O_DIRECT by mariadbd (process 100); may be written through the page cache by dd (process 77); \
         written so while watching; 64 KiB resident"
    );
    assert_eq!(found[0].fixes[0].act, "let dd (process 77) use O_DIRECT too, or stop it");
    assert_eq!(found[0].pagekeeper, None);
    let found = find_in(&after, None);
    assert_eq!(found[0].severity, Severity::Warning);
    assert!(found[0].cost.text.starts_with("Not measured on this file system; "), "{found:?}");
}

#[test]
fn fixes_of_myrocks_are_for_its_own_files() {
    use crate::settings::{Engine, SettingOrigin, Settings};
    let acts = |name: &str, [output, reads]: [&str; 2]| {
        let after = sample_of(vec![table(name, Vec::new())]);
        let before = sample();
        let mut observation = Observation::new(&before, &after);
        let mut settings = Settings::new(Engine::MariaDb);
        settings.myrocks = true;
        let direct = "rocksdb_use_direct_io_for_flush_and_compaction";
        for (name, value) in [(direct, output), ("rocksdb_use_direct_reads", reads)] {
            settings.add(name, value, SettingOrigin::CommandLine);
        }
        observation.settings = vec![settings];
        find(&observation)[0].fixes.iter().map(|fix| fix.act.clone()).collect::<Vec<_>>()
    };
    assert_eq!(acts("t.ibd", ["ON", "OFF"]), [""; 0]);
    assert_eq!(
        acts("#rocksdb/000012.sst", ["OFF", "ON"]),
        ["rocksdb_use_direct_io_for_flush_and_compaction=ON"]
    );
    assert_eq!(acts("#rocksdb/000012.sst", ["ON", "OFF"]), [""; 0], "it is meant to be so");
}

#[test]
fn a_writer_is_seen_by_the_pages_it_brings_in() {
    let writer = opener(77, "dd", OpenerKind::Buffered(AccessMode::WriteOnly));
    let mut after = sample_of(vec![table("a.ibd", vec![writer])]);
    let mut change = change();
    let counts = |process| PageCounts {
        file: after.files[0].inode,
        task: Some(TaskIdentity { process, thread: process, name: "dd".to_owned() }),
        flow: PageFlow { added: PageTotals { folios: 1, bytes: 4096 }, removed: PageTotals::default() },
    };
    // First by another process, which only reads it.
    for (process, severity) in [(78, Severity::Warning), (77, Severity::Serious)] {
        change.trace.as_mut().unwrap().pages = Some(vec![counts(process)]);
        let snapshot = Snapshot { change: Some(change.clone()), ..after.clone() };
        let mixed = MixedProfile { buffered_writer_read: Some(0.4), ..MixedProfile::default() };
        assert_eq!(find_in(&snapshot, Some(mixed))[0].severity, severity, "{process}");
    }
    after.files.clear();
    assert_eq!(find_in(&after, None), []);
}

#[test]
fn many_files_are_listed_by_the_largest_and_a_sum() {
    let files = (0..20).map(|number| {
        let mut table = table(&format!("{number:02}.ibd"), Vec::new());
        table.residency = Some(residency((number + 1) * 4096, 0));
        table
    });
    let found = find_in(&sample_of(files.collect()), None);
    assert_eq!(found[0].evidence.len(), LISTED_PER_KIND_MAX + 1);
    assert!(found[0].evidence[0].text.starts_with("19.ibd: "), "{found:?}");
    assert_eq!(found[0].evidence[LISTED_PER_KIND_MAX].text, "15 files more, 480 KiB resident");
}
