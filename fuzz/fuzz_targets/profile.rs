//! Profiles: any text is read or refused, and one that is read can be used.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use pagekeeper_catalog::Profile;

fuzz_target!(|text: &str| {
    if let Ok(profile) = Profile::parse(text, Path::new("profile.toml")) {
        for name in ["/d/binlog.000001", "/d/pg_wal/00000001000000000000000A", "/d/#innodb_redo/#ib_redo7"] {
            profile.log_of(Path::new(name));
        }
        for process in &profile.processes {
            process.is_match("mariadbd");
        }
    }
});
