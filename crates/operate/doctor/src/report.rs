//! The report: the findings, what was inspected, and what could not be seen; for people and for
//! programs.
//!
//! Invariants: findings are sorted by severity, highest first. Each gap is reported once. Text fits
//! 80 columns unless a word or command is longer.

use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagekeeper_observe::{Database, File, VisibilityGap};
use pagekeeper_text::{ByteSize, LABEL_COLUMNS, counted, duration, escaped, labelled, unescaped, wrapped};
use serde::Serialize;

use crate::observation::{Observation, called};
use crate::phrases::process;
use crate::settings::Settings;
use crate::{Confidence, Finding, FixKind, Holder, OpenIn, Severity, Terms};

/// Minimum page cache of other files that is reported, in bytes.
const ELSEWHERE_BYTES_MIN: u64 = 1 << 30;
/// Page cache of other files is reported only if it is at least one part in this many of the
/// memory.
const ELSEWHERE_PART: u64 = 10;

/// The result of an examination.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The findings, most severe first.
    pub findings: Vec<Finding>,
    /// The inspected databases and files, and the duration.
    pub inspected: Inspected,
    /// The facts that could not be observed.
    pub visibility_gaps: Vec<VisibilityGap>,
}

/// The inspected databases and files, and the duration.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Inspected {
    /// The databases.
    pub databases: Vec<InspectedDatabase>,
    /// The total number of files.
    pub files: usize,
    /// Their total size in bytes.
    pub size_bytes: u64,
    /// Their resident bytes, as far as visible.
    pub resident_bytes: u64,
    /// Bytes of the host's page cache that belong to none of them.
    pub elsewhere_bytes: u64,
    /// The largest holders of that, if requested.
    pub largest_elsewhere: Vec<Holder>,
    /// The host's memory.
    pub memory: InspectedMemory,
    /// The duration of the watch in seconds.
    pub seconds: f64,
    /// The means by which events were observed during the watch, in one sentence.
    pub traced: String,
}

/// The host's memory at the end of the watch, and the waits for memory during it. Sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct InspectedMemory {
    /// Total memory.
    pub total_bytes: u64,
    /// Unused memory.
    pub free_bytes: u64,
    /// Background reclaim starts below this much free memory.
    pub watermark_low_bytes: u64,
    /// Below this much free memory, tasks have to reclaim for themselves.
    pub watermark_min_bytes: u64,
    /// Page cache of files.
    pub page_cache_bytes: u64,
    /// Number of times that a task had to reclaim for itself; `None` if unknown.
    pub allocation_stalls: Option<u64>,
    /// Time for which at least one task waited for memory; `None` if unknown.
    pub stalled_seconds: Option<f64>,
}

impl InspectedMemory {
    fn of(observation: &Observation<'_>) -> Self {
        let host = &observation.after.host;
        let machine = observation.change().map(|change| change.machine).unwrap_or_default();
        Self {
            total_bytes: host.memory.total,
            free_bytes: host.memory.free,
            watermark_low_bytes: host.watermarks.low,
            watermark_min_bytes: host.watermarks.min,
            page_cache_bytes: host.memory.cached.saturating_sub(host.memory.shmem),
            allocation_stalls: machine.allocation_stalls,
            stalled_seconds: machine.memory_stalled.map(|stalled| stalled.as_secs_f64()),
        }
    }
}

impl fmt::Display for InspectedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} are page cache, {} are free (background reclaim begins below {})",
            ByteSize(self.page_cache_bytes),
            ByteSize(self.total_bytes),
            ByteSize(self.free_bytes),
            ByteSize(self.watermark_low_bytes)
        )?;
        if let Some(stalls) = self.allocation_stalls.filter(|stalls| *stalls > 0) {
            write!(f, "; tasks had to reclaim for themselves {}", counted(stalls, "time", "times"))?;
        }
        if let Some(stalled) = self.stalled_seconds.filter(|stalled| *stalled >= 0.001) {
            write!(f, "; some task waited for memory {}", duration(Duration::from_secs_f64(stalled)))?;
        }
        Ok(())
    }
}

