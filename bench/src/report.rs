//! The report of a run: a table for people, one JSON object for programs.
//!
//! Invariants: each case's first subject is ours; every ratio is ours against theirs and larger is
//! better, unless its name ends in a unit; missing peers are named.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use crate::goals::{GoalJudgement, judge};
use crate::machine::MachineFacts;
use crate::rounds::{BetterDirection, SubjectSamples, extremes, median, ratio, ratios};

/// The unit of a figure, which also decides which way is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FigureUnit {
    Milliseconds,
    Microseconds,
    MibPerSecond,
    QueriesPerSecond,
    ReadsPerSecond,
    MillionReadsPerSecond,
    CommitsPerSecond,
    OperationsPerSecond,
    Mib,
    PercentOfCore,
    Percent,
}

impl FigureUnit {
    pub(crate) fn better(self) -> BetterDirection {
        match self {
            Self::Milliseconds | Self::Microseconds | Self::Mib | Self::PercentOfCore => {
                BetterDirection::Less
            }
            _ => BetterDirection::More,
        }
    }

    /// Returns its name in tables and JSON.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Milliseconds => "ms",
            Self::Microseconds => "us",
            Self::MibPerSecond => "MiB/s",
            Self::QueriesPerSecond => "queries/s",
            Self::ReadsPerSecond => "reads/s",
            Self::MillionReadsPerSecond => "M reads/s",
            Self::CommitsPerSecond => "commits/s",
            Self::OperationsPerSecond => "ops/s",
            Self::Mib => "MiB",
            Self::PercentOfCore => "% of a core",
            Self::Percent => "%",
        }
    }
}

/// The figure of one subject in one case.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ReportRow {
    /// The case.
    pub(crate) case: String,
    /// The subject.
    pub(crate) subject: String,
    /// The median.
    pub(crate) value: f64,
    /// The unit.
    pub(crate) unit: FigureUnit,
    /// The smallest and the greatest sample.
    pub(crate) range: (f64, f64),
    /// Number of samples.
    pub(crate) samples: usize,
    /// Our ratio to this subject, larger is better; `None` for ours.
    pub(crate) against: Option<f64>,
}

impl Serialize for ReportRow {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct ShownRow<'a> {
            case: &'a str,
            subject: &'a str,
            value: f64,
            unit: &'static str,
            spread: f64,
        }
        ShownRow {
            case: &self.case,
            subject: &self.subject,
            value: self.value,
            unit: self.unit.label(),
            spread: self.range.1 - self.range.0,
        }
        .serialize(serializer)
    }
}

/// All results of a run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    /// Name of the benchmark.
    pub(crate) bench: &'static str,
    /// The command that repeats it.
    pub(crate) command: String,
    /// The seed of its random choices.
    pub(crate) seed: u64,
    /// The machine it ran on.
    pub(crate) machine: MachineFacts,
    /// Peers that are not installed.
    pub(crate) missing: Vec<&'static str>,
    /// Notes for readers of the figures.
    pub(crate) notes: Vec<String>,
    /// The figures.
    pub(crate) rows: Vec<ReportRow>,
    /// The ratios and plain figures.
    pub(crate) ratios: BTreeMap<&'static str, f64>,
    /// The smallest and the greatest ratio within the rounds, for medians over rounds.
    pub(crate) ranges: BTreeMap<&'static str, (f64, f64)>,
}

/// A report with the judgement of its figures.
#[derive(Debug, Serialize)]
pub(crate) struct JudgedReport<'a> {
    #[serde(flatten)]
    report: &'a Report,
    goals: BTreeMap<&'static str, GoalJudgement>,
}

impl Report {
    /// Adds a plain figure, or keeps the minimum of those added before.
    pub(crate) fn add_least(&mut self, name: &'static str, value: f64) {
        let least = self.ratios.entry(name).or_insert(value);
        *least = least.min(value);
    }

    /// Adds a case whose first subject is ours.
    pub(crate) fn add_case(&mut self, case: &str, unit: FigureUnit, samples: &[SubjectSamples]) {
        let ours = samples.first();
        for (index, of_subject) in samples.iter().enumerate() {
            let (Some(value), Some(range)) = (median(&of_subject.values), extremes(&of_subject.values))
            else {
                continue;
            };
            let against =
                ours.filter(|_| index > 0).and_then(|ours| against(ours, of_subject, unit.better()));
            self.rows.push(ReportRow {
                case: case.to_owned(),
                subject: of_subject.subject.to_owned(),
                value,
                unit,
                range,
                samples: of_subject.values.len(),
                against,
            });
        }
    }

