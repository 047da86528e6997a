//! What a server's start-up files set decides how the guard treats its logs, as what its command line sets does.
//!
//! Needs root and Debian's `mariadb-server`, `sysbench` and `util-linux`; skips with a sentence otherwise, and fails
//! instead where `PAGEKEEPER_REQUIRE_ALL=1`. Residency is `fincore`'s, reads are the kernel's own counts.

use crate::support;
use crate::support::guard::{Ended, Guard};
use crate::support::loop_images::{self, Image};
use crate::support::mariadb::{Options, PROGRAMS, REDO_BYTES, Server};
use crate::support::sysbench::{self, Load};
use crate::support::{MIB, kept_bytes, wait_until_resident_below};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(180);

/// What may stay of a redo log that is released: its tail, and what one tick writes.
const RELEASED: u64 = 16 * MIB;

/// An option file that says in a file that it includes what the redo log's blocks are.
fn option_file(scratch: &Path, name: &str, line: &str) -> PathBuf {
    let included = scratch.join(format!("{name}.d"));
    std::fs::create_dir(&included).expect("make a directory");
    std::fs::write(included.join("50-redo.cnf"), format!("[mysqld]\n# as the manual says\n{line}\n"))
        .expect("write an option file");
    let file = scratch.join(format!("{name}.cnf"));
    let main = format!("[client]\nsocket=/none\n!includedir {}\n", included.display());
    std::fs::write(&file, main).expect("write an option file");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("open it to the server");
    file
}

fn redo(server: &Server) -> [PathBuf; 1] {
    [server.data().join("ib_logfile0")]
}

/// What was said of the redo log in an event of this kind.
fn said<'a>(ended: &'a Ended, event: &str, key: &str) -> Vec<&'a str> {
    let of_redo = ended.events.iter().filter(|said| said["event"] == event).filter(|said| {
        said["path"].as_str().is_some_and(|path| path.ends_with("/ib_logfile0"))
    });
    of_redo.filter_map(|said| said[key].as_str()).collect()
}