/// A database that was inspected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InspectedDatabase {
    /// Its name in findings.
    pub name: String,
    /// Its process ID, if it has a process.
    pub pid: Option<u32>,
    /// Its profile.
    pub profile: String,
    /// Its directories as it sees them.
    pub directories: Vec<String>,
    /// Its root, if that differs from this process's: in a container or a chroot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// The number of its files.
    pub files: usize,
    /// The files from which its settings were read, as it sees them.
    pub settings_from: Vec<String>,
    /// The settings that could not be read, and why.
    pub settings_unread: Vec<String>,
}

impl Report {
    /// Sorts findings, and adds what was inspected. `traced` describes how events were observed.
    pub fn new(observation: &Observation<'_>, mut findings: Vec<Finding>, traced: impl fmt::Display) -> Self {
        findings.sort_by(|a, b| {
            let order = |finding: &Finding| (std::cmp::Reverse(finding.severity), finding.kind);
            order(a).cmp(&order(b)).then_with(|| a.database.cmp(&b.database))
        });
        // Gaps of the first snapshot occur again, with their count at that time.
        let mut visibility_gaps = observation.after.visibility_gaps.clone();
        visibility_gaps.sort();
        visibility_gaps.dedup();
        let (memory, files) = (InspectedMemory::of(observation), Inspected::of(observation));
        let inspected = Inspected {
            elsewhere_bytes: memory.page_cache_bytes.saturating_sub(files.resident_bytes),
            memory,
            seconds: observation.period().as_secs_f64(),
            traced: traced.to_string(),
            ..files
        };
        Self { findings, inspected, visibility_gaps }
    }

    /// Returns the severity of the most severe finding; `None` without findings.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }

    /// Whether nothing was seen of a database, so that the lack of findings means nothing: there is
    /// none, or one of the `named` processes has ended. An empty directory counts as seen.
    pub fn is_blind(&self, named: &[u32]) -> bool {
        let databases = &self.inspected.databases;
        let ended = |pid: &u32| !databases.iter().any(|database| database.pid == Some(*pid));
        databases.is_empty()
            || named.iter().any(ended)
            || databases.iter().any(|database| {
                database.files == 0 && (database.pid.is_some() || !self.visibility_gaps.is_empty())
            })
    }
}

/// Returns the root of a database whose paths mean something else to this process, from the paths
/// by which its files are reached.
fn root_of(observation: &Observation<'_>, index: usize) -> Option<String> {
    let elsewhere = |file: &File| {
        let root = file.reach.as_os_str().as_bytes().strip_suffix(file.path.as_os_str().as_bytes())?;
        (!root.is_empty()).then(|| escaped(Path::new(OsStr::from_bytes(root))).to_string())
    };
    observation.files_of(index).find_map(elsewhere)
}

impl Inspected {
    /// Whether so much page cache belongs to none of the files that it is reported.
    fn has_much_elsewhere(&self) -> bool {
        self.elsewhere_bytes >= ELSEWHERE_BYTES_MIN.max(self.memory.total_bytes / ELSEWHERE_PART)
    }

