use super::*;
use crate::config::{Groups as Rule, Options};
use crate::guard::Guard;
use pagekeeper_kernel::process::ProcRoot;

fn options(groups: &[&str]) -> Options {
    let groups = groups.iter().map(|glob| glob.parse::<crate::config::GroupGlob>().unwrap().0).collect();
    Options {
        find: false,
        cgroup: Rule { groups, percent: 1, reclaim: true, ..Rule::default() },
        ..Options::default()
    }
}

fn settings(groups: &[&str]) -> Settings {
    Settings::new(options(groups)).unwrap()
}

/// Returns the group of this process, as a rule would name it.
fn own_group() -> Option<String> {
    let roots = SysRoots::default();
    let place = MemoryPlace::of(&roots, std::process::id()).unwrap()?;
    let figures = MemoryCgroup::charged_in(&place).unwrap()?;
    Some(place.charged(&figures).to_str().unwrap().to_owned())
}

#[test]
fn a_rule_matches_a_group_by_its_whole_path() {
    let Some(own) = own_group() else {
        pagekeeper_testing::skip(
            "a_rule_matches_a_group_by_its_whole_path: this process is in no memory cgroup that can be seen",
        );
        return;
    };
    let roots = SysRoots::default();
    let mounts = roots.proc.own_mounts().unwrap();
    let mut report = Report::new(Instant::now());
    let mut is_met = |glob: &str| {
        let (mut sight, mut place) = (GroupSight::default(), None);
        let settings = settings(&[glob]);
        let seen = (&mut sight, &mut report);
        let met = group_of(&roots, std::process::id(), &mounts, &settings, seen, &mut place).unwrap();
        assert!(place.unwrap().starts_with(&own), "where it is, in any case");
        met.inspect(|met| assert_eq!(met.path, PathBuf::from(&own))).is_some()
    };
    assert!(is_met(&own));
    assert!(is_met("/**") || own == "/");
    for other in [format!("{own}x"), format!("{own}/below"), "/no-such-group".to_owned()] {
        assert!(!is_met(&other), "{other}");
    }
}

#[test]
fn a_dry_run_reports_a_group_with_an_odd_name() {
    let mut guard = Guard::new(options(&[]), ProcRoot::default()).unwrap();
    let report = &mut guard.report;
    report.events.clear();
    let mut known = CgroupRecord { path: PathBuf::from("/pod\n\u{1b}[2J/x"), ..CgroupRecord::default() };
    let seen = group_sample(1 << 29);
    let step = GroupStep { tight: true, reclaim: Err(GroupReason::Refaults) };
    known.tell(step, &seen, report);
    known.tell(step, &seen, report);
    assert_eq!(report.events.len(), 2, "each once: {:?}", report.events);
    let json = serde_json::to_string(&report.events[0]).unwrap();
    assert!(!json.contains('\n') && !json.contains('\u{1b}'), "{json}");
    known.tell(GroupStep { tight: false, reclaim: Err(GroupReason::Within) }, &seen, report);
    assert!(matches!(report.events[2], Event::Cgroup { news: GroupNews::Within, .. }));
}

#[test]
fn limit_events_of_a_group_are_counted_from_its_first_match() {
    let mut guard = Guard::new(options(&[]), ProcRoot::default()).unwrap();
    let report = &mut guard.report;
    report.events.clear();
    let mut known = CgroupRecord { path: "/db".into(), ..CgroupRecord::default() };
    let seen = group_sample(1 << 29);
    let at = |high, max, oom_kill| MemoryEvents { high, max, oom_kill, ..MemoryEvents::default() };
    for events in
        [at(Some(5), Some(70), Some(0)), at(Some(5), Some(70), Some(0)), at(Some(7), Some(70), Some(1))]
    {
        known.tell_limits(events, &seen, report);
    }
    let [Event::Cgroup { news, .. }] = &report.events[..] else { panic!("{:?}", report.events) };
    assert_eq!(*news, GroupNews::LimitsHit { high: 2, max: 0, oom: 0, oom_kill: 1 });
    // A counter that is gone or goes back counts nothing.
    known.tell_limits(at(None, Some(69), Some(1)), &seen, report);
    known.tell_limits(at(Some(9), Some(70), Some(1)), &seen, report);
    let [_, Event::Cgroup { news, .. }] = &report.events[..] else { panic!("{:?}", report.events) };
    assert_eq!(*news, GroupNews::LimitsHit { high: 0, max: 1, oom: 0, oom_kill: 0 });
}

#[test]
fn a_group_that_goes_away_is_forgotten_and_its_call_too() {
    let mut guard = Guard::new(options(&["/**"]), ProcRoot::default()).unwrap();
    let now = Instant::now();
    let groups = &mut guard.groups;
    groups.known.insert(5, CgroupRecord { path: "/gone".into(), tight: true, ..CgroupRecord::default() });
    let (give, take) = std::sync::mpsc::channel::<ReclaimOutcome>();
    groups.away.push((call(5, 1), take));
    drop(give);
    let settings = settings(&["/**"]);
    for pass in 0..5 {
        groups.look(
            &mut guard.watched,
            &settings,
            &mut guard.report,
            true,
            now + Duration::from_secs(60 * pass),
        );
    }
    assert!(groups.known.is_empty() && groups.away.is_empty());
    assert!(groups.reclaimed.is_empty());
}

fn group_sample(file: u64) -> GroupSample {
    GroupSample {
        group: 1,
        at: Duration::from_secs(1),
        limit: Some(1 << 30),
        file,
        unwritten: 0,
        refaulted: Some(0),
        stalled: None,
    }
}

fn call(id: u64, user: u32) -> ReclaimCall {
    ReclaimCall { id, party: Party::User(user), path: "/db".into(), sample: group_sample(1 << 29) }
}

