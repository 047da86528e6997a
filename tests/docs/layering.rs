//! The layers of ARCHITECTURE.md against `cargo metadata`: its table lists each crate with all its
//! imports. A crate imports only from rows below its own, and the half that watches databases
//! imports nothing of the half for engines.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Crates that no program or library is made of.
const TOOLS: [&str; 4] = ["bench", "docs", "testing", "fuzzing"];
/// Crates for engines, what is made of them for other languages, and what may import both halves.
const ENGINE: [&str; 5] = ["store", "cache", "log", "io", "file-table"];
const ENGINE_FACES: [&str; 2] = ["capi", "integrations/sqlite"];
const BOTH_HALVES: [&str; 2] = ["cli", "probe"];

/// The crates and what each imports, in the table's order.
fn table(root: &Path) -> Vec<(String, Vec<String>)> {
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).expect("the page");
    let rows = text.lines().skip_while(|line| !line.starts_with("| crate |")).skip(2);
    let of_row = |row: &str| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let imports = cells[3].split(", ").filter(|name| *name != "nothing").map(str::to_owned);
        (cells[1].trim_matches('`').to_owned(), imports.collect())
    };
    rows.take_while(|line| line.starts_with('|')).map(of_row).collect()
}

/// The same by cargo: a crate's name is its directory's, without `crates/`.
fn imports(root: &Path) -> BTreeMap<String, Vec<String>> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let name = |path: &str| {
        let relative = Path::new(path).strip_prefix(root).expect("a path in the repository").to_str();
        let relative = relative.expect("text").trim_end_matches("/Cargo.toml");
        relative.trim_start_matches("crates/").to_owned()
    };
    let packages = metadata["packages"].as_array().expect("packages");
    let of_package = |package: &serde_json::Value| {
        let dependencies = package["dependencies"].as_array().expect("dependencies").iter();
        let own = dependencies.filter(|dependency| dependency["kind"].is_null());
        let mut imports: Vec<String> =
            own.filter_map(|dependency| dependency["path"].as_str()).map(name).collect();
        imports.sort();
        (name(package["manifest_path"].as_str().expect("a path")), imports)
    };
    let all = packages.iter().map(of_package);
    all.filter(|(name, _)| !TOOLS.contains(&name.as_str())).collect()
}

/// A sentence for each crate that is not as the page says, or not as the layers allow.
pub(crate) fn wrong(root: &Path) -> Vec<String> {
    let (table, imports) = (table(root), imports(root));
    let mut wrong = Vec::new();
    for name in imports.keys().filter(|name| table.iter().all(|(row, _)| row != *name)) {
        wrong.push(format!("ARCHITECTURE.md has no row for `{name}`"));
    }
    for (at, (name, said)) in table.iter().enumerate() {
        let mut said = said.clone();
        said.sort();
        let Some(found) = imports.get(name) else {
            wrong.push(format!("ARCHITECTURE.md has a row for `{name}`, which is no crate"));
            continue;
        };
        if said != *found {
            wrong.push(format!("`{name}` imports {found:?}; ARCHITECTURE.md says {said:?}"));
        }
        for import in found {
            if !table[at + 1..].iter().any(|(below, _)| below == import) {
                wrong.push(format!("`{name}` imports `{import}`, which does not stand below it"));
            }
            let is_for_engines =
                |name: &String| [&ENGINE[..], &ENGINE_FACES, &BOTH_HALVES].concat().contains(&name.as_str());
            if ENGINE.contains(&import.as_str()) && !is_for_engines(name) {
                wrong
                    .push(format!("`{name}` watches databases and imports `{import}`, which is for engines"));
            }
        }
    }
    wrong
}