    /// Adds the ratio of two subjects of a case, if both were measured.
    pub(crate) fn add_ratio(
        &mut self,
        name: &'static str,
        unit: FigureUnit,
        samples: &[SubjectSamples],
        ours: &str,
        theirs: &str,
    ) {
        let find = |subject| samples.iter().find(|samples| samples.subject == subject);
        let (Some(ours), Some(theirs)) = (find(ours), find(theirs)) else { return };
        let within = ratios(&ours.values, &theirs.values, unit.better());
        if let (Some(value), Some(range)) = (median(&within), extremes(&within)) {
            self.ratios.insert(name, value);
            self.ranges.insert(name, range);
        }
    }

    /// Returns the report for programs.
    pub(crate) fn with_goals(&self) -> JudgedReport<'_> {
        let goals = self.ratios.iter().filter_map(|(name, value)| Some((*name, judge(name, *value)?)));
        JudgedReport { report: self, goals: goals.collect() }
    }

    /// Notes a peer as missing, once.
    pub(crate) fn add_missing(&mut self, peer: &'static str) {
        if !self.missing.contains(&peer) {
            self.missing.push(peer);
        }
    }

    /// Returns the table.
    pub(crate) fn table(&self) -> String {
        let mut out = String::new();
        self.write_table(&mut out).unwrap_or_else(|_| unreachable!("writing to a string does not fail"));
        out
    }

    fn write_table(&self, out: &mut String) -> std::fmt::Result {
        let machine = &self.machine;
        writeln!(out, "pagekeeper-bench {}", self.bench)?;
        writeln!(
            out,
            "  machine   {}, {} cores, {:.1} GiB, Linux {}, load {:.1} at the start",
            machine.cpu,
            machine.cores,
            gib(machine.memory_bytes),
            machine.kernel,
            machine.load_1m
        )?;
        let read_ahead =
            machine.read_ahead_kb.map_or_else(|| "unknown".to_owned(), |kib| format!("{kib} KiB"));
        writeln!(
            out,
            "  files on  {}, device {}, read-ahead {read_ahead}",
            machine.file_system, machine.device
        )?;
        let versions: Vec<String> =
            machine.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
        writeln!(out, "  versions  {}", versions.join(", "))?;
        writeln!(out, "  repeat    {}", self.command)?;
        for peer in &self.missing {
            writeln!(out, "  missing   {peer}: `make bench-setup` installs it")?;
        }
        for note in &self.notes {
            writeln!(out, "  note      {note}")?;
        }
        for case in self.rows.chunk_by(|a, b| a.case == b.case && a.unit == b.unit) {
            write_case(out, case)?;
        }
        if !self.ratios.is_empty() {
            writeln!(
                out,
                "\nratios, ours against theirs, larger is better (plain figures where the name ends in a unit)"
            )?;
            let width = self.ratios.keys().map(|name| name.len()).max().unwrap_or(0);
            for (name, value) in &self.ratios {
                write!(out, "  {name:<width$}  {}", number(*value))?;
                if let Some((least, greatest)) = self.ranges.get(name) {
                    write!(out, " ({} to {})", number(*least), number(*greatest))?;
                }
                match judge(name, *value) {
                    Some(GoalJudgement { goal, met }) => {
                        writeln!(out, "  goal {goal}: {}", if met { "met" } else { "missed" })?;
                    }
                    None => writeln!(out)?,
                }
            }
        }
        Ok(())
    }
}

fn against(ours: &SubjectSamples, theirs: &SubjectSamples, better: BetterDirection) -> Option<f64> {
    ratio(&ours.values, &theirs.values, better)
}

fn write_case(out: &mut String, rows: &[ReportRow]) -> std::fmt::Result {
    let first = &rows[0];
    let direction = match first.unit.better() {
        BetterDirection::Less => "less is better",
        BetterDirection::More => "more is better",
    };
    writeln!(
        out,
        "\n{} ({}, {direction}; median, least to greatest of {})",
        first.case,
        first.unit.label(),
        first.samples
    )?;
    let names = rows.iter().map(|row| row.subject.chars().count()).max().unwrap_or(0);
    for row in rows {
        let range = format!("{} to {}", number(row.range.0), number(row.range.1));
        write!(out, "  {:<names$}  {:>8}  {range:<18}", row.subject, number(row.value))?;
        match row.against {
            Some(times) => writeln!(out, "  ours is {} x as good", number(times))?,
            None => writeln!(out)?,
        }
    }
    Ok(())
}

