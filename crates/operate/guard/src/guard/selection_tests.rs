//! Tests of which databases are watched and acted on, by the lists and the canary of the
//! configuration. As root: each process runs as a user of its own.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::claim_tests::{DATABASE, Fake, OTHER, Watch, directory, log, resident, scratch, whole};
use crate::config::Options;
use crate::directory::DatabaseKey;
use crate::{Selector, Targets};

/// A server, and its older binlog, which is released unless something keeps it.
struct Server {
    fake: Fake,
    data: PathBuf,
    old: PathBuf,
}

impl Server {
    fn start(parent: &Path, name: &str, user: u32) -> Self {
        let data = directory(parent.join(name), user, 0o755);
        std::fs::write(data.join("binlog.index"), "").unwrap();
        let [old, _] = [1, 2].map(|number| log(data.join(format!("binlog.00000{number}")), user, 0o600));
        let fake = Fake::start(parent, "mariadbd", user, &data, "exec 3>>binlog.000002");
        Self { fake, data, old }
    }

    fn pid(&self) -> u32 {
        self.fake.pid()
    }
}

fn selectors(texts: &[String]) -> Vec<Selector> {
    texts.iter().map(|text| text.parse().unwrap_or_else(|error| panic!("{error}"))).collect()
}

fn options(servers: &[&Server], targets: Targets) -> Options {
    let pids = servers.iter().map(|server| server.pid()).collect();
    Options { find: false, pids, targets, ..Options::default() }
}

#[test]
fn only_listed_databases_are_watched() {
    let Some(dir) = scratch("only what is listed") else { return };
    let one = Server::start(dir.path(), "one", DATABASE);
    let two = Server::start(dir.path(), "two", OTHER);
    let only = selectors(&[format!("dir:{}", one.data.display())]);
    let mut options = options(&[], Targets { only, ..Targets::default() });
    options.find = true;
    let mut watch = Watch::with(options.clone());
    watch.tick_until_released(&one.old);
    watch.tick_past_listing();
    assert_eq!(resident(&two.old), whole());
    assert_eq!(watch.report_count("Refused", two.pid(), "NotSelected"), 1, "{:#?}", watch.reports);
    assert_eq!(watch.report_count("Found", two.pid(), ""), 0, "{:#?}", watch.reports);
    // A database that the operator names is selected.
    let named = Options { find: false, pids: vec![two.pid()], ..options };
    Watch::with(named).tick_until_released(&two.old);
}

#[test]
fn an_excluded_database_is_not_watched_even_if_it_is_named() {
    let Some(dir) = scratch("never") else { return };
    let one = Server::start(dir.path(), "one", DATABASE);
    let two = Server::start(dir.path(), "two", OTHER);
    let never = selectors(&[format!("user:{OTHER}"), format!("dir:{}/three", dir.path().display())]);
    let three = directory(dir.path().join("three"), DATABASE, 0o755);
    std::fs::write(three.join("binlog.index"), "").unwrap();
    let [named, _] = [1, 2].map(|number| log(three.join(format!("binlog.00000{number}")), DATABASE, 0o600));
    let mut options = options(&[&one, &two], Targets { never, ..Targets::default() });
    options.directories = vec![three];
    let mut watch = Watch::with(options.clone());
    watch.tick_until_released(&one.old);
    watch.tick_past_listing();
    assert_eq!([resident(&two.old), resident(&named)], [whole(); 2]);
    assert_eq!(watch.report_count("Refused", two.pid(), "Never"), 1, "{:#?}", watch.reports);
    let refused = |line: &&String| line.starts_with("Refused { pid: None") && line.contains("Never");
    assert_eq!(watch.reports.iter().filter(refused).count(), 1, "{:#?}", watch.reports);
    // As after SIGHUP, which a guard that has spent all its time heeds just as soon.
    watch.guard.watched.listing_time.spend(Duration::from_secs(3600));
    watch.guard.watched.jobs.turns.spend(&DatabaseKey::Process(two.pid()), Duration::from_secs(3600));
    options.targets = Targets::default();
    watch.guard.reload(options).unwrap();
    watch.tick_until_released(&two.old);
    watch.tick_until_released(&named);
}

#[test]
fn databases_outside_the_canary_are_only_reported_on() {
    let Some(dir) = scratch("a canary") else { return };
    let one = Server::start(dir.path(), "one", DATABASE);
    let two = Server::start(dir.path(), "two", OTHER);
    let canary = Some(format!("pid:{}", one.pid()).parse().unwrap());
    let mut options = options(&[&one, &two], Targets { canary, ..Targets::default() });
    let mut watch = Watch::with(options.clone());
    watch.tick_until_released(&one.old);
    watch.tick_past_listing();
    assert_eq!(resident(&two.old), whole());
    let would = |watch: &Watch, server: &Server| {
        let path = server.old.display().to_string();
        watch.reports.iter().filter(|line| line.starts_with("Would") && line.contains(&path)).count()
    };
    assert_eq!(would(&watch, &one), 0, "{:#?}", watch.reports);
    assert!(would(&watch, &two) > 0, "{:#?}", watch.reports);
    assert!(watch.guard.summary().released_total_bytes == whole());
    options.targets.canary = None;
    watch.guard.reload(options).unwrap();
    watch.tick_until_released(&two.old);
}

#[test]
fn a_server_that_changes_its_user_is_selected_by_the_new_one() {
    let Some(dir) = scratch("a server that takes another user") else { return };
    let data = directory(dir.path().join("data"), DATABASE, 0o755);
    std::fs::write(data.join("binlog.index"), "").unwrap();
    let names = [1, 2].map(|number| log(data.join(format!("binlog.00000{number}")), DATABASE, 0o600));
    let fake = Fake::start(dir.path(), "mariadbd", 0, &data, "exec 3>>binlog.000002");
    let never = selectors(&[format!("user:{DATABASE}")]);
    let options = Options {
        find: false,
        pids: vec![fake.pid()],
        targets: Targets { never, ..Targets::default() },
        ..Options::default()
    };
    let mut watch = Watch::with(options);
    watch.tick_until_released(&names[0]);
    let program = dir.path().join("programs-0/mariadbd");
    let again = format!(
        "exec setpriv --reuid={DATABASE} --regid={DATABASE} --clear-groups {} -c \
         'while :; do sleep 0.1; done'\n",
        program.display()
    );
    std::fs::write(data.join("go.new"), again).unwrap();
    std::fs::rename(data.join("go.new"), data.join("go")).unwrap();
    let began = Instant::now();
    while watch.report_count("Refused", fake.pid(), "Never") == 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "{:#?}", watch.reports);
        watch.tick();
        std::thread::sleep(Duration::from_millis(100));
    }
    log(data.join("binlog.000001"), DATABASE, 0o600);
    watch.tick_past_listing();
    assert_eq!(resident(&names[0]), whole());
}
