//! Advice on pagekeeper's help for throttled writers, by the owner of the dirty pages on the
//! device.

use std::collections::BTreeMap;

use pagekeeper_observe::Database;
use pagekeeper_text::shell_quoted;

use crate::advice::step;
use crate::observed::attribution::{self, OutputOwner};
use crate::programs::{STATIC_PROGRAMS, usual};
use crate::texts::text;
use crate::{Fix, Observation};

/// Describes what pagekeeper can do now; `other` is the program that wrote most, if that is not a
/// database.
pub(in crate::finders) fn pagekeeper(database: &Database, other: Option<&str>) -> String {
    if let Some(name) = other {
        return text("throttled.pagekeeper-other", &[("name", &name)]);
    }
    // This profile applies to TiKV, too.
    if database.profile.name == "rocksdb" {
        let name = if database.name.is_empty() { "COMMAND" } else { &database.name };
        return text("throttled.pagekeeper-rocksdb", &[("name", &shell_quoted(name))]);
    }
    text("throttled.pagekeeper", &[])
}

/// Returns the program that wrote most to these devices, if it is not a database and a library can
/// be preloaded into it.
pub(in crate::finders) fn most_by_another<'a>(
    observation: &Observation<'_>,
    devices: impl Iterator<Item = &'a str>,
) -> Option<String> {
    let mut owners: BTreeMap<OutputOwner, u64> = BTreeMap::new();
    for written in devices.filter_map(|device| attribution::on_device(observation, device)).flatten() {
        *owners.entry(written.owner).or_default() += written.bytes;
    }
    let (owner, _) = owners.into_iter().max_by_key(|(_, bytes)| *bytes)?;
    let OutputOwner::Process(pid, name) = owner else { return None };
    // Kernel threads have no command line, and neither have ended processes.
    let runs = observation.streamers.iter().any(|streamer| streamer.pid == pid && !streamer.title.is_empty());
    ((runs || usual(&name)) && !STATIC_PROGRAMS.contains(&name.as_str())).then_some(name)
}

/// Returns fixes worth trying on such a program.
pub(in crate::finders) fn of_another(name: &str) -> Vec<Fix> {
    let role = if usual(name) { "" } else { "--as bulk " };
    let run = step("run-as-bulk", &[("role", &role), ("program", &shell_quoted(name)), ("name", &name)]);
    let direct = (name == "dd").then(|| step("dd-direct-output", &[("name", &name)]));
    std::iter::once(run).chain(direct).collect()
}
