//! The preloaded library in difficult programs: threads at random, forks, cancelled
//! threads, signals, limits, small stacks, and calls that fail below it. All print and leave the
//! same as in a plain run.
//!
//! All choices follow from a seed, which a failure's message names; `PAGEKEEPER_SEED` repeats them.
//! Long runs are ignored here: `make test-preload` asks for them.

use std::path::Path;

use crate::support;
use crate::support::command::finish;
use crate::support::compare::{
    ProgramResults, Way, assert_same, built, built_library, difference, left_by, ways,
};
use crate::support::loop_images::{LoopImage, QuickDisk};
use pagekeeper_testing::Seed;

const OPTIONS: &[&str] = &["-O1", "-U_FORTIFY_SOURCE"];

/// Returns a selection of ways to run a mixed program, since all would take long.
fn some_ways() -> Vec<Way> {
    vec![
        Way::run(&["--as", "stream"], "stream.file"),
        Way::run(&["--as", "bulk"], "bulk.file"),
        Way::run(&["--profile", "mariadb"], "binlog.000001"),
    ]
}

/// Runs threads at random; panics unless they end well.
fn threads_at_random(seed: u64, steps: u32, ways: &[Way]) {
    let scratch = support::scratch();
    let program = built("torture", OPTIONS);
    for way in ways {
        let left = left_by(way, &program, &[&seed.to_string(), &steps.to_string()], scratch.path());
        assert!(
            left.code == 0 && left.stdout == ["fine"],
            "PAGEKEEPER_SEED={seed} repeats this, {}: {left:#?}",
            way.label
        );
    }
}

/// Runs a fixed workload on calls that fail at random by a seed, plain and under the library.
fn run_on_failing_calls(seed: u64, ways: &[Way]) {
    let scratch = support::scratch();
    let program = built("workload", OPTIONS);
    let faults = built_library("faults", &[]);
    let below = |way: Way| way.with_lower_library(&faults).and("FAULTS_SEED", seed);
    let left = |way: Way| left_by(&below(way), &program, &[&seed.to_string()], scratch.path());
    let plain = left(Way::plain());
    assert!(
        plain.code == 0 && plain.stdout.last().is_some_and(|line| line == "some failed: 1"),
        "{plain:#?}"
    );
    for way in ways {
        let difference = difference(&plain, &left(way.clone()));
        assert!(
            difference.is_none(),
            "PAGEKEEPER_SEED={seed} repeats this, {}: {}",
            way.label,
            difference.unwrap_or_default()
        );
    }
}

fn compare(name: &str, arguments: &[&str]) {
    if support::can_start(name, &["cc"]) {
        let scratch = support::scratch();
        assert_same(&built(name, OPTIONS), arguments, &some_ways(), scratch.path());
    }
}

#[test]
fn threads_keep_their_files_apart() {
    if support::can_start("threads at random", &["cc"]) {
        threads_at_random(Seed::new().0, 120, &[Way::plain()]);
        threads_at_random(Seed::new().0, 120, &some_ways());
    }
}

#[test]
fn children_of_a_process_with_threads_still_work() {
    compare("forks", &[]);
}

#[test]
fn children_have_the_descriptors_of_the_program_alone() {
    compare("children", &[]);
}

#[test]
fn closed_files_are_closed_immediately() {
    compare("lets_go", &[]);
}

#[test]
fn cancelled_threads_are_cancelled_where_they_were() {
    compare("cancel", &[]);
}

#[test]
fn handlers_that_jump_away_leave_nothing_behind() {
    compare("jumps", &[]);
}

#[test]
fn programs_with_address_sanitizer_start() {
    if !support::can_start("programs with AddressSanitizer", &["cc"]) {
        return;
    }
    let scratch = support::scratch();
    let program = built("read", &["-O1", "-fsanitize=address"]);
    let way = Way::run(&["--as", "stream"], "stream.file");
    let outcome = finish(way.command(&program).arg("file").current_dir(scratch.path()));
    assert!(!outcome.stderr.contains("AddressSanitizer") && !outcome.stderr.contains("ASan"), "{outcome:?}");
    assert_eq!(outcome.code, 0, "{outcome:?}");
}

/// Python 3.12 and later warn about forks of a process with several threads.
#[test]
fn a_forked_child_has_no_second_thread() {
    if !support::can_start("who forks", &["python3"]) {
        return;
    }
    let _alone = support::alone();
    let disk = QuickDisk::new();
    let text = r"
import os
for size in (1, 1000, 10 << 20):
    file = open('file', 'wb'); file.write(bytes(size)); file.close()
    child = os.fork()
    if child == 0: os._exit(0)
    print(len(os.listdir('/proc/self/task'))); os.wait()
";
    let mut command = Way::run(&["--as", "stream"], "").command(Path::new("python3"));
    let said = finish(command.args(["-c", text]).current_dir(disk.path())).expect_success();
    assert_eq!(said, "1\n1\n1\n");
}

