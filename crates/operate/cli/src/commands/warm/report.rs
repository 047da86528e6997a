//! The results of warming, as JSON and in words.

use std::io::Write as _;
use std::path::PathBuf;

use pagekeeper_kernel::{LockError, WarmReport};
use pagekeeper_observe::saved_pages::SinceSnapshot;
use pagekeeper_text::{ByteSize, escaped};
use serde::Serialize;

use super::item::WarmItem;
use crate::output::{self, StandardOutput};
use crate::problems::{self, Problem};

/// The result of the command.
#[derive(Debug, Serialize)]
pub(super) struct WarmOutcome {
    pub(super) files: Vec<WarmedFile>,
    pub(super) total: WarmTotal,
    pub(super) errors: Vec<Problem>,
}

/// Figures in bytes; `None` if residency can't be seen.
#[derive(Debug, Clone, Copy, Serialize)]
struct WarmFigures {
    requested: u64,
    /// The requested bytes in holes, which are not loaded.
    holes: u64,
    resident_before: Option<u64>,
    loaded: u64,
    resident_after: Option<u64>,
    locked: u64,
}

impl Default for WarmFigures {
    /// Returns the figures of no file.
    fn default() -> Self {
        let none = Some(0);
        Self { requested: 0, holes: 0, resident_before: none, loaded: 0, resident_after: none, locked: 0 }
    }
}

impl WarmFigures {
    /// Returns the bytes that were loaded or already resident, and are gone at the end.
    fn gone(&self) -> u64 {
        match (self.resident_before, self.resident_after) {
            (Some(before), Some(after)) => (before + self.loaded).saturating_sub(after),
            _ => 0,
        }
    }
}

/// One file.
#[derive(Debug, Serialize)]
pub(super) struct WarmedFile {
    #[serde(serialize_with = "output::json::path")]
    pub(super) path: PathBuf,
    #[serde(flatten)]
    figures: WarmFigures,
    /// Only when restoring.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<SinceSnapshot>,
}

impl WarmedFile {
    pub(super) fn new(
        item: &WarmItem,
        report: &WarmReport,
        state: Option<SinceSnapshot>,
        locked: u64,
    ) -> Self {
        let WarmReport { requested, holes, resident_before, loaded, resident_after, .. } = *report;
        let figures = WarmFigures { requested, holes, resident_before, loaded, resident_after, locked };
        Self { path: item.path.clone(), figures, state }
    }

    /// Returns the result for a file that is gone since its snapshot.
    pub(super) fn missing(item: &WarmItem) -> Self {
        let state = Some(SinceSnapshot::Missing);
        Self { path: item.path.clone(), figures: WarmFigures::default(), state }
    }

    /// Whether it is reported even without `--verbose`.
    pub(super) fn is_worth_a_word(&self) -> bool {
        matches!(self.state, Some(SinceSnapshot::Missing | SinceSnapshot::Replaced | SinceSnapshot::Shrank))
    }
}

/// All files together.
#[derive(Debug, Default, Serialize)]
pub(super) struct WarmTotal {
    files: u64,
    #[serde(flatten)]
    figures: WarmFigures,
    /// Files whose residency can't be seen.
    pub(super) unknown_files: u64,
    /// Restored files that were written since the snapshot.
    modified_files: u64,
    missing_files: u64,
    pub(super) seconds: f64,
    pub(super) cancelled: bool,
}

impl WarmTotal {
    pub(super) fn add(&mut self, done: &WarmedFile) {
        let (sum, figures) = (&mut self.figures, &done.figures);
        let both = |a: Option<u64>, b: Option<u64>| Some(a? + b?);
        self.files += 1;
        sum.requested = sum.requested.saturating_add(figures.requested);
        sum.holes = sum.holes.saturating_add(figures.holes);
        sum.resident_before = both(sum.resident_before, figures.resident_before);
        sum.loaded += figures.loaded;
        sum.resident_after = both(sum.resident_after, figures.resident_after);
        sum.locked += figures.locked;
        self.unknown_files += u64::from(figures.resident_after.is_none());
        self.modified_files +=
            u64::from(matches!(done.state, Some(SinceSnapshot::Modified | SinceSnapshot::Grew)));
        self.missing_files += u64::from(done.state == Some(SinceSnapshot::Missing));
    }
}

