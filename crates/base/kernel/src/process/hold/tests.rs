//! Holds of real processes, which are grandchildren: a waiter in this process would take the stops
//! of a child for its own.

use std::io::Write as _;
use std::process::Command;

use pagekeeper_testing::Grandchild;

use super::*;

/// A deadline longer than anything takes on a busy machine.
const TEST_WAIT_MAX: Duration = Duration::from_secs(20);

fn shell(script: &str) -> Grandchild {
    Grandchild::start(&["sh", "-c", script])
}

/// Holds a process until it has stopped, which takes longer on a busy machine.
fn hold(subject: &Grandchild, holds: &mut ProcessHolds) {
    until(|| holds.hold(subject.pid()).is_ok());
    until(|| {
        holds.poll();
        holds.is_held(subject.pid()) && holds.is_settled()
    });
}

/// Waits until a process's state letter is one of these and nobody traces it.
fn is_free_in(subject: &Grandchild, states: &str) {
    until(|| {
        let state = subject.status("State:").chars().next();
        state.is_some_and(|state| states.contains(state)) && subject.status("TracerPid:") == "0"
    });
}

fn until(mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + TEST_WAIT_MAX;
    while !is_so() {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs `run` with holds in a thread of its own; `None` if the kernel refuses tracing.
fn with_holds<T: Send>(run: impl FnOnce(&mut ProcessHolds) -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(|| run(&mut ProcessHolds::new())).join().unwrap())
}

/// Holds a process again and again until it has ended. Returns the number of holds.
fn until_gone(holds: &mut ProcessHolds, pid: u32, free: Duration) -> usize {
    let end = Instant::now() + TEST_WAIT_MAX;
    let mut held = 0;
    loop {
        match holds.hold(pid) {
            Ok(()) => held += 1,
            Err(error) if error.is_gone() => return held,
            // The process is about to become another program.
            Err(_) => {}
        }
        holds.let_go(pid);
        holds.poll();
        assert!(Instant::now() < end, "it has not ended after {held} holds");
        std::thread::sleep(free);
    }
}

/// A program that only computes.
const BUSY: &str = "while :; do :; done";

#[test]
fn a_held_process_stops_and_continues() {
    let subject = shell(BUSY);
    with_holds(|holds| {
        for _ in 0..20 {
            hold(&subject, holds);
            assert_eq!(subject.status("State:"), "t (tracing stop)");
            holds.let_go(subject.pid());
            assert!(!holds.is_held(subject.pid()));
            is_free_in(&subject, "R");
        }
    });
    subject.kill("KILL");
    assert_eq!(subject.end(), "code 137");
}

/// As where a guard follows a program that somebody runs under `run`.
#[test]
fn two_holders_take_turns_and_neither_is_refused() {
    let subject = shell(BUSY);
    let hold_often = || {
        with_holds(|holds| {
            let (end, mut held, mut others) = (Instant::now() + TEST_WAIT_MAX, 0, 0);
            while held < 200 && Instant::now() < end {
                match holds.hold(subject.pid()) {
                    Ok(()) => held += 1,
                    Err(Error::Unsupported { .. }) => others += 1,
                    Err(error) => panic!("{error} after {held} holds"),
                }
                holds.let_go(subject.pid());
            }
            (held, others)
        })
    };
    let seen = std::thread::scope(|scope| {
        let start = || {
            let thread = std::thread::Builder::new().name(ProcessHolds::THREAD_NAME.to_owned());
            thread.spawn_scoped(scope, hold_often).unwrap()
        };
        [start(), start()].map(|thread| thread.join().unwrap())
    });
    assert!(
        seen.iter().all(|(held, _)| *held >= 200) && seen.iter().any(|(_, others)| *others > 0),
        "{seen:?}"
    );
    subject.kill("KILL");
    assert_eq!(subject.end(), "code 137");
}

#[test]
fn the_end_of_a_tracer_lets_all_go() {
    let (stopped, sleeping) = (shell(BUSY), Grandchild::start(&["sleep", "1000"]));
    with_holds(|holds| {
        hold(&stopped, holds);
        hold(&sleeping, holds);
        // As if the thread had panicked or been killed.
        std::mem::forget(std::mem::take(holds));
    });
    is_free_in(&stopped, "R");
    is_free_in(&sleeping, "S");
    for subject in [stopped, sleeping] {
        subject.kill("TERM");
        assert_eq!(subject.end(), "code 143");
    }
}

#[test]
fn signals_that_end_a_held_process_are_seen_and_taken() {
    for (signal, code) in [("TERM", "code 143"), ("INT", "code 130"), ("USR1", "code 138")] {
        let subject = shell(BUSY);
        with_holds(|holds| {
            hold(&subject, holds);
            assert!(!ProcRoot::default().has_pending_signal(subject.pid()).unwrap());
            subject.kill(signal);
            assert!(ProcRoot::default().has_pending_signal(subject.pid()).unwrap(), "{signal}");
            holds.let_go(subject.pid());
        });
        assert_eq!(subject.end(), code);
    }
}

#[test]
fn a_process_that_is_killed_while_held_leaves_its_code_to_its_parent() {
    let subject = shell(BUSY);
    with_holds(|holds| {
        hold(&subject, holds);
        subject.kill("KILL");
        // The parent learns of it after its tracer.
        until(|| {
            holds.poll();
            !holds.is_held(subject.pid())
        });
        assert_eq!(subject.end(), "code 137");
        assert!(holds.is_settled());
    });
}

#[test]
fn a_process_that_ends_just_then_leaves_its_code_and_no_zombie() {
    for _ in 0..20 {
        let subject = shell("exit 7");
        let pid = subject.pid();
        with_holds(|holds| {
            until_gone(holds, pid, Duration::ZERO);
            until(|| {
                holds.poll();
                holds.is_settled()
            });
        });
        assert_eq!(subject.end(), "code 7");
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}

#[test]
fn a_stopped_process_stays_so_and_can_be_continued() {
    for signal in ["STOP", "TSTP"] {
        let subject = shell(BUSY);
        // Before a hold.
        subject.kill(signal);
        is_free_in(&subject, "T");
        with_holds(|holds| {
            hold(&subject, holds);
            holds.let_go(subject.pid());
            is_free_in(&subject, "T");
            subject.kill("CONT");
            is_free_in(&subject, "R");
            // During a hold.
            hold(&subject, holds);
            subject.kill(signal);
            holds.let_go(subject.pid());
            is_free_in(&subject, "T");
            subject.kill("CONT");
            is_free_in(&subject, "R");
        });
        subject.kill("KILL");
        assert_eq!(subject.end(), "code 137", "{signal}");
    }
}

/// A signal that arrives during execve(2) stops the process at its end.
#[test]
fn a_process_stopped_at_the_end_of_execve_is_held() {
    let proc = ProcRoot::default();
    let mut seen = 0;
    // `spawn` returns during execve. Children of this thread are none of the holding one.
    for _ in 0..1000 {
        let mut child = Command::new("sh").args(["-c", BUSY]).spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        until(|| proc.stat(child.id()).unwrap().state == 'T');
        let call = std::fs::read_to_string(format!("/proc/{}/syscall", child.id())).unwrap();
        if call.split(' ').next() == Some(&libc::SYS_execve.to_string()) {
            seen += 1;
            with_holds(|holds| holds.hold(child.id()).unwrap());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        if seen == 3 {
            return;
        }
    }
    println!("{seen} of 1000 processes were stopped in execve(2)");
}

#[test]
fn a_held_program_that_becomes_another_continues() {
    let subject =
        shell("n=0; while [ $n -lt 200 ]; do n=$((n+1)); sh -c 'exec true'; done; exec sh -c 'exit 5'");
    with_holds(|holds| {
        until_gone(holds, subject.pid(), Duration::from_micros(200));
        until(|| {
            holds.poll();
            holds.is_settled()
        });
    });
    assert_eq!(subject.end(), "code 5");
}

#[test]
fn all_threads_of_a_process_stop_including_new_ones() {
    let script = "import threading, sys\n\
        def more():\n\x20 for _ in range(200):\n\x20  t = threading.Thread(target=lambda: sum(range(2000)))\n\x20  t.start(); t.join()\n\
        all = [threading.Thread(target=more) for _ in range(8)]\n\
        [t.start() for t in all]; [t.join() for t in all]; sys.exit(9)";
    if Command::new("python3").arg("--version").output().is_err() {
        return pagekeeper_testing::skip("threads that start threads need python3");
    }
    let subject = Grandchild::start(&["python3", "-c", script]);
    with_holds(|holds| {
        let held = until_gone(holds, subject.pid(), Duration::from_millis(1));
        assert!(held > 5, "{held}");
        until(|| {
            holds.poll();
            holds.is_settled()
        });
    });
    assert_eq!(subject.end(), "code 9");
}

#[test]
fn a_traced_process_is_refused_and_continues() {
    let subject = shell(BUSY);
    with_holds(|first| {
        hold(&subject, first);
        let refused = with_holds(|second| second.hold(subject.pid()).unwrap_err());
        assert!(refused.is_denied(), "{refused}");
        assert!(first.is_held(subject.pid()));
    });
    is_free_in(&subject, "R");
    subject.kill("KILL");
    assert_eq!(subject.end(), "code 137");
    let gone = with_holds(|holds| holds.hold(u32::MAX / 4).unwrap_err());
    assert!(gone.is_gone(), "{gone}");
}

#[test]
fn a_parent_waiting_for_its_vforked_child_continues_when_it_ends() {
    // Python starts programs by vfork(2), and the child becomes another program late.
    let script = "import subprocess, sys\nfor _ in range(100): subprocess.run(['true'])\nsys.exit(4)";
    if Command::new("python3").arg("--version").output().is_err() {
        return pagekeeper_testing::skip("a program that uses vfork needs python3");
    }
    let subject = Grandchild::start(&["python3", "-c", script]);
    with_holds(|holds| {
        while let Ok(()) = holds.hold(subject.pid()) {
            holds.let_go(subject.pid());
            holds.poll();
        }
        until(|| {
            holds.poll();
            holds.is_settled()
        });
    });
    assert_eq!(subject.end(), "code 4");
}

#[test]
fn a_line_of_a_terminal_s_job_is_read_after_a_hold() {
    let mut subject = Grandchild::start(&["cat"]);
    with_holds(|holds| {
        holds.hold(subject.pid()).unwrap();
        holds.let_go(subject.pid());
    });
    subject.input().write_all(b"a line\n").unwrap();
    assert_eq!(subject.end(), "a line\ncode 0");
}
