//! The promises of the page on security: each row of a table with the heading `test` names tests
//! that are in the sources, and that `make test` or `make test-stories` runs.

use std::path::Path;

use super::messages::collect;

/// Returns each name in the last cell of these rows that is not a test, and the number of names.
pub(super) fn without_test(root: &Path) -> (Vec<String>, usize) {
    let sources = sources(root);
    let page = std::fs::read_to_string(root.join("docs/src/security.md")).expect("a page");
    let names = names(&page);
    let count = names.len();
    let missing = names.into_iter().filter(|name| !is_run(&sources, name, &["make test-stories"]));
    (missing.map(str::to_owned).collect(), count)
}

/// Returns all Rust that has tests.
pub(super) fn sources(root: &Path) -> String {
    let mut sources = String::new();
    for directory in ["crates", "tests", "docs"] {
        collect(&root.join(directory), &mut sources);
    }
    sources
}

/// Whether a function of this name is a test that runs in `make test`, or is left to one of these
/// other targets.
pub(super) fn is_run(sources: &str, name: &str, targets: &[&str]) -> bool {
    sources.match_indices(&format!("fn {name}(")).any(|(at, _)| {
        let before = sources[..at].lines().rev().map(str::trim);
        // The rest of its own line comes first, `pub(crate)` or nothing.
        let attributes: Vec<&str> =
            before.skip_while(|line| line.is_empty()).take_while(|line| is_above(line)).collect();
        attributes.iter().any(|line| line.starts_with("#[test]"))
            && !attributes.iter().any(|line| {
                line.starts_with("#[ignore") && !targets.iter().any(|target| line.contains(target))
            })
    })
}

/// Whether a line belongs to the function below it.
fn is_above(line: &str) -> bool {
    line.starts_with("#[") || line.starts_with("//")
}

/// Returns the tests that the tables of a page name; an empty name for a row that names none.
fn names(page: &str) -> Vec<&str> {
    let mut of_promises = false;
    let mut names = Vec::new();
    for line in page.lines() {
        let cells: Vec<&str> = line.trim().trim_matches('|').split(" | ").map(str::trim).collect();
        of_promises &= line.starts_with('|');
        if line.starts_with('|') && cells.last() == Some(&"test") {
            of_promises = true;
        } else if of_promises && !line.starts_with("|---") {
            let last = cells.last().copied().unwrap_or_default();
            let quoted = last.split('`').skip(1).step_by(2);
            names.extend(quoted);
            if !last.contains('`') {
                names.push("");
            }
        }
    }
    names
}

#[test]
fn names_are_found_in_tables_of_promises_alone() {
    let page = "| who | what |\n|---|---|\n| `a` | `b` |\n\n| promise | test |\n|---|---|\n| x `y` | `one`, `two` |\n\
                | x | none |\n\n| a | `b` |\n";
    assert_eq!(names(page), ["one", "two", ""]);
}

#[test]
fn only_a_test_that_is_run_holds_a_promise() {
    let sources = "    /// It holds.\n    #[test]\n    #[cfg(unix)]\n    fn held() {}\n\nfn helper() {}\n\n\
                   #[test]\n#[ignore = \"long\"]\nfn ignored() {}\n";
    assert!(is_run(sources, "held", &[]));
    for name in ["helper", "ignored", "missing"] {
        assert!(!is_run(sources, name, &[]), "{name}");
    }
}
