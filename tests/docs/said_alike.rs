//! What stands in more places than one says the same in each: which servers were not tried.

use super::root;

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).expect("a file of the repository")
}

#[test]
fn what_was_not_tried() {
    // In a profile: "# NOT TRIED: NAME", with what else there is to say.
    let mut in_profiles: Vec<String> = Vec::new();
    for (_, text) in pagekeeper_catalog::BUILT_IN {
        let names = text.lines().filter_map(|line| line.strip_prefix("# NOT TRIED: "));
        let first = |rest: &str| rest.split(|c: char| !c.is_alphanumeric()).next().map(str::to_owned);
        in_profiles.extend(names.filter_map(first));
    }
    let page = read("docs/src/databases.md");
    let first_cells = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let mut in_table: Vec<&str> = first_cells.filter(|cell| cell.contains("not tried")).collect();
    assert!(in_profiles.len() >= 5, "they were found: {in_profiles:?}");
    for name in in_profiles {
        let row = in_table.iter().position(|cell| cell.contains(&name));
        let row = row.unwrap_or_else(|| panic!("no row of the table says that {name} was not tried"));
        in_table.swap_remove(row);
    }
    assert!(in_table.is_empty(), "no profile says that these were not tried: {in_table:?}");
}