#[test]
fn a_user_with_many_groups_delays_no_other_users_group() {
    let met = |count: u64| -> BTreeMap<u64, (Party, ())> {
        let many = (0..count).map(|id| (id, (Party::User(1), ())));
        many.chain([(count, (Party::User(2), ()))]).collect()
    };
    let order = |pass: u64| in_turn(met(5), pass).into_iter().map(|(id, _)| id).collect::<Vec<_>>();
    assert_eq!((order(0), order(1)), (vec![0, 5, 1, 2, 3, 4], vec![1, 5, 2, 3, 4, 0]));
    assert_eq!(in_turn::<Party, ()>(BTreeMap::new(), 7), []);
    // Calls that do not return take only a part of the places.
    let mut guard = Guard::new(options(&["/**"]), ProcRoot::default()).unwrap();
    let mut gives = Vec::new();
    for id in 0..4 {
        let (give, take) = std::sync::mpsc::channel::<ReclaimOutcome>();
        gives.push(give);
        guard.groups.away.push((call(id, 1), take));
    }
    let parties = || guard.groups.away.iter().map(|(call, _)| call.party);
    assert!(are_too_many(parties(), Party::User(1), CALLS_IN_FLIGHT_MAX));
    assert!(!are_too_many(parties(), Party::User(2), CALLS_IN_FLIGHT_MAX));
}

#[test]
fn an_exhausted_group_is_reported_once() {
    let mut guard = Guard::new(options(&["/**"]), ProcRoot::default()).unwrap();
    let (groups, report) = (&mut guard.groups, &mut guard.report);
    report.events.clear();
    groups.known.insert(1, CgroupRecord::default());
    for _ in 0..3 {
        groups.take(&call(1, 1), (Ok(ReclaimResult::Part), 0), report);
    }
    let reason = GroupReason::Exhausted;
    let [Event::Cgroup { news, .. }] = &report.events[..] else { panic!("{:?}", report.events) };
    assert_eq!(*news, GroupNews::Stopped { reason });
    assert!(groups.reclaimed.is_empty());
    groups.take(&call(1, 1), (Ok(ReclaimResult::All), 4096), report);
    groups.take(&call(1, 1), (Ok(ReclaimResult::Part), 4096), report);
    assert_eq!((report.events.len(), groups.reclaimed[Path::new("/db")]), (4, 8192));
}

#[test]
fn a_glob_without_a_match_is_reported_once_after_a_minute() {
    let mut report = Report::new(Instant::now());
    let settings = settings(&["/a/*", "/b/*", "/c/*"]);
    let globs = &settings.options.cgroup.groups;
    let now = Instant::now();
    let mut sight = GroupSight::default();
    assert!(sight.matches(globs, Path::new("/b/db")) && !sight.matches(globs, Path::new("/d")));
    sight.saw(Path::new("/d"), false);
    for seconds in [0, 59, 60, 120, 180] {
        sight.report(globs, &mut report, now + Duration::from_secs(seconds));
        assert_eq!(report.events.len(), if seconds < 60 { 0 } else { 2 }, "{:?}", report.events);
    }
    let said = format!("{:?}", report.events);
    assert!(said.contains("\"/a/*\"") && said.contains("one is in /d") && !said.contains("/b/"), "{said}");
    report.events.clear();
    let mut blind = GroupSight::default();
    blind.report(globs, &mut report, now);
    blind.report(globs, &mut report, now + Duration::from_secs(60));
    assert!(format!("{:?}", report.events).contains("can't be seen here"), "{:?}", report.events);
}

#[test]
fn a_refusal_is_reported_once_and_counts_no_bytes() {
    let mut guard = Guard::new(options(&["/**"]), ProcRoot::default()).unwrap();
    guard.report.events.clear();
    for _ in 0..3 {
        let refused =
            Ok(ReclaimResult::Refused("control groups of version 1 have no memory.reclaim".to_owned()));
        guard.groups.take(&call(1, 1), (refused, 0), &mut guard.report);
    }
    assert_eq!(guard.report.events.len(), 1, "{:?}", guard.report.events);
    assert!(guard.groups.reclaimed.is_empty());
}

#[test]
fn a_databases_access_is_the_lowest_of_its_directories() {
    use crate::directory::Directory;
    use pagekeeper_catalog::ownership::FileOwnership;
    let pid = std::process::id();
    let owners = |never: &[String]| {
        let targets = crate::Targets {
            never: never.iter().map(|selector| selector.parse().unwrap()).collect(),
            ..crate::Targets::default()
        };
        let options =
            Options { pids: vec![pid], profile: Some("generic".to_owned()), targets, ..options(&["/**"]) };
        let mut guard = Guard::new(options, ProcRoot::default()).unwrap();
        guard.decide(&mut |_| ());
        guard.watched.directories.clear();
        let access = |guard: &Guard| {
            let owners = guard.watched.owners(&guard.settings, &GroupMembers::default());
            owners.get(&pid).map(|owner| owner.access)
        };
        let none = access(&guard);
        for acts in [true, false] {
            let profile = guard.settings.named_profile().unwrap();
            let mut directory =
                Directory::new("/none".into(), Some(pid), None, profile, FileOwnership::Operator);
            directory.acts = acts;
            guard.watched.directories.push(Box::new(directory));
        }
        (none, access(&guard))
    };
    assert_eq!(owners(&[]), (None, Some(GroupAccess::Reported)));
    assert_eq!(owners(&[format!("pid:{pid}")]), (Some(GroupAccess::Never), Some(GroupAccess::Never)));
    assert_eq!(owners(&["pid:1".to_owned()]), (None, Some(GroupAccess::Reported)));
}
