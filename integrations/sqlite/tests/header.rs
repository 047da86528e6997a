//! Compares the structures of SQLite as declared here with those of the installed header.

use std::fmt::Write as _;
use std::process::Command;

use pagekeeper_testing::{disk_dir, skip};

#[test]
fn structures_and_numbers_are_those_of_the_header() {
    let has_header = std::path::Path::new("/usr/include/sqlite3ext.h").exists();
    if !has_header || Command::new("cc").arg("--version").output().is_err() {
        skip("SQLite's headers, or a C compiler, are not installed");
        return;
    }
    let dir = disk_dir();
    let (source, program) = (dir.path().join("header.c"), dir.path().join("header"));
    let abi = include_str!("../src/abi.rs");
    let mut c = String::from(
        "#include <stddef.h>\n#define SQLITE_CORE 1\n#include <sqlite3.h>\n#include <sqlite3ext.h>\n",
    );
    let mut compared = 0;
    for line in abi.lines().map(str::trim) {
        let Some((name, value)) =
            line.strip_prefix("pub(crate) const ").and_then(|rest| rest.split_once(": "))
        else {
            continue;
        };
        let (kind, value) = value.split_once(" = ").unwrap();
        let value = value.trim_end_matches(';').replace("IOERR", "SQLITE_IOERR");
        let value = value.replace("0x0008_0000", "0x80000");
        let holds = match (kind, name) {
            (_, "CHARACTERISTICS") => format!(
                "({value}) == (SQLITE_IOCAP_POWERSAFE_OVERWRITE|SQLITE_IOCAP_SAFE_APPEND|SQLITE_IOCAP_SEQUENTIAL)"
            ),
            ("usize", _) => {
                let member = name.to_lowercase();
                format!("offsetof(struct sqlite3_api_routines, {member}) == {value} * sizeof(void *)")
            }
            _ => format!("SQLITE_{name} == ({value})"),
        };
        writeln!(c, "_Static_assert({holds}, \"{name}\");").unwrap();
        compared += 1;
    }
    assert!(compared > 30, "{compared}");
    for (kind, members) in [
        (
            "sqlite3_io_methods",
            &["iVersion", "xClose", "xRead", "xWrite", "xTruncate", "xSync", "xFileSize", "xLock", "xUnlock"]
                [..],
        ),
        ("sqlite3_vfs", &["iVersion"]),
    ] {
        for (at, member) in members.iter().enumerate() {
            let holds = format!("offsetof(struct {kind}, {member}) == {at} * sizeof(void *)");
            writeln!(c, "_Static_assert({holds}, \"{member}\");").unwrap();
        }
    }
    // The last members that are used, so that no earlier one is missing.
    c += "_Static_assert(offsetof(sqlite3_io_methods, xDeviceCharacteristics) == 12 * sizeof(void *), \"io\");\n";
    c += "_Static_assert(offsetof(sqlite3_vfs, xOpen) == 40 && offsetof(sqlite3_vfs, xNextSystemCall) == 160, \"vfs\");\n";
    c += "int main(void) { return 0; }\n";
    std::fs::write(&source, c).unwrap();
    let built = Command::new("cc").arg("-Werror").arg(&source).arg("-o").arg(&program).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}