/// Formats a number with three or four significant digits.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        size if size >= 0.1 || size == 0.0 => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn samples(subject: &'static str, values: &[f64]) -> SubjectSamples {
        SubjectSamples { subject, values: values.to_vec() }
    }

    pub(crate) fn example() -> Report {
        let mut report = Report {
            bench: "scan",
            command: "pagekeeper-bench scan --seed 7".to_owned(),
            seed: 7,
            machine: MachineFacts {
                cpu: "A Processor".to_owned(),
                cores: 2,
                memory_bytes: 24 << 30,
                kernel: "6.18".to_owned(),
                file_system: "ext4".to_owned(),
                device: "vda".to_owned(),
                read_ahead_kb: Some(128),
                load_1m: 0.0,
                versions: [("vmtouch".to_owned(), "1.3.1".to_owned())].into(),
            },
            missing: Vec::new(),
            notes: Vec::new(),
            rows: Vec::new(),
            ratios: BTreeMap::new(),
            ranges: BTreeMap::new(),
        };
        let times = [samples("ours", &[10.0, 12.0, 11.0]), samples("vmtouch", &[20.0, 26.0, 22.0])];
        report.add_case("a tree", FigureUnit::Milliseconds, &times);
        report.add_ratio("tree_vs_vmtouch", FigureUnit::Milliseconds, &times, "ours", "vmtouch");
        report.add_ratio("tree_vs_pagers", FigureUnit::Milliseconds, &times, "ours", "pagers");
        let rates = [samples("ours", &[3.0]), samples("vmtouch", &[1.5])];
        report.add_case("a file", FigureUnit::MibPerSecond, &rates);
        report.add_ratio("file_vs_vmtouch", FigureUnit::MibPerSecond, &rates, "ours", "vmtouch");
        report.ratios.insert("scan_20k_vs_vmtouch", 4.5);
        report.add_missing("pagers");
        report.add_missing("pagers");
        report
    }

    #[test]
    fn ratios_are_ours_against_theirs_in_every_unit() {
        let report = example();
        assert_eq!(
            report.ratios,
            [("tree_vs_vmtouch", 2.0), ("file_vs_vmtouch", 2.0), ("scan_20k_vs_vmtouch", 4.5)].into()
        );
        let against: Vec<Option<f64>> = report.rows.iter().map(|row| row.against).collect();
        assert_eq!(against, [None, Some(2.0), None, Some(2.0)]);
    }

    #[test]
    fn the_json_is_one_object_of_the_fixed_form() {
        let json = serde_json::to_value(example().with_goals()).unwrap();
        assert_eq!(
            json["rows"][1],
            serde_json::json!({"case": "a tree", "subject": "vmtouch", "value": 22.0, "unit": "ms", "spread": 6.0})
        );
        assert_eq!(json["bench"], "scan");
        assert_eq!(json["machine"]["versions"]["vmtouch"], "1.3.1");
        assert_eq!(json["ratios"]["tree_vs_vmtouch"], 2.0);
        assert_eq!(json["missing"], serde_json::json!(["pagers"]));
        assert_eq!(json["ranges"]["tree_vs_vmtouch"], serde_json::json!([2.0, 26.0 / 12.0]));
        assert_eq!(json["goals"], serde_json::json!({"scan_20k_vs_vmtouch": {"goal": 5.0, "met": false}}));
    }

    #[test]
    fn the_table_has_ratio_spread_and_units() {
        let table = example().table();
        for part in [
            "A Processor, 2 cores, 24.0 GiB, Linux 6.18",
            "ext4, device vda, read-ahead 128 KiB",
            "versions  vmtouch 1.3.1",
            "repeat    pagekeeper-bench scan --seed 7",
            "missing   pagers: `make bench-setup` installs it",
            "a tree (ms, less is better; median, least to greatest of 3)",
            "22.0  20.0 to 26.0",
            "ours is 2.00 x as good",
            "a file (MiB/s, more is better",
            "tree_vs_vmtouch      2.00 (2.00 to 2.17)\n",
            "scan_20k_vs_vmtouch  4.50  goal 5: missed\n",
        ] {
            assert!(table.contains(part), "{part}\n{table}");
        }
    }

    #[test]
    fn numbers_keep_digits_that_count() {
        assert_eq!(
            [0.0, 0.0123, 0.5, 1.005, 99.44, 12345.6].map(number),
            ["0.000", "0.0123", "0.500", "1.00", "99.4", "12346"]
        );
    }
}
