//! Tests of processes that a user asked for, of members, and of the limits of one user.

use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Child, Command};

use super::*;
use crate::limits::PROCESSES_PER_USER;

const USER: u32 = 1001;
const ANOTHER: u32 = 1002;

fn user() -> Requester {
    Requester { user: USER, groups: vec![USER] }
}

/// A process that runs until it is dropped.
struct Sleeper(Child);

impl Sleeper {
    fn new() -> Self {
        Self(Command::new("sleep").arg("600").spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn assert_released_for_user(subject: &Subject, owner: u32, mode: u32) {
    chown(&subject.path, Some(owner), Some(owner)).unwrap();
    std::fs::set_permissions(&subject.path, PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
fn only_files_that_the_user_may_read_are_released() {
    for place in places() {
        let open = Subject::clean(&place, "open", 4 * MIB);
        let own = Subject::clean(&place, "own", 4 * MIB);
        let private = Subject::clean(&place, "private", 4 * MIB);
        assert_released_for_user(&open, ANOTHER, 0o644);
        assert_released_for_user(&own, USER, 0o600);
        assert_released_for_user(&private, ANOTHER, 0o600);
        let mut run = Run::new(Verdict::Release);
        let asked = Sleeper::new();
        let id = run.follower.follow_for(asked.pid(), user()).unwrap();
        // As if it were set-user-ID.
        run.send(PageEvent::Began { process: 1, parent: asked.pid(), name: "child".to_owned() });
        for subject in [&open, &own, &private] {
            run.added(1, subject.name, 0..4 * MIB);
        }
        run.ended(1);
        run.until(|run| run.follower.request_report(id).unwrap().files == 0);
        assert_eq!([&open, &own, &private].map(Subject::resident), [0, 0, 4 * MIB]);
        let report = run.follower.request_report(id).unwrap();
        let totals =
            StreamTotals { added: 12 * MIB, released: 8 * MIB, resident: 4 * MIB, ..StreamTotals::default() };
        assert_eq!(report, RequestReport { totals, running: 0, files: 0 });
        assert_eq!(run.totals(), totals);
        run.follower.forget_request(id);
        assert_eq!(run.follower.request_report(id), None);
    }
}

#[test]
fn later_pages_of_a_users_process_are_checked_again() {
    for place in places() {
        let private = Subject::clean(&place, "private", 8 * MIB);
        assert_released_for_user(&private, ANOTHER, 0o600);
        let mut run = Run::new(Verdict::Release);
        run.began(1);
        run.added(1, private.name, 0..4 * MIB);
        run.used(1, true, private.name, 0..4 * MIB);
        run.until(|run| run.totals().released == 4 * MIB);
        let asked = Sleeper::new();
        run.follower.follow_for(asked.pid(), user()).unwrap();
        run.added(asked.pid(), private.name, 4 * MIB..8 * MIB);
        run.ended(1);
        run.ended(asked.pid());
        run.until_done();
        assert_eq!((private.resident(), run.totals().released), (4 * MIB, 4 * MIB));
    }
}

#[test]
fn a_child_with_a_lost_start_event_counts_as_the_users() {
    for place in places() {
        let open = Subject::clean(&place, "open", 4 * MIB);
        let mut run = Run::new(Verdict::Release);
        let asked = Sleeper::new();
        run.follower.follow_for(asked.pid(), user()).unwrap();
        run.added(1, open.name, 0..4 * MIB);
        // The process has become another program, whose name is not to be followed.
        run.began(1);
        run.ended(1);
        run.ended(asked.pid());
        run.until_done();
        assert_eq!((open.resident(), run.totals().released), (4 * MIB, 0));
    }
}

#[test]
fn sums_of_a_request_count_only_its_processes() {
    for place in places() {
        let (of_request, of_another) =
            (Subject::clean(&place, "request", 4 * MIB), Subject::clean(&place, "another", 8 * MIB));
        let mut run = Run::new(Verdict::Release);
        run.follower.follow_chosen(vec!["reader".to_owned()], None);
        let asked = Sleeper::new();
        let id = run.follower.follow_for(asked.pid(), Requester { user: 0, groups: vec![0] }).unwrap();
        run.began(1);
        run.added(1, of_another.name, 0..8 * MIB);
        run.added(asked.pid(), of_request.name, 0..4 * MIB);
        run.step();
        let report = run.follower.request_report(id).unwrap();
        assert_eq!((report.totals.added, report.running, report.files), (4 * MIB, 0, 1));
        run.ended(1);
        run.ended(asked.pid());
        run.until_done();
        assert_eq!(run.follower.request_report(id).unwrap().totals.released, 4 * MIB);
        assert_eq!(run.totals().released, 12 * MIB);
    }
}

#[test]
fn a_request_that_is_withdrawn_leaves_no_process_followed() {
    let mut run = Run::new(Verdict::Release);
    run.follower.follow_chosen(vec!["reader".to_owned()], None);
    let (asked, other) = (Sleeper::new(), Sleeper::new());
    let id = run.follower.follow_for(asked.pid(), user()).unwrap();
    let kept = run.follower.follow_for(other.pid(), user()).unwrap();
    run.send(PageEvent::Began { process: 1, parent: asked.pid(), name: "child".to_owned() });
    run.step();
    assert_eq!(run.follower.running(), 3);
    run.follower.withdraw_request(id);
    let mut unfollowed = lock(&run.hand.unfollowed).clone();
    unfollowed.sort_unstable();
    assert_eq!(unfollowed, [1, asked.pid()]);
    assert_eq!((run.follower.running(), run.follower.request_report(id)), (1, None));
    assert!(run.follower.request_report(kept).is_some());
}

#[test]
fn only_members_among_all_started_programs_are_followed() {
    for place in places() {
        let subject = Subject::clean(&place, "file", 8 * MIB);
        let mut run = Run::new(Verdict::Release);
        run.follower.follow_chosen(vec!["tar".to_owned()], Some(Box::new(|pid| pid == 7)));
        run.began(7);
        run.began(8);
        run.added(7, subject.name, 0..4 * MIB);
        // These events were in flight before it was dropped: they count as uses by others.
        run.added(8, subject.name, 4 * MIB..8 * MIB);
        run.used(8, true, subject.name, 0..2 * MIB);
        run.send(PageEvent::Began { process: 9, parent: 8, name: "child".to_owned() });
        run.send(PageEvent::Began { process: 10, parent: 7, name: "child".to_owned() });
        run.step();
        assert_eq!(run.follower.running(), 2, "7 and its child");
        assert_eq!(*lock(&run.hand.unfollowed), [8, 9]);
        for pid in [7, 10] {
            run.ended(pid);
        }
        run.until_done();
        assert_eq!(subject.resident(), 6 * MIB, "{:?}", run.totals());
        assert_eq!(run.totals().released, 2 * MIB);
    }
}

#[test]
fn a_user_has_processes_followed_up_to_a_limit() {
    let mut run = Run::new(Verdict::Release);
    // Root's processes are not counted. No process of these numbers is running, so their user is
    // not known.
    let first = 1 << 22;
    let more = 100;
    for pid in (first..).take(PROCESSES_PER_USER + more) {
        run.began(pid);
    }
    run.step();
    assert_eq!(run.follower.running(), PROCESSES_PER_USER);
    assert_eq!(lock(&run.hand.unfollowed).len(), more);
}