/// Returns a failure to lock, without the path.
pub(super) fn lock_error(error: &LockError) -> String {
    match error {
        LockError::Limit { wanted, limit, .. } => format!(
            "can't lock {}: this user may lock {} in all; raise it with ulimit -l, or LimitMEMLOCK= in a systemd \
             unit, or run with CAP_IPC_LOCK",
            ByteSize(*wanted),
            ByteSize(*limit)
        ),
        LockError::NoMemory { wanted, .. } => format!(
            "can't lock {}: not enough memory is free, or this process has too many mappings (vm.max_map_count); \
             lock less",
            ByteSize(*wanted)
        ),
        LockError::Kernel(error) => problems::in_words(error),
        other => other.to_string(),
    }
}

/// Writes the report for people.
pub(super) fn write(report: &WarmOutcome, verbose: bool, out: &mut StandardOutput) -> std::io::Result<()> {
    for done in &report.files {
        if verbose || done.is_worth_a_word() {
            writeln!(out, "{}: {}", escaped(&done.path), in_words(done))?;
        }
    }
    summary(&report.total).iter().try_for_each(|line| writeln!(out, "{line}"))
}

fn in_words(done: &WarmedFile) -> String {
    let WarmFigures { requested, loaded, resident_after, .. } = done.figures;
    let figures = match resident_after {
        Some(after) => {
            format!("loaded {}, {} of {} resident", ByteSize(loaded), ByteSize(after), ByteSize(requested))
        }
        None => format!("read {}", ByteSize(loaded)),
    };
    match done.state {
        None | Some(SinceSnapshot::Same) => figures,
        Some(SinceSnapshot::Missing) => "gone since the snapshot".to_owned(),
        Some(SinceSnapshot::Modified) => format!("{figures}; written since the snapshot"),
        Some(SinceSnapshot::Grew) => format!("{figures}; has grown since the snapshot"),
        Some(SinceSnapshot::Shrank) => {
            format!("{figures}; is shorter than in the snapshot: pages past its end are left out")
        }
        Some(SinceSnapshot::Replaced) => {
            format!("{figures}; another file than in the snapshot, warmed in the same places")
        }
    }
}

