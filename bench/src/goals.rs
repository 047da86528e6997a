//! The goals by which each run judges its figures. The table in `bench/README.md` has the same
//! goals, with measured figures and limits.
//!
//! Invariants: a figure whose name ends in a unit must be at most its goal, any other at least;
//! each table row with a goal has the same goal here; each name here is a figure of some benchmark.

use serde::Serialize;

/// Figures and their goals.
const FIGURE_GOALS: &[(&str, f64)] = &[
    ("scan_20k_vs_vmtouch", 5.0),
    ("scan_20k_vs_resolved", 0.9),
    ("scan_one_vs_vmtouch", 10.0),
    ("scan_one_vs_limit", 0.95),
    ("release_vs_fadvise", 0.95),
    ("hit_500B_2T_vs_limit", 0.95),
    ("hit_500B_32T_vs_limit", 0.95),
    ("hit_500B_1T_by_c", 0.9),
    ("hit_many_2T_vs_limit", 1.3),
    ("hit_many_2T_vs_single", 1.5),
    ("mix90_2T_vs_pread", 3.0),
    ("mix90_2T_vs_least", 0.9),
    ("close_us", 1.0),
    ("close_vs_limit", 0.8),
    ("log_bin_vs_buffered", 1.0),
    ("commit_1T_vs_best_peer", 1.5),
    ("commit_8T_vs_best_peer", 3.0),
    ("commit_32T_vs_best_peer", 3.0),
    ("guard_qps", 0.99),
    ("guard_settled_cpu_percent", 0.5),
    ("guard_server_cpu_percent", 0.5),
    ("guard_2k_directories_cpu_percent", 2.0),
    ("beside_commits_vs_alone", 0.7),
    ("beside_due_vs_alone", 0.98),
    ("beside_p99_vs_alone", 0.33),
    ("beside_longest_vs_alone", 0.5),
    ("beside_copy_vs_plain", 0.8),
    ("bulk_vs_direct", 1.0),
    ("stream_read_kept", 0.95),
    ("stream_write_kept", 0.95),
    ("stream_write_vs_limit", 0.95),
    ("stream_own_hot_files_kept", 0.95),
    ("stream_own_hot_files_vs_limit", 0.95),
    ("stream_programs_clean", 0.99),
    ("stream_programs_hot_kept", 0.99),
    ("stream_programs_speed", 0.95),
    ("journal_vs_limit", 0.83),
    ("journal_vs_least", 0.83),
    ("open_nothing_vs_goal", 1.0),
    ("open_ring_64mib_vs_goal", 1.0),
    ("open_ring_4gib_vs_goal", 1.0),
    ("restart_sqlite_vs_plain", 6.0),
    ("restart_postgresql_vs_plain", 1.5),
    ("restart_etcd_vs_plain", 5.0),
    ("restart_wiredtiger_vs_plain", 20.0),
    ("restart_least_vs_plain", 0.95),
    ("size_fio_error_percent", 3.0),
    ("size_fio_cost_percent", 2.0),
    ("size_rocksdb_error_percent", 3.0),
    ("size_rocksdb_cost_percent", 2.0),
    ("size_rocksdb_writing_error_percent", 3.0),
    ("size_rocksdb_writing_cost_percent", 2.0),
    ("size_pgbench_error_percent", 3.0),
    ("size_pgbench_cost_percent", 2.0),
    ("sqlite_commits_vs_wal", 2.0),
    ("sqlite_reads_vs_wal", 1.0),
];

/// The judgement of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct GoalJudgement {
    pub(crate) goal: f64,
    pub(crate) met: bool,
}

/// Judges a figure, if it has a goal.
pub(crate) fn judge(name: &str, value: f64) -> Option<GoalJudgement> {
    let (_, goal) = *FIGURE_GOALS.iter().find(|(figure, _)| *figure == name)?;
    let is_cost = ["_us", "_ms", "_ns", "_percent", "_mib"].iter().any(|unit| name.ends_with(unit));
    Some(GoalJudgement { goal, met: if is_cost { value <= goal } else { value >= goal } })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;

    #[test]
    fn costs_are_to_be_at_most_their_goal_and_ratios_at_least() {
        let met = |name, value| judge(name, value).unwrap().met;
        assert!(met("scan_20k_vs_vmtouch", 5.0) && !met("scan_20k_vs_vmtouch", 4.99));
        assert!(met("close_us", 1.0) && !met("close_us", 1.01));
        assert!(met("guard_server_cpu_percent", 0.3) && !met("guard_server_cpu_percent", 0.75));
        assert_eq!(judge("nobody_s", 1.0), None);
    }

    #[test]
    fn the_table_of_the_readme_has_the_same_goals() {
        let text = include_str!("../README.md");
        let rows = text
            .lines()
            .skip_while(|line| !line.starts_with("## Goals,"))
            .skip_while(|line| !line.starts_with("|---"));
        let mut seen = BTreeMap::new();
        for row in rows.skip(1).take_while(|line| line.starts_with('|')) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let name = cells[1].split('`').nth(1).unwrap_or_else(|| panic!("no figure's name: {row}"));
            let said = cells[2].split(' ').next().and_then(|goal| goal.parse::<f64>().ok());
            let judged = judge(name, 0.0).map(|judged| judged.goal);
            assert_eq!(said, judged, "{name}: {row}");
            seen.insert(name, said);
        }
        assert!(seen.len() >= 14, "{seen:?}");
        // A goal against a limit has a row in the table.
        let pairs = FIGURE_GOALS.iter().filter(|(name, _)| {
            ["_vs_limit", "_vs_least", "_vs_resolved"].iter().any(|end| name.ends_with(end))
        });
        for (name, _) in pairs {
            assert!(seen.contains_key(name), "{name} is not in the table");
        }
    }

    #[test]
    fn each_goal_names_a_result_of_a_benchmark() {
        fn sources(directory: &Path, into: &mut String) {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    sources(&path, into);
                } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("goals.rs") {
                    into.push_str(&std::fs::read_to_string(path).unwrap());
                }
            }
        }
        let mut text = String::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut text);
        let unknown: Vec<&str> = FIGURE_GOALS
            .iter()
            .map(|(name, _)| *name)
            .filter(|name| !text.contains(&format!("\"{name}\"")))
            .collect();
        assert!(unknown.is_empty(), "no benchmark gives {unknown:?}");
    }
}