    fn of(observation: &Observation<'_>) -> Self {
        let snapshot = observation.after;
        let database = |(index, database): (usize, &Database)| {
            let settings = observation.settings_of(index);
            InspectedDatabase {
                name: called(database),
                pid: database.pid,
                profile: database.profile.name.clone(),
                directories: texts(&database.directories),
                root: root_of(observation, index),
                files: snapshot.files.iter().filter(|file| file.database == Some(index)).count(),
                settings_from: settings.map(|read| texts(&read.read_from)).unwrap_or_default(),
                settings_unread: settings.map(not_read).unwrap_or_default(),
            }
        };
        Self {
            databases: snapshot.databases.iter().enumerate().map(database).collect(),
            files: snapshot.files.len(),
            size_bytes: snapshot.files.iter().map(|file| file.size).sum(),
            // The last page of a file is counted whole.
            resident_bytes: snapshot.files.iter().map(|file| file.resident().min(file.size)).sum(),
            ..Self::default()
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            write!(f, "{finding}")?;
            f.write_char('\n')?;
        }
        if self.findings.is_empty() {
            f.write_str(if self.visibility_gaps.is_empty() {
                "Nothing found.\n"
            } else {
                "Nothing found in what could be seen.\n"
            })?;
        }
        write!(f, "{}", self.inspected)?;
        for gap in &self.visibility_gaps {
            let needs = gap.needs.as_ref().map(|needs| format!(" (needs {needs})")).unwrap_or_default();
            labelled(f, "not seen", &format!("{}: {}{needs}", gap.what, gap.why))?;
        }
        Ok(())
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Serious => "SERIOUS",
            Severity::Warning => "WARNING",
            Severity::Note => "NOTE",
        };
        let whose = self.database.as_ref().map(|subject| format!("{}: ", subject.name)).unwrap_or_default();
        wrapped(f, &format!("{severity} "), severity.len() + 1, &format!("{whose}{}", self.title))?;
        for evidence in &self.evidence {
            wrapped(f, "  - ", 4, &format!("{}{}", unless_measured(evidence.confidence), evidence.text))?;
        }
        let sure = unless_measured(self.cost.confidence);
        labelled(f, "costs", &format!("{sure}{}", self.cost.text))?;
        for fix in &self.fixes {
            if fix.kind == FixKind::Advice {
                labelled(f, "fix", &fix.act)?;
            } else {
                // Text to be copied is alone on its line, whatever its length.
                writeln!(f, "  {:<width$}{}", "fix", escaped(&fix.act), width = LABEL_COLUMNS - 2)?;
            }
            let mut beside = |text: &str| wrapped(f, &" ".repeat(LABEL_COLUMNS), LABEL_COLUMNS, text);
            if !fix.does.is_empty() {
                beside(&fix.does)?;
            }
            let Terms { holds_for, risk, undo, undo_is_command, evidence, confidence, source: _ } =
                &fix.terms;
            beside(&format!("why: {evidence} ({})", confidence.in_words()))?;
            if fix.kind == FixKind::Setting {
                beside(&format!("holds for: {} {}", holds_for.product, holds_for.versions))?;
                beside(&format!("costs: {}; {}", risk.costs, risk.touches()))?;
            } else {
                beside(&format!("costs: {}", risk.costs))?;
            }
            if *undo_is_command {
                writeln!(f, "{:LABEL_COLUMNS$}take back: {}", "", escaped(undo))?;
            } else {
                beside(&format!("take back: {undo}"))?;
            }
        }
        for remark in &self.remarks {
            labelled(f, "note", remark)?;
        }
        if let Some(pagekeeper) = &self.pagekeeper {
            // Lines to be copied stay as they are.
            let (text, lines) = pagekeeper.split_once('\n').unwrap_or((pagekeeper, ""));
            labelled(f, "pagekeeper", text)?;
            for line in lines.lines() {
                writeln!(f, "{:LABEL_COLUMNS$}{}", "", escaped(line))?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Inspected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let databases = match self.databases.len() {
            0 => "no database".to_owned(),
            1 => "1 database".to_owned(),
            many => format!("{many} databases"),
        };
        let files = if self.files == 1 { "file" } else { "files" };
        wrapped(
            f,
            "",
            2,
            &format!(
                "Inspected {databases} for {:.1} s: {} {files}, {}, {} of it resident.",
                self.seconds,
                self.files,
                ByteSize(self.size_bytes),
                ByteSize(self.resident_bytes)
            ),
        )?;
        for database in &self.databases {
            let root = database.root.as_ref();
            let root = root.map(|root| format!(" (inside its own root, {root})")).unwrap_or_default();
            let directories = match database.directories.as_slice() {
                [] => "no directory of it is known".to_owned(),
                all => all.join(", "),
            };
            wrapped(f, "  ", 4, &format!("{}: {directories}{root}", database.name))?;
            if !database.settings_from.is_empty() {
                labelled(f, "  settings", &database.settings_from.join(", "))?;
            }
            for unread in &database.settings_unread {
                labelled(f, "  not read", unread)?;
            }
        }
        labelled(f, "memory", &self.memory.to_string())?;
        if self.has_much_elsewhere() || !self.largest_elsewhere.is_empty() {
            self.show_elsewhere(f)?;
        }
        labelled(f, "seen by", &self.traced)
    }
}

impl Inspected {
    /// Shows the page cache of other files, and its largest holders.
    fn show_elsewhere(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!(
            "{} of the page cache are of files of no inspected database, such as those of programs \
                 without a profile; `pagekeeper doctor --elsewhere` names the largest holders, \
                 `pagekeeper top` all",
            ByteSize(self.elsewhere_bytes)
        );
        labelled(f, "elsewhere", &text)?;
        for holder in &self.largest_elsewhere {
            let files = if holder.files == 1 { String::new() } else { format!(" ({} files)", holder.files) };
            let open = open_in(&holder.open_in);
            labelled(f, "", &format!("{} {}{files}: {open}", ByteSize(holder.resident_bytes), holder.path))?;
        }
        if self.largest_elsewhere.iter().any(|holder| holder.open_in.is_empty()) {
            labelled(
                f,
                "",
                "`pagekeeper evict PATH` drops files that no process has open; their next reader waits for the disk",
            )?;
        }
        Ok(())
    }
}

/// Lists the processes that have a file open.
fn open_in(processes: &[OpenIn]) -> String {
    if processes.is_empty() {
        return "open in no process that is seen here".to_owned();
    }
    let processes = processes.iter().map(|open| process(&open.name, open.pid));
    format!("open in {}", processes.collect::<Vec<_>>().join(", "))
}

/// Returns the confidence as a prefix, for facts that were not seen or counted on this host.
fn unless_measured(confidence: Confidence) -> String {
    match confidence {
        Confidence::Measured => String::new(),
        other => format!("({}) ", other.in_words()),
    }
}

fn texts(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| unescaped(path).into_owned()).collect()
}

