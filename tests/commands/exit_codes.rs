//! Exit codes: each row of the reference's table by a run that ends with it, and wrong usage of
//! every command. The codes of `run` for commands and signals are tested in `tests/preload`, those
//! of `doctor --check` for findings in `tests/host`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;

use crate::support::command::{Outcome, finish, pagekeeper, run};
use crate::support::scratch;

/// Codes for which a server with findings is needed.
const BY_FINDINGS: [i32; 2] = [1, 2];

/// Returns the codes in the first column of the reference's table, as text.
fn documented() -> BTreeSet<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/src/reference/exit-codes.md");
    let page = std::fs::read_to_string(page).expect("the reference is there");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" |"));
    rows.map(|(code, _)| code.to_owned()).filter(|code| code.parse::<i32>().is_ok()).collect()
}

#[test]
fn every_code_of_the_reference_is_that_of_a_run() {
    let dir = scratch();
    let wrong = dir.path().join("wrong.toml");
    std::fs::write(&wrong, "tick = 1\n").unwrap();
    let wrong = wrong.to_str().unwrap();
    let cases: &[(i32, &[&str])] = &[
        (0, &["--version"]),
        (0, &["stat", "/etc/passwd", "--json"]),
        (1, &["stat", "/nonexistent"]),
        (1, &["guard", "--check-config", "/nonexistent"]),
        (1, &["guard", "--config", "/nonexistent"]),
        (2, &["guard", "--check-config", wrong]),
        (2, &["guard", "--config", wrong, "--check-config"]),
        (2, &["guard", "--config", wrong]),
        (2, &["run", "--config", wrong, "--", "true"]),
        (3, &["doctor", "--check", "--duration", "100ms", "/nonexistent"]),
        (1, &["doctor", "--duration", "100ms", "/nonexistent"]),
        (64, &["--no-such-option"]),
        (64, &["guard", "--profile", "oracle"]),
        (64, &["run"]),
        (126, &["run", "--as", "bulk", "--", "/etc"]),
        (127, &["run", "--as", "bulk", "--", "/nonexistent"]),
    ];
    let mut seen: BTreeSet<String> = BY_FINDINGS.iter().map(ToString::to_string).collect();
    for (code, arguments) in cases {
        let outcome = run(*arguments);
        assert_eq!(outcome.code, *code, "{arguments:?}: {outcome:?}");
        assert!(*code == 0 || outcome.stderr.starts_with("pagekeeper: "), "{arguments:?}: {outcome:?}");
        seen.insert(code.to_string());
    }
    assert_eq!(documented(), seen);
    assert_eq!(run(["run", "--as", "bulk", "--", "sh", "-c", "exit 7"]).code, 7);
}

/// Returns the commands in a list of help.
fn listed(help: &str) -> Vec<String> {
    let (_, list) = help.split_once("Commands:\n").expect("a list of commands");
    let (list, _) = list.split_once("\n\n").expect("its end");
    let names = list.lines().filter_map(|line| line.strip_prefix("  ")?.split_once(' '));
    names.map(|(name, _)| name.to_owned()).filter(|name| !name.is_empty() && name != "help").collect()
}

#[test]
fn wrong_usage_of_every_command_ends_with_64_and_one_form_of_message() {
    let mut commands: Vec<Vec<String>> =
        listed(&run(["--help"]).expect_success()).into_iter().map(|name| vec![name]).collect();
    let below = listed(&run(["store", "--help"]).expect_success());
    commands.extend(below.into_iter().map(|name| vec!["store".to_owned(), name]));
    assert!(commands.len() >= 20, "{commands:?}");
    for command in commands {
        let Outcome { code, stdout, stderr } =
            finish(pagekeeper().args(&command).arg("--no-such-option").stdin(Stdio::null()));
        assert_eq!((code, stdout.as_str()), (64, ""), "{command:?}: {stderr}");
        assert!(stderr.starts_with("pagekeeper: ") && stderr.contains("--no-such-option"), "{stderr}");
        assert!(!stderr.contains("error:"), "{stderr}");
    }
}
