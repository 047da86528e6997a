//! Settings files of databases: any text is parsed, and each result comes from an existing line.

use pagekeeper_catalog::settings::{guc, option_file, options, toml_keys};

/// Runs one input.
pub(crate) fn fuzz_one(data: &[u8]) {
    let text = crate::text(data);
    let lines = u32::try_from(text.lines().count()).unwrap_or(u32::MAX);
    for line in option_file::parse(text) {
        assert!((1..=lines).contains(&line.number));
    }
    for line in guc::parse(text) {
        assert!((1..=lines).contains(&line.number));
    }
    for entry in options::parse(text) {
        assert!((1..=lines).contains(&entry.line));
    }
    for (name, _, line) in toml_keys(text).unwrap_or_default() {
        assert!(line >= 1, "{name}");
    }
}
