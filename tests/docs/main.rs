//! Tests of the documents. Every command block of the README and the book runs and prints its
//! output. Links lead somewhere. Crates import what ARCHITECTURE.md allows, and configurations are
//! accepted. The code has the messages that are explained, and the tests that hold promises.
//! Comments, documents and names are within the bars of [`prose`]. Figures and statements in
//! several places are the same in each.
//!
//! Blocks marked `console` are run, in order, one directory a page, on the fixtures of
//! [`fixtures`]: `$` begins a command, `#` one that needs root, `>` continues with a here-document.
//! Lines of output are compared except for figures; `…` matches anything, and on a line of its own
//! any lines. Blocks marked `console,server` need a server, systemd or a change of the host: their
//! command lines are checked against the program's help and the Makefile.

#[path = "../support/mod.rs"]
mod support;

mod blocks;
mod circles;
mod compare;
mod figures;
mod fixtures;
mod layering;
mod links;
mod messages;
mod parsed;
mod promises;
mod prose;
mod support_matrix;

use std::path::{Path, PathBuf};
use std::process::Command;

use blocks::{Block, Step};
use support::command::{finish, program};

/// Returns the root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().expect("the repository is there")
}

/// Returns all files below a directory whose names have this extension, in order.
fn files_below(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files_below(&path, extension));
        } else if path.extension().is_some_and(|other| other == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Returns the README, and all pages of the book.
fn pages() -> Vec<PathBuf> {
    let mut pages = vec![root().join("README.md")];
    pages.extend(files_below(&root().join("docs/src"), "md"));
    pages
}

#[test]
fn crates_import_only_crates_that_the_architecture_allows() {
    let wrong = layering::violations(&root());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn modules_use_each_other_in_no_large_circle() {
    let wrong = circles::violations(&root());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn command_blocks_print_the_output_in_the_book() {
    let _alone = support::alone();
    let is_root = rustix::process::geteuid().is_root();
    let (mut ran, mut only_parsed) = (0, 0);
    for page in pages() {
        let blocks: Vec<Block> = blocks::of(&page).into_iter().filter(|block| block.is("console")).collect();
        if blocks.is_empty() {
            continue;
        }
        let scratch = support::scratch();
        if blocks.iter().any(|block| !block.is("server")) {
            fixtures::make(scratch.path());
        }
        for block in blocks {
            for step in block.steps() {
                if block.is("server") || step.root && !is_root {
                    parsed::check(&step, &block);
                    only_parsed += 1;
                } else {
                    run(&step, &block, scratch.path());
                    ran += 1;
                }
            }
        }
    }
    println!("{ran} documented commands were run, {only_parsed} only parsed");
    assert!(ran >= 30, "the blocks were found");
}

/// Runs a command as a reader types it, and compares what it prints.
fn run(step: &Step, block: &Block, directory: &Path) {
    let programs = program().parent().expect("in a directory").to_path_buf();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([programs].into_iter().chain(std::env::split_paths(&path)));
    let mut shell = Command::new("sh");
    // On a terminal, standard error is mixed with the output, too.
    shell.args(["-c", &format!("exec 2>&1\n{}", step.command)]).current_dir(directory);
    shell.env("PATH", path.expect("a path")).env("HOME", directory).env("COLUMNS", "120");
    let outcome = finish(&mut shell);
    assert_eq!(outcome.code, 0, "{block}: {}\n{}{}", step.command, outcome.stdout, outcome.stderr);
    if let Err(missing) = compare::compare(&step.output, &outcome.stdout) {
        panic!(
            "{block}: {}\nThe document has\n  {missing}\nwhich is not there, or not in this place:\n{}",
            step.command, outcome.stdout
        );
    }
}

#[test]
fn configurations_are_accepted() {
    let scratch = support::scratch();
    let mut checked = 0;
    for page in pages() {
        for block in blocks::of(&page).into_iter().filter(|block| block.is("toml")) {
            let config = scratch.path().join("guard.toml");
            if block.text.contains("[[log]]") {
                let profile = scratch.path().join("profile.toml");
                std::fs::write(profile, &block.text).expect("write a profile");
                std::fs::write(&config, "profiles = [\"profile.toml\"]\n").expect("write a configuration");
            } else {
                std::fs::write(&config, block.text.replace("profiles = [\"my-", "# profiles = [\"my-"))
                    .expect("write a configuration");
            }
            let directory = scratch.path().join("empty");
            std::fs::create_dir_all(&directory).expect("make a directory");
            std::fs::write(directory.join("binlog.000001"), b"log").expect("write a log");
            std::fs::write(directory.join("binlog.index"), b"./binlog.000001\n").expect("write an index");
            let mut guard = support::command::pagekeeper();
            guard.args(["guard", "--once", "--dry-run", "--profile", "generic", "--config"]).arg(&config);
            let outcome = finish(guard.arg("--dir").arg(&directory));
            assert_eq!(outcome.code, 0, "{block}: {outcome:#?}");
            checked += 1;
        }
    }
    assert!(checked >= 2, "the blocks were found");
}

/// Returns the guard's keys in a section, from its message about an unknown one.
fn keys_of(section: &str, scratch: &Path) -> Vec<String> {
    let config = scratch.join("unknown.toml");
    std::fs::write(&config, format!("{section}\nunknown = 1\n")).expect("write a configuration");
    let mut guard = support::command::pagekeeper();
    let outcome = finish(guard.args(["guard", "--once", "--dry-run", "--config"]).arg(&config));
    assert_eq!(outcome.code, 2, "{outcome:#?}");
    let (_, keys) = outcome.stderr.split_once(", expected ").expect("it names the keys that there are");
    keys.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The page pagekeeper-guard.toml(5) has each key of the guard and of the shipped configuration,
/// and its example is a configuration.
#[test]
fn the_page_of_the_configuration_has_every_key() {
    let read = |name: &str| std::fs::read_to_string(root().join("deploy").join(name)).expect("it is shipped");
    let page = read("pagekeeper-guard.toml.5");
    let shipped = read("guard.toml");
    let key = |line: &str| {
        let line = line.strip_prefix('#').unwrap_or(line).trim_start();
        let (key, _) = line.split_once(" = ")?;
        key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_').then(|| key.to_owned())
    };
    let scratch = support::scratch();
    let mut keys: std::collections::BTreeSet<String> = shipped.lines().filter_map(key).collect();
    for section in ["[cgroup]\ngroups = [\"/a\"]", "[streams]", "[guard]"] {
        keys.extend(keys_of(section, scratch.path()));
    }
    let sections = keys_of("", scratch.path());
    assert!(sections.iter().any(|name| name == "cgroup"), "{sections:?}");
    for name in sections {
        let is_section = page.contains(&format!("[{name}]")) || page.contains(&format!("[{name}."));
        assert!(is_section || keys.contains(&name), "{name} is neither a section nor a key of the page");
    }
    assert!(keys.len() >= 16, "{keys:?}");
    for key in &keys {
        assert!(page.lines().any(|line| line.starts_with(&format!(".BR {key} "))), "{key} has no entry");
    }
    let example =
        page.split_once(".nf\n").and_then(|(_, rest)| rest.split_once(".fi")).expect("an example").0;
    let (config, directory) = (scratch.path().join("guard.toml"), scratch.path().join("logs"));
    std::fs::write(&config, example.replace("\\-", "-")).expect("write a configuration");
    std::fs::create_dir(&directory).expect("make a directory");
    std::fs::write(directory.join("binlog.000001"), b"log").expect("write a log");
    std::fs::write(directory.join("binlog.index"), b"./binlog.000001\n").expect("write an index");
    let mut guard = support::command::pagekeeper();
    guard.args(["guard", "--once", "--dry-run", "--profile", "generic", "--config"]).arg(&config);
    let outcome = finish(guard.arg("--dir").arg(&directory));
    assert_eq!(outcome.code, 0, "{outcome:#?}");
}

#[test]
fn reference_pages_have_every_option() {
    for command in ["guard", "run", "doctor"] {
        let page = root().join(format!("docs/src/reference/{command}.md"));
        let text = std::fs::read_to_string(page).expect("a page");
        let missing = parsed::options_without_mention(command, &text);
        assert!(missing.is_empty(), "{command}: {missing:?}");
    }
}

#[test]
fn links_lead_somewhere() {
    let wrong = links::violations(&root());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn troubleshooting_has_messages_of_the_code() {
    let unknown = messages::unknown(&root());
    assert!(unknown.is_empty(), "no source has\n  {}", unknown.join("\n  "));
}

#[test]
fn each_promise_about_security_has_its_test() {
    let (missing, named) = promises::without_test(&root());
    assert!(missing.is_empty(), "no source has a test\n  {}", missing.join("\n  "));
    assert!(named >= 10, "the tables were found");
}

#[test]
fn every_page_of_the_book_is_in_its_summary() {
    let source = root().join("docs/src");
    let summary = std::fs::read_to_string(source.join("SUMMARY.md")).expect("the book has a summary");
    for page in files_below(&source, "md") {
        let name = page.strip_prefix(&source).expect("below it").to_string_lossy().into_owned();
        assert!(
            name == "SUMMARY.md" || summary.contains(&format!("({name})")),
            "{name} is not in SUMMARY.md"
        );
    }
}
