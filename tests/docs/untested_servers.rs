//! The servers that were not tested are the same in the profiles and in the book.

use super::root;

#[test]
fn untested_servers_are_the_same_in_profiles_and_book() {
    // In a profile: "# NOT TESTED: NAME VERSIONS" and a remark.
    let lines = pagekeeper_catalog::BUILT_IN_PROFILES.iter().flat_map(|(_, text)| text.lines());
    let said: Vec<&str> = lines.filter_map(|line| line.strip_prefix("# NOT TESTED: ")).collect();
    let name = |said: &&str| said.split(|c: char| !c.is_alphanumeric()).next().map(str::to_owned);
    let in_profiles: Vec<String> = said.iter().filter_map(name).collect();
    let page = std::fs::read_to_string(root().join("docs/src/databases.md")).expect("a page");
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
