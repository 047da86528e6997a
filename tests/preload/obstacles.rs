//! Programs that can't have the library: they run anyway, with a warning.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::run::{compile, run_sh};
use crate::support::command::{finish, pagekeeper};
use crate::support::{can_run, can_start, open_to_others, scratch};

/// Checks the warning about a program that can't have the library, that it runs anyway, and that
/// `--require` refuses it.
fn check_obstacle(program: &Path, said: &str, expected: &str) {
    // As a stream it would be followed by events.
    let run = || {
        let mut command = pagekeeper();
        command.args(["run", "--profile", "rocksdb"]);
        command
    };
    for options in [&[][..], &["--report=/dev/null"]] {
        let outcome = finish(run().args(options).arg("--").arg(program).arg("version"));
        assert_eq!((outcome.code, outcome.stdout.starts_with(expected)), (0, true), "{outcome:?}");
        assert!(
            outcome.stderr.contains(said) && outcome.stderr.contains("started without the rules"),
            "{outcome:?}"
        );
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    }
    let refused = finish(run().args(["--require", "--"]).arg(program));
    assert!(refused.code == 1 && refused.stdout.is_empty() && refused.stderr.contains(said), "{refused:?}");
    assert!(refused.stderr.contains("not started, by --require"), "{refused:?}");
}

const HELLO: &str = "#include <stdio.h>\nint main(void) { puts(\"hello\"); return 0; }\n";

#[test]
fn programs_that_cannot_have_the_library_are_reported_and_run() {
    if !can_start("programs_that_cannot_have_the_library_are_reported_and_run", &["cc", "objcopy"]) {
        return;
    }
    let dir = scratch();
    let fixed = compile(dir.path(), "fixed", HELLO, &["-static"]);
    check_obstacle(&fixed, "fixed is linked statically", "hello\n");

    // A script is treated as its interpreter.
    let script = dir.path().join("script");
    std::fs::write(&script, format!("#!{}\n", fixed.display())).unwrap();
    open_to_others(&script);
    check_obstacle(&script, "fixed is linked statically", "hello\n");

    // Marked like the output of Go's linker; this one has a loader, like programs with cgo.
    let plain = compile(dir.path(), "plain", HELLO, &[]);
    let (section, go) = (dir.path().join("section"), dir.path().join("go-made"));
    std::fs::write(&section, "\u{ff} Go buildinf:").unwrap();
    let add = format!(".go.buildinfo={}", section.display());
    finish(Command::new("objcopy").args(["--add-section", &add]).arg(&plain).arg(&go)).expect_success();
    check_obstacle(&go, "go-made is a Go program", "hello\n");
    assert_eq!(
        finish(pagekeeper().args(["run", "--as", "bulk", "--require", "--"]).arg(&plain)).expect_success(),
        "hello\n"
    );

    let musl = "-Wl,--dynamic-linker=/lib/ld-musl-none.so.1";
    let musl = compile(dir.path(), "musl-made", HELLO, &[musl]);
    let outcome = finish(pagekeeper().args(["run", "--profile", "rocksdb", "--"]).arg(&musl));
    assert!(outcome.code == 127 && outcome.stderr.contains("musl-made uses musl"), "{outcome:?}");
}

/// A program that prints the bytes it wrote and read, and whether the library is loaded.
const OTHER_LIBRARY: &str = "\
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **arguments) {
    char line[4096], text[8] = {0};
    FILE *stream = fopen(arguments[1], \"w\");
    if (!stream || fputs(\"written\", stream) < 0 || fclose(stream) != 0) return 1;
    int fd = open(arguments[1], O_RDONLY);
    if (read(fd, text, 7) != 7 || close(fd) != 0) return 2;
    stream = fopen(\"/proc/self/maps\", \"r\");
    int is_there = 0;
    while (fgets(line, sizeof line, stream)) is_there |= strstr(line, \"libpagekeeper\") != NULL;
    printf(\"%s %s\\n\", text, is_there ? \"with the library\" : \"without\");
    return 0;
}
";

/// Programs that a command starts are inspected at their start: the library is loaded, leaves the
/// rules off, and reports that.
#[test]
fn programs_of_musl_that_a_command_starts_run() {
    if !can_start("programs_of_musl_that_a_command_starts_run", &["musl-gcc"]) {
        return;
    }
    let dir = scratch();
    let (text, program) = (dir.path().join("musl.c"), dir.path().join("musl"));
    std::fs::write(&text, OTHER_LIBRARY).unwrap();
    finish(Command::new("musl-gcc").arg("-o").arg(&program).arg(&text)).expect_success();
    let line =
        format!("{0} {1}; env {0} {1}; exec {0} {1}", program.display(), dir.path().join("file").display());
    for options in
        [&["--as", "stream"][..], &["--profile", "rocksdb"], &["--as", "logs", "--report=/dev/null"]]
    {
        let outcome = run_sh(options, &line);
        assert_eq!(outcome.code, 0, "{options:?}: {outcome:?}");
        assert_eq!(outcome.stdout, "written with the library\n".repeat(3), "{options:?}");
        let said =
            || outcome.stderr.lines().filter(|line| !line.contains("/sh uses by io_uring or mappings"));
        assert!(said().all(|line| line.contains("uses musl for its C library")), "{outcome:?}");
        let said = said().count();
        assert!(said == 2 || said == 0 && options.contains(&"stream"), "{options:?}: {outcome:?}");
    }
}

#[test]
fn a_real_go_program_is_reported_and_run() {
    let installed = Path::new("/usr/local/go/bin/go");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).map(|directory| directory.join("go")).find(|file| file.is_file());
    let Some(go) = found.or_else(|| installed.is_file().then(|| installed.to_path_buf())) else {
        println!(
            "No Go is installed: what Go makes is reported by a program that is marked as it marks its own, in another test."
        );
        return;
    };
    check_obstacle(&go, "is a Go program", "go version");
}

#[test]
fn setuid_programs_are_reported_and_run() {
    if !can_run("setuid_programs_are_reported_and_run", &["cc"]) {
        return;
    }
    let dir = scratch();
    let program = compile(dir.path(), "privileged", HELLO, &[]);
    std::os::unix::fs::chown(&program, Some(65534), Some(65534)).unwrap();
    for mode in [0o4755, 0o2755] {
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
        check_obstacle(&program, "privileged runs with rights of its own", "hello\n");
    }
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(
        finish(pagekeeper().args(["run", "--as", "bulk", "--"]).arg(&program)).expect_success(),
        "hello\n"
    );
}
