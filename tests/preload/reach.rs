//! Ways to read and write that rules might miss silently: each leaves a cold file cold and a hot
//! one hot. Residency is `fincore`'s.

use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use crate::support;
use crate::support::command::finish;
use crate::support::compare::{Way, built};
use crate::support::loop_images::{Device, QuickDisk};
use crate::support::{MIB, evict};

/// Returns a command of these words, as a stream, in a directory.
fn stream(words: &[&str], directory: &Path) -> Command {
    let (program, arguments) = words.split_first().expect("a program");
    let mut command = Way::stream_by_library().command(Path::new(program));
    command.args(arguments).current_dir(directory);
    command
}

fn resident(path: &Path) -> u64 {
    support::resident_bytes(&[path.to_owned()])
}

#[test]
fn one_large_read_leaves_nothing() {
    if !support::can_start("one large read", &["dd", "head", "python3", "node", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let here = scratch.path();
    let file = here.join("file");
    let mut make = Command::new("dd");
    make.args(["if=/dev/zero", "of=file", "bs=1M", "count=450", "conv=fsync", "status=none"]);
    finish(make.current_dir(here)).expect_success();
    for words in [
        // In two calls; the second one finds pages that were read ahead for the first.
        &["dd", "if=file", "of=/dev/null", "bs=300M", "status=none"][..],
        &["python3", "-c", "assert len(open('file', 'rb').read()) == 450 << 20"],
        &[
            "python3",
            "-c",
            "import os; assert len(os.pread(os.open('file', 0), 1 << 30, 777)) == (450 << 20) - 777",
        ],
        &["node", "-e", "if (require('fs').readFileSync('file').length != 450 * 2 ** 20) process.exit(1)"],
    ] {
        evict(&file);
        finish(&mut stream(words, here)).expect_success();
        let left = resident(&file);
        assert!(left <= MIB, "{words:?}: {left} bytes of a cold file stay");
        finish(
            Command::new("head")
                .args(["-c", "104857600", "file"])
                .current_dir(here)
                .stdout(std::process::Stdio::null()),
        )
        .expect_success();
        let hot = resident(&file);
        assert!(hot >= 100 * MIB, "{hot} bytes are hot");
        finish(&mut stream(words, here)).expect_success();
        let left = resident(&file);
        assert!(left >= 100 * MIB && left <= hot, "{words:?}: {hot} bytes were hot, {left} are");
    }
}

#[test]
fn one_large_write_leaves_nothing() {
    if !support::can_start("one large write", &["dd", "python3", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let here = scratch.path();
    let file = here.join("new");
    for words in [
        &["dd", "if=/dev/zero", "of=new", "bs=500M", "count=1", "status=none"][..],
        &[
            "dd",
            "if=/dev/zero",
            "of=new",
            "bs=500M",
            "count=1",
            "status=none",
            "oflag=append",
            "conv=notrunc",
        ],
        &[
            "python3",
            "-c",
            "import os; os.pwrite(os.open('new', os.O_CREAT | os.O_WRONLY), bytes(500 << 20), 0)",
        ],
    ] {
        let _ = std::fs::remove_file(&file);
        finish(&mut stream(words, here)).expect_success();
        assert_eq!(std::fs::metadata(&file).expect("stat").len(), 500 * MIB);
        let left = resident(&file);
        assert!(left <= MIB, "{words:?}: {left} bytes of what was written stay");
    }
    // Resident pages of others in a file that is overwritten are theirs until they are written.
    let mut call = stream(
        &["python3", "-c", "import os; os.pwrite(os.open('new', os.O_WRONLY), b'x' * (70 << 20), 5)"],
        here,
    );
    finish(&mut call).expect_success();
    let bytes = std::fs::read(&file).expect("read");
    assert!(bytes[5..5 + (70 << 20)].iter().all(|&byte| byte == b'x') && bytes.len() as u64 == 500 * MIB);
}

/// Returns a configuration, readable by other users, that makes every program a stream by the
/// library.
fn streams_in(directory: &Path) -> std::path::PathBuf {
    let text = include_str!("streams.toml");
    let path = directory.join("streams.toml");
    std::fs::write(&path, text).expect("write");
    path
}

/// Runs a shell line as a user who may only read the files of a directory. Returns the bytes read
/// from the disk.
fn as_a_reader(line: &str, program: &Path, home: &Path, directory: &Path) -> u64 {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program);
    command.args(["run", "--config"]).arg(streams_in(home)).args([
        "--",
        "sh",
        "-c",
        &format!("{line} && cat /proc/$$/io"),
    ]);
    command.env("HOME", home).env_remove("XDG_RUNTIME_DIR").env_remove("XDG_CACHE_HOME");
    let said = finish(command.current_dir(directory)).expect_success();
    let read = said.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    read.and_then(|read| read.parse().ok()).unwrap_or_else(|| panic!("{line}: {said}"))
}

#[test]
fn files_that_may_only_be_read_leave_nothing() {
    let programs = ["setpriv", "cp", "cat", "dd", "md5sum", "tar", "fincore"];
    if !support::can_run("files that may only be read", &programs) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let here = scratch.path();
    let home = support::scratch();
    std::os::unix::fs::chown(home.path(), Some(65534), Some(65534)).expect("give the directory away");
    let program = home.path().join("pagekeeper");
    support::copy_program(&support::command::program(), &program);
    let file = here.join("file");
    let size = 160 * MIB;
    std::fs::write(&file, vec![0x5a; usize::try_from(size).expect("small")]).expect("write");
    for (path, mode) in [(here, 0o755), (file.as_path(), 0o644)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set permissions");
    }
    let own = home.path().to_str().expect("plain");
    for line in [
        &format!("cp file {own}/copy && rm {own}/copy"),
        "cat file > /dev/null",
        "dd if=file of=/dev/null bs=1M status=none",
        "dd if=file of=/dev/null bs=10240 status=none",
        "md5sum file > /dev/null",
        "tar -cf - file | wc -c > /dev/null",
    ] {
        // On a busy machine read-ahead pages may be evicted before their use, and the helper may
        // fall behind a reader by stdio (md5sum) on a disk in memory, so the minimum of three runs
        // counts.
        let runs = (0..3).map(|_| {
            evict(&file);
            (as_a_reader(line, &program, home.path(), here), resident(&file))
        });
        let (read, left): (Vec<u64>, Vec<u64>) = runs.collect();
        let least = |of: &[u64]| *of.iter().min().expect("three");
        assert!(least(&read) <= size + size / 10, "{line}: {read:?} bytes were read for {size}");
        let kept = if line.starts_with("md5sum") { least(&left) } else { *left.iter().max().expect("three") };
        assert!(kept <= size / 50, "{line}: {left:?} bytes of a cold file stay");
        // Scattered hot pages of another program.
        evict(&file);
        let opened = std::fs::File::open(&file).expect("open");
        rustix::fs::fadvise(&opened, 0, None, rustix::fs::Advice::Random).expect("advise");
        for at in (0..size).step_by(300_000) {
            opened.read_at(&mut [0], at).expect("read");
        }
        let hot = resident(&file);
        assert!(hot >= size / 300_000 * 4096, "{hot} bytes are hot");
        as_a_reader(line, &program, home.path(), here);
        let after = resident(&file);
        assert!(after >= hot && after <= hot + size / 50, "{line}: {hot} bytes were hot, {after} are");
    }
}

/// zstd reads by a stdio stream in another thread: the helper follows it, and may fall behind on a
/// disk in memory and a busy machine.
#[test]
fn pages_that_zstd_may_only_read_go() {
    if !support::can_run("files that zstd may only read", &["setpriv", "zstd", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let (scratch, home) = (support::scratch(), support::scratch());
    let here = scratch.path();
    std::os::unix::fs::chown(home.path(), Some(65534), Some(65534)).expect("give the directory away");
    let program = home.path().join("pagekeeper");
    support::copy_program(&support::command::program(), &program);
    let (file, size) = (here.join("file"), 160 * MIB);
    std::fs::write(&file, vec![0x5a; usize::try_from(size).expect("small")]).expect("write");
    support::open_to_others(here);
    support::open_to_others(&file);
    let runs: Vec<(u64, u64)> = (0..3)
        .map(|_| {
            evict(&file);
            let read = as_a_reader("zstd -q -c file > /dev/null", &program, home.path(), here);
            (read, resident(&file))
        })
        .collect();
    assert!(
        runs.iter().any(|&(read, left)| read <= size + size / 10 && left <= size / 50),
        "bytes that were read, and stay: {runs:?} for {size}"
    );
}

/// Reads of a file that the helper closes because of removed names continue immediately: no call
/// waits for a release that never begins.
#[test]
fn reads_of_read_only_files_continue_as_names_are_removed() {
    if !support::can_run("names that are removed", &["setpriv", "perl"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let here = scratch.path();
    let home = support::scratch();
    for path in [here, home.path()] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).expect("give the directory away");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("set permissions");
    }
    let program = home.path().join("pagekeeper");
    support::copy_program(&support::command::program(), &program);
    let text = r#"
use Time::HiRes 'time';
sub read_on { while (sysread($_[0], my $bytes, 128 << 10)) { unlink(pop @names) or die for 1..$_[1] } }
sub begin {
    open(my $file, '<', $_[0]) or die;
    sysread($file, my $bytes, 128 << 10) == 128 << 10 or die for 1..16;
    return $file;
}
@names = map { "name-$_" } 1..2000;
for (@names) { open(my $made, '>', $_) or die }
my $before = time;
# Some of so many have the hash by which the helper counts a file.
read_on(begin('file-0'), 4);
my $first = begin('file-1');
unlink('file-1') or die;
# Takes the place that the first one had, and keeps it as that ends.
my $second = begin('file-2');
close($first);
read_on($second, 0);
my $third = begin('file-3');
unlink('file-3') or die;
read_on($third, 0);
print(time - $before);
"#;
    let files: Vec<_> = (0..4).map(|n| here.join(format!("file-{n}"))).collect();
    let mut took = Vec::new();
    for wrapped in [false, true] {
        for file in &files {
            std::fs::write(file, vec![0x5a; 64 << 20]).expect("write");
            std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o644)).expect("set permissions");
            evict(file);
        }
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        if wrapped {
            command.arg(&program).args(["run", "--config"]).arg(streams_in(home.path())).arg("--");
        }
        command.args(["perl", "-e", text]);
        command.env("HOME", home.path()).env_remove("XDG_RUNTIME_DIR").env_remove("XDG_CACHE_HOME");
        let said = finish(command.current_dir(here)).expect_success();
        took.push(said.trim().parse::<f64>().unwrap_or_else(|error| panic!("{error}: {said}")));
        for name in std::fs::read_dir(here).expect("list") {
            let path = name.expect("list").path();
            if path.is_file() {
                std::fs::remove_file(path).expect("remove");
            }
        }
    }
    let [plain, wrapped] = took[..] else { unreachable!("two runs") };
    eprintln!("{plain} s plain, {wrapped} s as a stream");
    assert!(wrapped <= plain * 20.0 + 10.0, "{plain} s plain, {wrapped} s as a stream");
}

/// Runtimes such as node bypass the C library's functions.
#[test]
fn raw_system_calls_leave_no_pages() {
    if !support::can_start("calls by their numbers", &["cc", "cmp", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let here = scratch.path();
    let (file, copy) = (here.join("file"), here.join("copy"));
    let bytes: Vec<u8> = (0..100 * MIB / 8).flat_map(u64::to_le_bytes).collect();
    std::fs::write(&file, bytes).expect("write");
    let program = built("by_number", &["-O1"]);
    let program = program.to_str().expect("a plain path");
    let reads = ["read", "readv", "pread", "preadv", "preadv2", "preadv2 at its own place"];
    let others = ["copy_file_range", "sendfile", "splice", "fallocate", "ftruncate"];
    let mut failures = Vec::new();
    for how in reads.into_iter().chain(others) {
        evict(&file);
        finish(&mut stream(&[program, how], here)).expect_success();
        let left = (resident(&file), resident(&copy));
        println!("{how}: {left:?} bytes stay");
        if left.0 + left.1 > 2 * MIB {
            failures.push(format!("{how}: {left:?} bytes stay"));
        }
        finish(Command::new("cmp").args([&file, &copy])).expect_success();
        std::fs::remove_file(&copy).expect("remove the copy");
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Threads read one open file at the same time: no page stays, and all bytes are counted.
///
#[test]
fn threads_that_read_one_descriptor_leave_nothing() {
    if !support::can_start("threads that read one descriptor", &["cc", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let (scratch, outside) = (QuickDisk::new(), support::scratch());
    let here = scratch.path();
    let (file, report) = (here.join("file"), outside.path().join("report"));
    let size = 400 * MIB;
    let bytes: Vec<u8> = (0..size / 8).flat_map(u64::to_le_bytes).collect();
    std::fs::write(&file, bytes).expect("write");
    let program = built("together", &["-O1", "-pthread"]);
    for how in ["read", "pread", "parts"] {
        // Threads do not wait for a preempted thread that is updating the file's state, so pages
        // that others read meanwhile stay. On a busy machine the minimum of several runs counts.
        let mut left = Vec::new();
        while left.len() < 6 && left.iter().all(|left| *left > 2 * MIB) {
            evict(&file);
            let plain = finish(Command::new(&program).arg(how).current_dir(here)).expect_success();
            evict(&file);
            let mut way = Way::stream_by_library();
            way.add_option("--json");
            way.add_option(&format!("--report={}", report.display()));
            let said = finish(way.command(&program).arg(how).current_dir(here)).expect_success();
            assert_eq!(said, plain);
            let said: serde_json::Value =
                serde_json::from_slice(&std::fs::read(&report).expect("a report")).expect("JSON");
            assert_eq!(said["total"]["stream_read_bytes"].as_u64(), Some(size), "{how}: {said}");
            left.push(resident(&file));
        }
        println!("{how}: {left:?} bytes stay");
        assert!(left.iter().any(|left| *left <= 2 * MIB), "{how}: {left:?} bytes stay");
    }
}

/// Reads files of 20 MiB, all at the same time, by stdio streams. Returns the resident bytes.
fn resident_after_paste(count: usize, here: &Path) -> (u64, u64) {
    // Larger than the part that is handled at the close.
    let line = "something of sixty-four bytes, the same again and again: a line\n".repeat(20 << 14);
    let names: Vec<String> = (0..count).map(|n| format!("file-{n}")).collect();
    let files: Vec<_> = names.iter().map(|name| here.join(name)).collect();
    for file in &files {
        std::fs::write(file, &line).expect("write");
        evict(file);
    }
    let mut words = vec!["paste"];
    words.extend(names.iter().map(String::as_str));
    let mut command = stream(&words, here);
    finish(command.stdout(std::process::Stdio::null())).expect_success();
    (support::resident_bytes(&files), support::size_bytes(&files))
}

#[test]
#[ignore = "long: make test-stories"]
fn many_streams_of_the_c_library_leave_nothing() {
    if !support::can_start("many streams of the C library", &["paste", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let (left, size) = resident_after_paste(14, scratch.path());
    assert!(left <= size / 20, "{left} of {size} bytes stay");
}

/// At most sixteen streams are followed at a time, as the book says; pages of further ones stay.
#[test]
#[ignore = "long: make test-stories"]
fn sixteen_of_very_many_streams_of_the_c_library_leave_nothing() {
    if !support::can_start("very many streams of the C library", &["paste", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let (left, size) = resident_after_paste(24, scratch.path());
    println!("{left} of {size} bytes stay");
    assert!(left <= size / 24 * 8 + size / 20, "{left} of {size} bytes stay");
}

/// The bytes of `tests/preload/programs_in_c/formatted.c` are the same, and leave memory while they
/// are written.
#[test]
fn formatted_output_leaves_nothing() {
    if !support::can_start("formatted output", &["cc", "sh", "cmp", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let here = scratch.path();
    for options in [&["-O1", "-U_FORTIFY_SOURCE"][..], &["-O2", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]] {
        let program = built("formatted", options);
        let program = program.to_str().expect("a plain path");
        for how in ["printf", "fprintf", "vprintf", "vfprintf"] {
            finish(Command::new("sh").args(["-c", "$0 $1 300000 > plain", program, how]).current_dir(here))
                .expect_success();
            finish(&mut stream(&["sh", "-c", "exec $0 $1 300000 > out", program, how], here))
                .expect_success();
            let out = here.join("out");
            let (left, size) = (resident(&out), support::size_bytes(&[out]));
            finish(Command::new("cmp").args(["plain", "out"]).current_dir(here)).expect_success();
            assert!(size > 30 * MIB && left <= 2 * MIB, "{how}, {options:?}: {left} of {size} bytes stay");
        }
    }
}

#[test]
fn streams_of_block_devices_leave_nothing() {
    let programs = ["losetup", "blockdev", "mount", "dd", "cat", "cmp", "python3", "zstd", "head", "sh"];
    if !support::can_run("streams_of_block_devices_leave_nothing", &programs) {
        return;
    }
    let _alone = support::alone();
    let Some(device) = Device::new(200 * MIB) else {
        return pagekeeper_testing::skip(
            "streams_of_block_devices_leave_nothing: no loop device is available",
        );
    };
    let here = support::scratch();
    let name = device.path().to_str().expect("a plain path");
    let lines = [
        format!("dd if={name} of=/dev/null bs=1M status=none"),
        format!("dd if={name} of=/dev/null bs=4k status=none"),
        format!("dd if={name} of=/dev/null bs=512M status=none"),
        format!("cat {name} > /dev/null"),
        format!("cat < {name} > /dev/null"),
        format!("zstd -q -o image.zst {name} --force"),
        format!("dd if=/dev/urandom of={name} bs=1M status=none count=200"),
        format!("cat plain > {name}"),
    ];
    let mut failures = Vec::new();
    std::fs::write(here.path().join("plain"), vec![7; 200 << 20]).expect("write");
    for line in &lines {
        device.evict();
        finish(&mut stream(&["sh", "-c", line], here.path())).expect_success();
        let left = device.resident();
        // Hot pages of a device that is read stay.
        let hot = format!("head --bytes=104857600 {name} > /dev/null");
        finish(Command::new("sh").args(["-c", &hot])).expect_success();
        let before = device.resident();
        let reads = !line.contains(&format!("of={name}")) && !line.contains(&format!("> {name}"));
        if reads {
            finish(&mut stream(&["sh", "-c", line], here.path())).expect_success();
        }
        let after = device.resident();
        println!("{line}: {left} bytes stay; {before} were hot, {after} are");
        if left > MIB || after + MIB < before || after > before + MIB {
            failures.push(format!("{line}: {left} bytes stay; {before} were hot, {after} are"));
        }
    }
    finish(Command::new("cmp").arg(here.path().join("plain")).arg(device.path())).expect_success();
    assert!(failures.is_empty(), "{failures:#?}");
}
