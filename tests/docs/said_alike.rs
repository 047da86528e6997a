//! Statements that stand in two places are the same in both: the guard's cost, and the servers that were not
//! tested.

use super::root;

/// The guard's share of a processor, on its page.
const COST: &str = "0.42 % of a core beside one MariaDB at 11,700 queries/s, 0.52 % at 18,400, 1.6 % with 10,000 logs in \
                    2,000 directories, 2.1 % in their first minute";

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).expect("a file of the repository")
}

/// Its words, without what begins a comment or goes on with a line of source.
fn words(text: &str) -> String {
    let words = text.split_whitespace().filter(|word| *word != "#" && *word != "\\");
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn what_the_guard_takes() {
    let path = "docs/src/commands/guard.md";
    assert!(words(&read(path)).contains(COST), "{path} does not say \"{COST}\"");
    // The pages with the measurements, with the spread.
    for (path, figures) in [
        (
            "docs/src/benchmarks.md",
            ["0.42 % (", "0.52 % of a core (", "1.63 % of a core in the second minute, 2.09 in the first"],
        ),
        ("bench/README.md", ["0.424 (", "0.518 (", "1.63 in the second minute after all were found"]),
    ] {
        for figure in figures {
            assert!(words(&read(path)).contains(figure), "{path} does not say \"{figure}\"");
        }
    }
}

#[test]
fn what_was_not_tested() {
    // In a profile: "# NOT TESTED: NAME VERSIONS", with what else there is to say.
    let lines = pagekeeper_catalog::BUILT_IN_PROFILES.iter().flat_map(|(_, text)| text.lines());
    let said: Vec<&str> = lines.filter_map(|line| line.strip_prefix("# NOT TESTED: ")).collect();
    let name = |said: &&str| said.split(|c: char| !c.is_alphanumeric()).next().map(str::to_owned);
    let in_profiles: Vec<String> = said.iter().filter_map(name).collect();
    let page = read("docs/src/databases.md");
    let lines = page.lines().filter(|line| line.starts_with("| ["));
    let rows: Vec<Vec<&str>> =
        lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect();
    let expected: Vec<&Vec<&str>> = rows.iter().filter(|row| !matches!(row[2], "" | "-")).collect();
    assert!(in_profiles.len() >= 5, "they were found: {in_profiles:?}");
    for name in &in_profiles {
        let is_said = expected.iter().any(|row| row[0].contains(name) || row[2].contains(name));
        assert!(is_said, "no row of the support matrix says that {name} is only expected to work");
    }
    for row in expected {
        let is_known = in_profiles.iter().any(|name| row[0].contains(name) || row[2].contains(name));
        assert!(is_known, "no profile says so: {row:?}");
    }
}