#[test]
fn signals_interrupt_the_same_calls_as_before() {
    compare("signals", &[]);
}

/// A handler may open a file in the middle of any call, even of the allocator, and the call
/// continues.
#[test]
fn signal_handlers_may_open_files_at_any_point() {
    if support::can_start("handlers that open files", &["cc"]) {
        let scratch = support::scratch();
        assert_same(&built("handlers", OPTIONS), &[], &ways(), scratch.path());
    }
}

/// A signal between two parts of a send interrupts neither.
#[test]
fn a_send_to_a_socket_is_one_call() {
    if !support::can_start("a file that is sent", &["cc"]) {
        return;
    }
    let scratch = support::scratch();
    let (program, below) = (built("sends", OPTIONS), built_library("parted", &[]));
    let left = |way: Way| left_by(&way.with_lower_library(&below), &program, &[], scratch.path());
    let plain = left(Way::plain());
    assert!(plain.code == 0 && plain.stderr.is_empty(), "{plain:#?}");
    for way in some_ways() {
        let label = way.label.clone();
        assert_eq!(difference(&plain, &left(way)), None, "{label}");
    }
}

#[test]
fn processes_short_of_a_resource_continue() {
    compare("limits", &[]);
}

/// A program sees all its own low descriptors; one descriptor of a high number and one thread may
/// be the library's.
#[test]
fn a_process_that_lists_its_descriptors_finds_its_own() {
    if !support::can_start("a process that takes stock", &["cc"]) {
        return;
    }
    let scratch = support::scratch();
    let program = built("limits", OPTIONS);
    let plain = left_by(&Way::plain(), &program, &["stock"], scratch.path());
    let counts = |left: &ProgramResults| -> Vec<u32> {
        left.stderr[0].split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
    };
    let [1, inherited] = counts(&plain)[..] else { panic!("{plain:#?}") };
    for way in ways() {
        let left = left_by(&way, &program, &["stock"], scratch.path());
        assert_eq!(left.stdout, plain.stdout, "{}", way.label);
        let seen = counts(&left);
        assert!(seen == [1, inherited] || seen == [2, inherited + 1], "{}: {:?}", way.label, left.stderr);
    }
}

/// The library adds little memory that counts against limits of locked and committed memory.
#[test]
fn a_process_has_little_more_memory() {
    if !support::can_start("memory of a process", &["cc"]) {
        return;
    }
    let scratch = support::scratch();
    let program = built("memory", OPTIONS);
    let left = |way: &Way| {
        let left = left_by(way, &program, &[], scratch.path());
        let kib = left.stderr[0].split(' ').map(|word| word.parse::<u64>().unwrap());
        (left.stdout, kib.collect::<Vec<_>>())
    };
    let (said, plain) = left(&Way::plain());
    for way in ways() {
        let (now_said, now) = left(&way);
        assert_eq!(now_said, said, "{}", way.label);
        // The helper's stack, and what the C library's allocator keeps for its thread, where there
        // is one.
        assert!(now[0] <= plain[0] + 256 && now[1] <= plain[1] + 1024, "{}: {now:?}, {plain:?}", way.label);
    }
}

/// A crash handler writes its dump on a stack of 8 KiB (`SIGSTKSZ` until glibc 2.34). If it has
/// room without the library, which depends on the size of the processor's state, it has room with
/// the library. Its second run counts, too: the first needs more, to bind the functions that it
/// calls.
#[test]
fn signal_handlers_on_small_stacks_have_room() {
    if !support::can_start("stack use of a signal handler", &["cc"]) {
        return;
    }
    let scratch = support::scratch();
    let program = built("stacks", OPTIONS);
    let left = |way: &Way| {
        let left = left_by(way, &program, &[], scratch.path());
        let used = left.stderr.first().map_or("", String::as_str).split(' ').map(str::parse::<u64>);
        (left.code, left.stdout, left.files, used.collect::<Result<Vec<_>, _>>().unwrap_or_default())
    };
    let plain = left(&Way::plain());
    assert_eq!(plain.0, 0);
    for way in ways() {
        let now = left(&way);
        assert_eq!(
            (now.0, &now.1, &now.2),
            (plain.0, &plain.1, &plain.2),
            "{}: {:?} bytes",
            way.label,
            now.3
        );
        assert_eq!((now.3.len(), plain.3.len()), (2, 2), "{}", way.label);
        for (now, plain) in now.3.iter().zip(&plain.3) {
            assert!(*now <= plain + 3072, "{}: {now} bytes, not {plain}", way.label);
        }
    }
}

