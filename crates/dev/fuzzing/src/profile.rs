//! Profiles: any text is parsed or rejected, and a parsed profile can be used.

use std::path::Path;

use pagekeeper_catalog::Profile;

/// Runs one input.
pub(crate) fn fuzz_one(data: &[u8]) {
    let text = crate::text(data);
    if let Ok(profile) = Profile::parse(text, Path::new("profile.toml")) {
        for name in ["/d/binlog.000001", "/d/pg_wal/00000001000000000000000A", "/d/#innodb_redo/#ib_redo7"] {
            profile.log_of(Path::new(name));
        }
        for process in &profile.processes {
            process.is_match("mariadbd");
        }
    }
}
