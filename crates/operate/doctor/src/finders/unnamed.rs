//! Files that a server writes like logs and that no pattern of its profile matches: nobody releases
//! their pages.
//!
//! Invariants: only files that a process of the database has open for writing through the page
//! cache. The policy decides what counts as a log. Lines for a profile are offered if a pattern can
//! be made from the name.

use std::collections::BTreeSet;
use std::fmt::Display;

use pagekeeper_kernel::process::AccessMode;
use pagekeeper_observe::{Database, File, OpenerKind};
use pagekeeper_policy::unnamed::{is_much_for_a_log, pattern_of};
use pagekeeper_text::{ByteSize, counted, escaped, percent, unescaped};

use super::EarlierFindings;
use crate::observation::Observation;
use crate::texts::text;
use crate::{Cost, Evidence, Finding, Kind, Severity};

/// Maximum number of files listed.
const LISTED_LOGS_MAX: usize = 5;

/// A file that no pattern matches.
struct UnnamedLog<'a> {
    file: &'a File,
    resident: u64,
    /// Its growth during the watch, in bytes.
    appended: u64,
}

/// Returns one finding for each database with such files.
pub(super) fn find(observation: &Observation<'_>, _: EarlierFindings<'_>) -> Vec<Finding> {
    observation.databases().filter_map(|(index, database)| find_in(observation, index, database)).collect()
}

fn find_in(observation: &Observation<'_>, index: usize, database: &Database) -> Option<Finding> {
    let mut files: Vec<UnnamedLog<'_>> =
        observation.files_of(index).filter_map(|file| unnamed(observation, database, file)).collect();
    if files.is_empty() {
        return None;
    }
    files.sort_by(|one, other| (other.resident, &one.file.path).cmp(&(one.resident, &other.file.path)));
    let resident: u64 = files.iter().map(|file| file.resident).sum();
    let memory = observation.after.host.memory.total;
    let (profile, count) = (&database.profile.name, counted(files.len(), "file", "files"));
    Some(Finding {
        kind: Kind::UnnamedLog,
        severity: Severity::Note,
        database: Some(observation.subject(index)),
        title: text(
            "unnamed.title",
            &[("profile", profile), ("count", &count), ("resident", &ByteSize(resident))],
        ),
        evidence: files.iter().take(LISTED_LOGS_MAX).map(|file| evidence(observation, file)).collect(),
        cost: Cost::measured(text("unnamed.cost", &[("share", &percent(resident, memory, 0))])),
        fixes: Vec::new(),
        remarks: Vec::new(),
        pagekeeper: lines(profile, &files),
    })
}

/// Returns the file if no pattern matches it and the database writes much to it, as to a log.
fn unnamed<'a>(observation: &Observation<'a>, database: &Database, file: &'a File) -> Option<UnnamedLog<'a>> {
    let resident = file.residency?.resident;
    if file.class.is_some() || !database.profile.is_unnamed(&file.path) {
        return None;
    }
    let mut kinds =
        file.openers.iter().filter(|opener| database.has_process(opener.pid)).map(|opener| opener.kind);
    let is_write_only = kinds.clone().any(|kind| kind == OpenerKind::Buffered(AccessMode::WriteOnly));
    let is_written = is_write_only || kinds.any(|kind| kind == OpenerKind::Buffered(AccessMode::ReadWrite));
    let before = observation.before(file.inode).map_or(file.size, |before| before.size);
    let appended = file.size.saturating_sub(before);
    let is_much = is_much_for_a_log(resident, appended, observation.period().as_secs(), is_write_only);
    (is_written && is_much).then_some(UnnamedLog { file, resident, appended })
}

fn evidence(observation: &Observation<'_>, unnamed: &UnnamedLog<'_>) -> Evidence {
    let UnnamedLog { file, resident, appended } = unnamed;
    let grew = match appended {
        0 => "it did not grow while watching".to_owned(),
        _ => format!("{} were appended in {:.0} s", ByteSize(*appended), observation.period().as_secs_f64()),
    };
    Evidence::of("unnamed.file")
        .with("resident_bytes", *resident)
        .with("size_bytes", file.size)
        .with("growth_bytes", *appended)
        .say("path", escaped(&file.path))
        // The last page of a file is counted whole.
        .say("resident", ByteSize((*resident).min(file.size)))
        .say("grew", grew)
}

/// Returns the lines of a profile that make the guard release them.
fn lines(profile: &str, files: &[UnnamedLog<'_>]) -> Option<String> {
    let names = files.iter().filter_map(|unnamed| Some(unescaped(unnamed.file.path.file_name()?)));
    // A profile is UTF-8, and so are the names in it.
    let names = names.filter(|name| !name.contains(char::REPLACEMENT_CHARACTER));
    let patterns: BTreeSet<String> = names.filter_map(|name| pattern_of(&name)).collect();
    let logs: Vec<String> = patterns
        .into_iter()
        .take(LISTED_LOGS_MAX)
        .map(|pattern| {
            // A JSON string is also a TOML string.
            let files = serde_json::Value::from(pattern);
            format!(
                "\n[[log]]\nclass = \"text\"\nfiles = {files}\nrule = \"release-behind-followers\"\nrewrite = \"never\""
            )
        })
        .collect();
    let values: &[(&str, &dyn Display)] = &[("profile", &profile), ("logs", &logs.concat())];
    (!logs.is_empty()).then(|| text("unnamed.pagekeeper", values))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{MIB, file, opener, residency, sample};
    use pagekeeper_policy::FileClass;

    #[test]
    fn a_log_that_no_pattern_names_is_found_with_the_lines_for_a_profile() {
        let mut after = sample();
        let of = |name: &str, kind, pid| File {
            class: None,
            openers: vec![opener(pid, "mariadbd", kind)],
            ..file(&format!("/var/lib/mysql/{name}"), FileClass::Text, 300 * MIB, 200 * MIB)
        };
        let writes = OpenerKind::Buffered(AccessMode::WriteOnly);
        after.files.push(of("statements-20261129.txt", writes, 100));
        after.files.push(of("of another program", writes, 7));
        after.files.push(of("heap", OpenerKind::Buffered(AccessMode::ReadWrite), 100));
        after.files.push(of("direct", OpenerKind::Direct(AccessMode::WriteOnly), 100));
        let mut before = after.clone();
        before.change = None;
        let found = find(&Observation::new(&before, &after), EarlierFindings(&[]));
        let [found] = &found[..] else { panic!("{found:?}") };
        assert!(found.title.contains("names 1 file that it writes as logs"), "{}", found.title);
        let lines = found.pagekeeper.as_deref().unwrap();
        let profile = format!("name = \"x\"\n{}", lines.split_once('\n').unwrap().1);
        let profile = pagekeeper_catalog::Profile::parse(&profile, "x.toml".as_ref()).unwrap();
        let next = std::path::Path::new("/var/lib/mysql/statements-20261130.txt");
        assert_eq!(profile.class_of(next), Some(FileClass::Text));
        // Files with a pattern are not reported, and small ones are not either.
        for resident in [200 * MIB, MIB] {
            let class = (resident > MIB).then_some(FileClass::Text);
            for file in &mut after.files {
                (file.class, file.residency) = (class, Some(residency(resident, 0)));
            }
            assert_eq!(find(&Observation::new(&before, &after), EarlierFindings(&[])), []);
        }
    }
}