fn summary(total: &WarmTotal) -> Vec<String> {
    if total.files == 0 && !total.cancelled {
        return vec!["no file was read".to_owned()];
    }
    let figures = &total.figures;
    let mut parts = Vec::new();
    if figures.loaded > 0 || total.cancelled {
        let done = if figures.resident_after.is_some() { "loaded" } else { "read" };
        let start = if total.cancelled { format!("interrupted: {done}") } else { done.to_owned() };
        let rate = ByteSize::from_f64(figures.loaded as f64 / total.seconds.max(1e-9));
        parts.push(format!("{start} {} in {:.1} s ({rate}/s)", ByteSize(figures.loaded), total.seconds));
    } else {
        parts.push("nothing was missing".to_owned());
    }
    if let Some(before) = figures.resident_before.filter(|before| *before > 0 && figures.loaded > 0) {
        parts.push(format!("{} was resident before", ByteSize(before)));
    }
    let wanted = ByteSize(figures.requested - figures.holes);
    let files = output::files(total.files);
    parts.push(match figures.resident_after {
        // Counted in whole pages, of which small files fill only a part.
        Some(after) if after >= figures.requested - figures.holes => {
            format!("all {wanted} of {files} is resident now")
        }
        Some(after) => format!("{} of {wanted} of {files} is resident now", ByteSize(after)),
        None => {
            format!(
                "the resident bytes of {} are not visible to this user",
                output::files(total.unknown_files)
            )
        }
    });
    let mut lines = vec![parts.join("; ")];
    if figures.holes > 0 {
        lines.push(format!("{} in holes was left alone", ByteSize(figures.holes)));
    }
    if total.modified_files > 0 {
        lines.push(format!("written since the snapshot: {}", output::files(total.modified_files)));
    }
    if figures.gone() > 0 {
        lines.push(format!(
            "{} of it was evicted again meanwhile: there is not enough free memory for all",
            ByteSize(figures.gone())
        ));
    }
    if figures.locked > 0 {
        lines.push(format!("locked {} in memory", ByteSize(figures.locked)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::warm::item::WantedPages;
    use pagekeeper_kernel::Inode;

    fn item() -> WarmItem {
        let wanted = WantedPages::Range { range: 0..1, inode: Inode { dev: 1, ino: 1 } };
        WarmItem { path: "/a".into(), bytes: 1, wanted }
    }

    fn done(report: WarmReport) -> WarmedFile {
        WarmedFile::new(&item(), &report, None, 0)
    }

    fn report() -> WarmReport {
        WarmReport {
            requested: 4 << 20,
            holes: 1 << 20,
            resident_before: Some(1 << 20),
            loaded: 2 << 20,
            resident_after: Some(3 << 20),
            cancelled: false,
        }
    }

    #[test]
    fn the_sum_is_one_line() {
        let mut total = WarmTotal { seconds: 2.0, ..WarmTotal::default() };
        total.add(&done(report()));
        assert_eq!(
            summary(&total),
            [
                "loaded 2 MiB in 2.0 s (1 MiB/s); 1 MiB was resident before; all 3 MiB of 1 file is resident now",
                "1 MiB in holes was left alone",
            ]
        );
    }

    #[test]
    fn without_files_no_residency_is_reported() {
        assert_eq!(summary(&WarmTotal::default()), ["no file was read"]);
    }

    #[test]
    fn pages_that_did_not_stay_are_reported() {
        let mut total = WarmTotal { seconds: 1.0, cancelled: true, ..WarmTotal::default() };
        total.add(&done(WarmReport { resident_after: Some(1 << 20), holes: 0, ..report() }));
        let lines = summary(&total);
        assert!(lines[0].starts_with("interrupted: loaded 2 MiB"), "{lines:?}");
        assert!(lines[0].ends_with("; 1 MiB of 4 MiB of 1 file is resident now"), "{lines:?}");
        assert!(lines[1].starts_with("2 MiB of it was evicted again"), "{lines:?}");
    }

    #[test]
    fn invisible_values_are_null_and_reported() {
        let unknown = WarmReport { resident_before: None, resident_after: None, ..report() };
        let mut total = WarmTotal::default();
        total.add(&done(report()));
        total.add(&done(unknown));
        let json = serde_json::to_value(&total).unwrap();
        assert!(json["resident_after"].is_null() && json["resident_before"].is_null(), "{json}");
        assert_eq!((json["loaded"].as_u64(), json["unknown_files"].as_u64()), (Some(4 << 20), Some(1)));
        assert!(summary(&total)[0].contains("1 file are not visible to this user"));
    }

    #[test]
    fn a_missing_file_is_reported_and_counted_without_figures() {
        let missing = WarmedFile::missing(&item());
        assert!(missing.is_worth_a_word());
        let mut total = WarmTotal::default();
        total.add(&missing);
        let json = serde_json::to_value(&missing).unwrap();
        assert_eq!(json["state"], "missing");
        assert_eq!((json["loaded"].as_u64(), json["resident_after"].as_u64()), (Some(0), Some(0)));
        assert_eq!(serde_json::to_value(&total).unwrap()["missing_files"], 1);
    }
}