#[test]
fn programs_that_install_seccomp_filters_keep_the_rules() {
    if !support::can_start("questions after filters", &["cc"]) {
        return;
    }
    let scratch = support::scratch();
    let program = built("probes", OPTIONS);
    let left = |way: &Way| {
        let left = left_by(way, &program, &[], scratch.path());
        assert_eq!(left.code, 0, "{left:#?}");
        (left.stdout, left.stderr[0].parse::<i64>().unwrap())
    };
    let plain = left(&Way::plain());
    if plain.1 < 0 {
        return eprintln!("skipped: the kernel has no cachestat");
    }
    let stream = left(&Way::run(&["--as", "stream"], "stream.file"));
    assert_eq!(stream.0, plain.0);
    assert!(plain.1 > 0 && stream.1 == 0, "{} pages, {} plain", stream.1, plain.1);
}

/// The files are in the layers of a container, where cachestat counts no resident page.
#[test]
fn files_opened_for_direct_io_leave_the_cache_on_an_overlay() {
    if !support::can_run("direct I/O on an overlay", &["cc", "unshare", "mount"]) {
        return;
    }
    let scratch = support::scratch();
    let program = built("direct", OPTIONS);
    let mount = "set -e\nmkdir low up work all\n\
                 mount -t overlay none -o lowerdir=low,upperdir=up,workdir=work all || exit 77\ncd all\n";
    let pages = |run: &str| {
        let text = format!("{mount}exec {run} {} table.ibd", program.display());
        let directory = tempfile::tempdir_in(scratch.path()).unwrap();
        let mut command = std::process::Command::new("unshare");
        command.args(["--mount", "sh", "-c", &text]).current_dir(directory.path());
        let outcome = support::command::finish(&mut command);
        (outcome.code != 77).then(|| outcome.stderr.trim().parse::<u32>().expect(&outcome.stderr))
    };
    let run = format!("{} run --profile mariadb --", support::command::program().display());
    let (Some(plain), Some(now)) = (pages(""), pages(&run)) else {
        return eprintln!("skipped: no overlay can be mounted here");
    };
    assert_eq!((plain, now), (1024, 0));
}

/// The disk is private, so that no other process uses its space.
#[test]
fn deleted_files_give_their_room_back_at_once() {
    let programs = LoopImage::programs("ext4");
    let programs: Vec<&str> = programs.iter().map(String::as_str).chain(["cc"]).collect();
    if support::can_run("the room of deleted files", &programs) {
        let image = LoopImage::new("ext4", 100 << 20);
        let (stream, inside) =
            some_ways().into_iter().partition::<Vec<_>, _>(|way| way.file == "stream.file");
        assert_same(&built("room", OPTIONS), &[], &inside, image.path());
        // The follower may briefly have a file open.
        assert_same(&built("room", OPTIONS), &["10000"], &stream, image.path());
    }
}

#[test]
fn file_systems_are_unmounted_as_their_files_are_closed() {
    if !support::can_run("unmounting", &["cc", "unshare"]) {
        return;
    }
    let scratch = support::scratch();
    let program = built("unmounts", OPTIONS);
    for way in [vec![], vec!["--as", "stream"], vec!["--as", "bulk"]] {
        let directory = tempfile::tempdir_in(scratch.path()).unwrap();
        let mut command = std::process::Command::new("unshare");
        command.arg("--mount").current_dir(directory.path());
        if !way.is_empty() {
            command.arg(support::command::program()).arg("run").args(&way).arg("--");
        }
        let outcome = support::command::finish(command.arg(&program).arg("some.file"));
        assert_eq!(outcome.stdout, "unmounted: 10 of 10\n", "{way:?}: {}", outcome.stderr);
    }
}

#[test]
fn calls_that_fail_in_the_kernel_fail_the_same() {
    if support::can_start("calls that fail", &["cc"]) {
        run_on_failing_calls(Seed::new().0, &some_ways());
    }
}

#[test]
#[ignore = "minutes: make test-preload"]
fn threads_keep_their_files_apart_for_long() {
    let first = Seed::new().0;
    for round in 0..4 {
        threads_at_random(first + round, 1000, &ways());
    }
}

#[test]
#[ignore = "minutes: make test-preload"]
fn calls_that_fail_in_the_kernel_fail_the_same_by_many_seeds() {
    let first = Seed::new().0;
    for round in 0..20 {
        run_on_failing_calls(first + round, &ways());
    }
}

#[test]
#[ignore = "minutes: make test-preload"]
fn every_program_prints_the_same_in_repeated_runs() {
    let scratch = support::scratch();
    for _ in 0..3 {
        for name in ["forks", "cancel", "signals", "limits"] {
            assert_same(&built(name, OPTIONS), &[], &ways(), scratch.path());
        }
    }
}
