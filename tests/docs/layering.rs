//! The layers of ARCHITECTURE.md against `cargo metadata`: the table lists each crate with all its
//! imports. A crate imports only crates from rows below, and only from directories that its own
//! directory may import. No crate compiles files of another by `#[path]`. Modules have one form,
//! and crates have few files at their top.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use super::files_below;

/// Each directory of crates, and the directories that its crates may import from.
const MAY_IMPORT: [(&str, &[&str]); 4] = [
    ("base", &["base"]),
    ("operate", &["operate", "base"]),
    ("engine", &["engine", "base"]),
    ("integrations", &["engine", "base"]),
];
/// Crates of `operate` that import from `engine`, too.
const ENGINE_IMPORTERS: [&str; 2] = ["cli", "probe"];

/// The model of a page cache under the policy's tests, which the catalog's table of read-backs
/// runs, too.
const SHARED_TEST_MODEL: &str = "crates/base/policy/tests/properties";

/// Maximum number of source files at the top of a crate.
const TOP_FILES_MAX: usize = 20;
/// Crates that have more.
const CROWDED_CRATES: [&str; 2] = ["cache", "store"];

/// A crate by cargo's metadata.
struct CargoCrate {
    /// The directory of crates that has it, such as "operate".
    group: String,
    imports: Vec<String>,
}

/// Returns the crates of the table in its order, each with its imports.
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

/// Returns a crate's name and group in the table, from the path of its directory.
fn name_and_group(root: &Path, path: &str) -> (String, String) {
    let relative =
        Path::new(path).strip_prefix(root).expect("a path in the repository").to_str().expect("text");
    match relative.split('/').collect::<Vec<_>>()[..] {
        ["crates", group, name] => (name.to_owned(), group.to_owned()),
        [group, ..] => (relative.to_owned(), group.to_owned()),
        [] => panic!("{path}"),
    }
}

/// Returns the crates and their imports by cargo, without tools and tests.
fn crates(root: &Path) -> BTreeMap<String, CargoCrate> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let of_package = |package: &serde_json::Value| {
        let dependencies = package["dependencies"].as_array().expect("dependencies").iter();
        let own = dependencies.filter(|dependency| dependency["kind"].is_null());
        let own = own.filter_map(|dependency| dependency["path"].as_str());
        let mut imports: Vec<String> = own.map(|path| name_and_group(root, path).0).collect();
        imports.sort();
        let manifest = package["manifest_path"].as_str().expect("a path");
        let (name, group) = name_and_group(root, manifest.trim_end_matches("/Cargo.toml"));
        (name, CargoCrate { group, imports })
    };
    let all = metadata["packages"].as_array().expect("packages").iter().map(of_package);
    all.filter(|(_, found)| MAY_IMPORT.iter().any(|(group, _)| *group == found.group)).collect()
}

/// Returns a sentence for each `#[path]` that leads out of its crate.
fn foreign_sources(root: &Path) -> Vec<String> {
    let owner =
        |path: &Path| path.ancestors().find(|above| above.join("Cargo.toml").is_file()).map(Path::to_owned);
    let mut wrong = Vec::new();
    let places = ["bench", "crates", "docs", "integrations", "tests"].into_iter();
    for source in places.flat_map(|name| files_below(&root.join(name), "rs")) {
        let text = std::fs::read_to_string(&source).expect("a source");
        for path in text.split("\n#[path = \"").skip(1).filter_map(|rest| rest.split('"').next()) {
            let included = source.with_file_name(path).canonicalize().expect("a source");
            if owner(&included) != owner(&source) && !included.starts_with(root.join(SHARED_TEST_MODEL)) {
                wrong.push(format!("{} compiles {path} of another crate", source.display()));
            }
        }
    }
    wrong
}

/// Returns a sentence for each crate with too many files at its top, and for each module `x/mod.rs`
/// instead of `x.rs` beside `x/`.
fn crowded(root: &Path) -> Vec<String> {
    let (mut tops, mut wrong) = (BTreeMap::<String, usize>::new(), Vec::new());
    for source in files_below(&root.join("crates"), "rs") {
        let path = source.to_string_lossy();
        let Some((directory, inside)) = path.split_once("/src/") else { continue };
        if inside.ends_with("/mod.rs") {
            wrong.push(format!("{path} is to stand beside its directory"));
        }
        let name = directory.rsplit('/').next().unwrap_or_default();
        *tops.entry(name.to_owned()).or_default() += usize::from(!inside.contains('/'));
    }
    let many =
        |(name, files): &(String, usize)| *files > TOP_FILES_MAX && !CROWDED_CRATES.contains(&name.as_str());
    let crowded = tops.into_iter().filter(many);
    wrong.extend(crowded.map(|(name, files)| format!("`{name}` has {files} files at its top")));
    wrong
}

/// Returns a sentence for each crate that differs from the page, or breaks the layers.
pub(crate) fn violations(root: &Path) -> Vec<String> {
    let (table, crates) = (table(root), crates(root));
    let mut wrong = foreign_sources(root);
    wrong.extend(crowded(root));
    for name in crates.keys().filter(|name| table.iter().all(|(row, _)| row != *name)) {
        wrong.push(format!("ARCHITECTURE.md has no row for `{name}`"));
    }
    for (at, (name, said)) in table.iter().enumerate() {
        let mut said = said.clone();
        said.sort();
        let Some(found) = crates.get(name) else {
            wrong.push(format!("ARCHITECTURE.md has a row for `{name}`, which is no crate"));
            continue;
        };
        if said != found.imports {
            wrong.push(format!("`{name}` imports {:?}; ARCHITECTURE.md says {said:?}", found.imports));
        }
        let may = MAY_IMPORT.iter().find(|(group, _)| *group == found.group).expect("such a directory").1;
        for import in &found.imports {
            if !table[at + 1..].iter().any(|(below, _)| below == import) {
                wrong.push(format!("`{name}` imports `{import}`, which does not stand below it"));
            }
            let from = crates.get(import).map_or("dev", |import| &import.group);
            let is_exempt = from == "engine" && ENGINE_IMPORTERS.contains(&name.as_str());
            if !may.contains(&from) && !is_exempt {
                wrong.push(format!("`{name}` of {} imports `{import}` of {from}", found.group));
            }
        }
    }
    wrong
}
