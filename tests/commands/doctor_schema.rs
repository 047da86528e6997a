//! The JSON Schema of `pagekeeper doctor --json`: the output matches it, and it accepts nothing
//! else, so no field is added or removed unnoticed. The tests with databases (tests/host) compare
//! each of their reports with it, too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::command::{finish, program, run};
use crate::support::{can_run, doctor_report, schemas, scratch};

fn schema() -> Value {
    serde_json::from_slice(&std::fs::read(schemas::file("doctor")).expect("read the schema"))
        .expect("the schema is JSON")
}

/// Returns a report on a directory with one file that belongs to no database.
fn report() -> Value {
    let directory = scratch();
    std::fs::write(directory.path().join("file"), vec![0; 1 << 16]).expect("write a file");
    let path = directory.path().to_str().expect("plain");
    doctor_report::of(&run(["doctor", "--json", "--fix", "--watch", "100ms", path]))
}

#[test]
fn the_output_follows_the_schema() {
    assert_eq!(report()["schema_version"], 2);
    if !can_run("the doctor's report on a host without a database", &["unshare"]) {
        return;
    }
    // A host with no process but the doctor's.
    let alone = ["--pid", "--fork", "--mount-proc"];
    let outcome = finish(
        Command::new("unshare").args(alone).arg(program()).args(["doctor", "--json", "--watch", "100ms"]),
    );
    let report = doctor_report::of(&outcome);
    assert_eq!(report["inspected"]["databases"], json!([]));
}

/// Collects all objects of a value, by their path in it.
fn objects(value: &Value, place: String, all: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                objects(field, format!("{place}/{name}"), all);
            }
            all.push(place);
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                objects(item, format!("{place}/{index}"), all);
            }
        }
        _ => {}
    }
}

#[test]
fn a_field_more_or_less_is_refused() {
    let mut report = report();
    // One finding of each kind.
    report["findings"] = json!([{
        "kind": "setting", "severity": "note", "database": null, "title": "",
        "evidence": [{"text": "", "confidence": "measured", "figures": {
            "resident_bytes": 1, "openers": [{"pid": 1, "name": "", "how": "direct", "writes": true}],
            "shares": [{"owner": "", "class": null, "bytes": 1}],
            "alternatives": [{"setting": "", "lasts_seconds": null}],
        }}],
        "cost": {"text": "", "confidence": "estimated"},
        "fixes": [{
            "kind": "setting", "act": "", "does": "", "undo": "", "evidence": "", "confidence": "from-settings",
            "holds_for": {"product": "", "versions": ""},
            "risk": {"costs": "", "durability": null, "recovery": null, "replication": null, "restart": "nothing"},
        }],
        "remarks": [], "pagekeeper": null,
    }]);
    report["visibility_gaps"] = json!([{"what": "", "why": "", "needs": null}]);
    report["errors"] = json!([{"path": "", "error": ""}]);
    let fixed =
        ["requested", "resident_before", "released", "kept_dirty", "kept_mapped", "kept_edge", "kept_busy"];
    report["fixed"] = json!([{"path": ""}]);
    for name in fixed {
        report["fixed"][0][name] = json!(1);
    }
    let Some(errors) = schemas::errors("doctor", &report) else { return };
    assert_eq!(errors, "");
    let mut all = Vec::new();
    objects(&report, String::new(), &mut all);
    assert!(all.len() >= 16, "{all:?}");
    for place in all {
        let object = |report: &mut Value| report.pointer_mut(&place).and_then(Value::as_object_mut).cloned();
        let fields = object(&mut report).expect("it is there");
        let refused = |fields: serde_json::Map<String, Value>| {
            let mut changed = report.clone();
            *changed.pointer_mut(&place).expect("it is there") = Value::Object(fields);
            schemas::errors("doctor", &changed).is_some_and(|errors| !errors.is_empty())
        };
        let mut more = fields.clone();
        more.insert("new_field".to_owned(), json!(1));
        assert!(refused(more), "{place}/new_field");
        for name in fields.keys().filter(|_| !place.ends_with("/figures")) {
            let may_be_missing = ["root", "fixed", "figures"].contains(&name.as_str());
            let mut less = fields.clone();
            less.remove(name);
            assert_eq!(refused(less), !may_be_missing, "{place} without {name}");
        }
    }
}

fn sources(directory: &Path, all: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("list sources") {
        let path = entry.expect("list sources").path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push(path);
        }
    }
}

#[test]
fn every_kind_of_finding_is_in_the_schema() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../doctor/src/finding.rs");
    let source = std::fs::read_to_string(source).expect("read a source");
    let (_, kinds) = source.split_once("pub enum Kind {").expect("it is there");
    let (kinds, _) = kinds.split_once("\n}").expect("it ends");
    let is_kind = |line: &&str| !line.is_empty() && !line.starts_with("//");
    let words = |kind: &str| {
        let dashed: String = kind
            .chars()
            .map(|c| if c.is_uppercase() { format!("-{}", c.to_lowercase()) } else { c.into() })
            .collect();
        dashed.trim_matches(['-', ',']).to_owned()
    };
    let kinds: BTreeSet<String> = kinds.lines().map(str::trim).filter(is_kind).map(words).collect();
    let schema = schema();
    let listed = schema["$defs"]["finding"]["properties"]["kind"]["enum"].as_array().expect("kinds");
    let listed: BTreeSet<String> =
        listed.iter().map(|kind| kind.as_str().expect("text").to_owned()).collect();
    assert_eq!(kinds, listed);
}

#[test]
fn every_figure_of_the_code_is_in_the_schema() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../doctor/src"), &mut files);
    let mut names = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(file).expect("read a source").replace("..with(", "");
        for call in [".with(", ".with_known("] {
            let written_out = format!("{call}\"");
            let is_made = text.replace(&written_out, "").contains(call);
            assert!(!is_made, "a figure's name is written out, so that it can be looked for");
            let figures = text.split(&written_out).skip(1);
            names.extend(figures.filter_map(|rest| rest.split('"').next().map(str::to_owned)));
        }
    }
    assert!(names.len() >= 60, "{names:?}");
    let figures = &schema()["$defs"]["figures"];
    let listed = figures["properties"].as_object().expect("properties");
    let units = ["_bytes", "_bytes_per_second", "_seconds", "_microseconds", "_centiseconds", "_percent"];
    assert_eq!(figures["patternProperties"].as_object().expect("by their units").len(), 3);
    let unknown = |name: &&String| {
        !listed.contains_key(*name) && !units.iter().any(|unit| name.ends_with(unit)) && *name != "name"
    };
    assert_eq!(names.iter().filter(unknown).collect::<Vec<_>>(), Vec::<&String>::new());
}