/// Lists the settings of a database that were not read.
fn not_read(settings: &Settings) -> Vec<String> {
    settings.unread.iter().map(|(path, why)| format!("{}: {why}", escaped(path))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advice::step;
    use crate::settings::{Engine, SettingOrigin, Settings};
    use crate::testing::{opener, sample};
    use crate::{Cost, Evidence, Fix, Goal, Kind, Subject};
    use pagekeeper_observe::OpenerKind;
    use pagekeeper_policy::FileClass;

    /// Columns of the text.
    const COLUMNS: usize = 80;

    fn finding(severity: Severity, title: &str) -> Finding {
        let mut settings = Settings::new(Engine::MariaDb);
        let from = SettingOrigin::File { path: "/etc/my.cnf".into(), line: 7 };
        settings.add("innodb_log_file_buffering", "ON", from);
        Finding {
            kind: Kind::LogsInCache,
            severity,
            database: Some(Subject { name: "mariadb (process 100)".to_owned(), index: 0 }),
            title: title.to_owned(),
            evidence: vec![Evidence::new("binlog: ".to_owned() + &"many words ".repeat(12))],
            cost: Cost::estimated("memory that counts as used ".repeat(6)),
            fixes: crate::advise(Goal::LogsOutOfCache, &settings).fixes,
            remarks: vec!["no setting does ".repeat(8)],
            pagekeeper: Some("pagekeeper guard --pid 100".to_owned()),
        }
    }

    #[test]
    fn large_holders_without_a_profile_are_mentioned() {
        let mut after = sample();
        let report = |after: &pagekeeper_observe::Snapshot| {
            Report::new(&Observation::new(after, after), Vec::new(), "x")
        };
        let found = report(&after);
        assert_eq!(found.inspected.elsewhere_bytes, 14 << 30);
        assert!(
            found.to_string().contains("14 GiB of the page cache are of files of no inspected database"),
            "{found}"
        );
        assert!(!found.to_string().contains("pagekeeper evict"), "nothing is known of it");
        after.host.memory.cached = 2 << 30;
        assert!(!report(&after).to_string().contains("elsewhere"), "of 24 GiB that is little");
    }

    #[test]
    fn the_largest_holder_elsewhere_is_named() {
        let after = sample();
        let mut found = Report::new(&Observation::new(&after, &after), Vec::new(), "x");
        let holder = |path: &str, files, open_in: &[(&str, u32)]| Holder {
            path: path.to_owned(),
            files,
            size_bytes: 3 << 30,
            resident_bytes: 2 << 30,
            open_in: open_in
                .iter()
                .map(|(name, pid)| OpenIn { name: (*name).to_owned(), pid: *pid })
                .collect(),
        };
        found.inspected.largest_elsewhere =
            vec![holder("/var/lib/etcd/member/snap/db", 1, &[("etcd", 812), ("x", 9)])];
        let text = found.to_string();
        assert!(text.contains("2 GiB /var/lib/etcd/member/snap/db: open in etcd (process 812),"), "{text}");
        assert!(!text.contains("pagekeeper evict"), "{text}");
        found.inspected.largest_elsewhere.push(holder("/srv/\u{1b}[2Jarchive", 190, &[]));
        let text = found.to_string();
        assert!(text.contains("archive (190 files): open in no"), "{text}");
        assert!(text.contains("`pagekeeper evict PATH`") && !text.contains('\u{1b}'), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
    }

    #[test]
    fn paths_inside_another_root_are_marked() {
        let mut after = sample();
        after.files.push(crate::testing::file("/var/lib/mysql/ibdata1", FileClass::Data, 8 << 20, 4 << 20));
        let of = |after: &pagekeeper_observe::Snapshot| {
            Report::new(&Observation::new(after, after), Vec::new(), "x").inspected.databases[0].root.clone()
        };
        assert_eq!(of(&after), None);
        after.files[0].reach = "/proc/100/root/var/lib/mysql/ibdata1".into();
        assert_eq!(of(&after).as_deref(), Some("/proc/100/root"));
        let text = Report::new(&Observation::new(&after, &after), Vec::new(), "x").to_string();
        assert!(text.contains("inside its own root"), "{text}");
    }

    #[test]
    fn text_fits_80_columns_and_the_worst_comes_first() {
        let mut after = sample();
        after.files.push(crate::testing::file("/var/lib/mysql/ibdata1", FileClass::Data, 8 << 20, 4 << 20));
        after.files[0].openers.push(opener(
            100,
            "mariadbd",
            OpenerKind::Direct(pagekeeper_kernel::process::AccessMode::ReadWrite),
        ));
        let before = after.clone();
        let observation = Observation::new(&before, &after);
        let findings = vec![finding(Severity::Note, "a note"), finding(Severity::Serious, "the worst")];
        let report = Report::new(&observation, findings, "events are counted in the kernel");
        assert_eq!(report.worst(), Some(Severity::Serious));
        let text = report.to_string();
        assert!(text.starts_with("SERIOUS mariadb (process 100): the worst\n"), "{text}");
        let fix = "\n  fix         innodb_log_file_buffering=OFF
              in /etc/my.cnf, line 7, where it is ON; needs a restart; the redo
              log then uses direct I/O; syncs are as before
              why: innodb_log_file_buffering is ON: /etc/my.cnf, line 7 (from
              settings)
              holds for: MariaDB 10.8.4 and later
              costs: each write of the log goes to the disk at once: where
              commits don't wait for a sync, they may wait for that; durability,
              recovery and replication as before
              take back: innodb_log_file_buffering=ON, and restart
  note        no setting does";
        assert!(text.contains(fix), "{text}");
        assert!(
            text.contains("Inspected 1 database for 10.0 s: 1 file, 8 MiB, 4 MiB of it resident."),
            "{text}"
        );
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert!(text.lines().all(|line| !line.ends_with(' ')), "{text}");

        after.files[0].residency = Some(crate::testing::residency(after.files[0].size + 96, 0));
        after.files[0].size -= 4000;
        let report = Report::new(&Observation::new(&before, &after), Vec::new(), "");
        assert_eq!(report.inspected.resident_bytes, after.files[0].size, "the last page is counted whole");
    }

    #[test]
    fn prose_of_fixes_is_wrapped_and_commands_are_whole() {
        let command = "echo ".to_owned() + &"long-word ".repeat(12) + "end";
        let prose = "many words ".repeat(15);
        let mut finding = finding(Severity::Note, "a note");
        let fix = |kind, act: &str, does: &str| {
            let terms =
                step("run-as-stream", &[("role", &""), ("program", &"a"), ("evidence", &prose)]).terms;
            let (act, does) = (act.to_owned(), does.to_owned());
            Fix { id: None, kind, setting: None, act, does, terms }
        };
        finding.fixes = vec![fix(FixKind::Command, &command, &prose), fix(FixKind::Advice, &prose, "")];
        let text = finding.to_string();
        let (whole, wrapped): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.contains("echo"));
        assert_eq!(whole, [format!("  fix         {command}")]);
        assert!(wrapped.iter().all(|line| line.chars().count() <= COLUMNS), "{text}");
    }

    #[test]
    fn each_gap_is_reported_once_and_so_is_an_empty_result() {
        let gap = VisibilityGap {
            what: "pages that come and go, and their users".to_owned(),
            why: "permission denied".to_owned(),
            needs: Some("CAP_BPF and CAP_PERFMON".to_owned()),
        };
        let before = sample();
        let mut after = sample();
        after.visibility_gaps.extend([gap.clone(), gap]);
        let report = Report::new(&Observation::new(&before, &after), Vec::new(), "only counters are read");
        assert_eq!(report.visibility_gaps.len(), 1);
        let text = report.to_string();
        assert!(text.starts_with("Nothing found in what could be seen.\nInspected 1"), "{text}");
        assert_eq!(text.matches("pages that come and go").count(), 1, "{text}");
        let json = serde_json::to_value(&report).unwrap();
        let all_seen = Report { visibility_gaps: Vec::new(), ..report };
        assert!(all_seen.to_string().starts_with("Nothing found.\nInspected 1 database for 10.0 s"));
        assert_eq!(json["findings"], serde_json::json!([]));
        assert_eq!(json["inspected"]["databases"][0]["pid"], 100);
        assert_eq!(json["inspected"]["memory"]["free_bytes"], 4_u64 << 30);
        assert!(text.contains("memory      14 GiB of 24 GiB are page cache, 4 GiB are free"), "{text}");
        assert_eq!(json["visibility_gaps"][0]["needs"], "CAP_BPF and CAP_PERFMON");
    }

    #[test]
    fn undo_commands_and_pagekeepers_own_can_be_copied() {
        let path = "/sys/fs/cgroup/a  b/".to_owned() + &"long name ".repeat(9) + "memory.max";
        let undo = format!("echo 5 > '{path}'");
        let mut finding = finding(Severity::Note, "a note");
        finding.fixes = vec![step(
            "low-swappiness",
            &[("act", &"echo 6"), ("whose", &""), ("undo", &undo), ("swap", &"")],
        )];
        finding.pagekeeper = Some(format!("after  a stop: `pagekeeper warm '{path}'` reads it"));
        let text = finding.to_string();
        assert!(text.contains(&format!("\n              take back: {undo}\n")), "{text}");
        assert!(
            text.contains(&format!("after a stop:\n              `pagekeeper warm '{path}'`\n")),
            "{text}"
        );
    }

    #[test]
    fn the_source_of_evidence_is_shown_unless_it_was_measured() {
        let mut finding = finding(Severity::Note, "a note");
        finding.evidence = vec![
            Evidence::new("seen"),
            Evidence::new("reckoned").known(Confidence::Estimated),
            Evidence::new("read").known(Confidence::FromSettings),
        ];
        let text = finding.to_string();
        assert!(text.contains("\n  - seen\n  - (estimated) reckoned\n  - (from settings) read\n"), "{text}");
    }

    fn report_on(pid: Option<u32>, files: usize, gaps: usize) -> Report {
        let database = InspectedDatabase {
            name: "mariadb".to_owned(),
            pid,
            profile: "mariadb".to_owned(),
            directories: Vec::new(),
            root: None,
            files,
            settings_from: Vec::new(),
            settings_unread: Vec::new(),
        };
        let gap = VisibilityGap { what: "a directory".to_owned(), why: "denied".to_owned(), needs: None };
        Report {
            findings: Vec::new(),
            inspected: Inspected { databases: vec![database], ..Inspected::default() },
            visibility_gaps: vec![gap; gaps],
        }
    }

    #[test]
    fn a_database_of_which_nothing_was_seen_is_not_well() {
        assert!(report_on(Some(7), 0, 1).is_blind(&[7]));
        assert!(!report_on(Some(7), 3, 1).is_blind(&[7]));
        assert!(report_on(None, 0, 1).is_blind(&[]));
        assert!(!report_on(None, 0, 0).is_blind(&[]), "an empty directory");
        assert!(report_on(Some(7), 3, 0).is_blind(&[7, 8]), "one of them has ended");
        let mut none = report_on(Some(7), 3, 0);
        none.inspected.databases.clear();
        assert!(none.is_blind(&[]), "there is none");
    }
}
