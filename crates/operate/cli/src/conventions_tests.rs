//! The conventions of all commands, held by a walk over them: a new command can't break one.
//!
//! The tests in `tests/commands` hold those that show in what a command does: exit codes, and JSON
//! that follows its schema.

use std::collections::BTreeMap;
use std::path::Path;

use clap::{Arg, ArgAction, Command, CommandFactory as _, Parser as _};

use crate::Cli;

/// Columns of a terminal that shows examples as they are.
const COLUMNS: usize = 80;
/// Longest description in a list of commands that is not wrapped there.
const ABOUT_COLUMNS: usize = 65;
/// Commands that print what others read, and no report.
const NO_REPORT: [&str; 4] = ["", "store", "completions", "man"];
/// Former names of options, hidden for one release: a command line with each.
const FORMER: [(&str, &str); 8] = [
    ("tick", "guard --tick 1s"),
    ("watch", "stat --watch=1s ."),
    ("watch", "doctor --watch 1s"),
    ("top", "stat --top 3 ."),
    ("top", "top --top 3"),
    ("seconds", "demo --seconds 9"),
    ("rate", "warm --rate 1M ."),
    ("to", "store repair a --to b"),
];

/// Returns all commands by their names behind "pagekeeper", which has none.
fn commands() -> BTreeMap<String, Command> {
    fn add(command: &Command, name: &str, all: &mut BTreeMap<String, Command>) {
        all.insert(name.to_owned(), command.clone());
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            add(below, format!("{name} {}", below.get_name()).trim_start(), all);
        }
    }
    let mut root = Cli::command();
    root.build();
    let mut all = BTreeMap::new();
    add(&root, "", &mut all);
    all
}

/// Returns the arguments that help shows, with the name of their command.
fn shown() -> Vec<(String, Arg)> {
    let args = |(name, command): (String, Command)| {
        let args: Vec<_> = command.get_arguments().filter(|arg| !arg.is_hide_set()).cloned().collect();
        args.into_iter().map(move |arg| (name.clone(), arg))
    };
    commands().into_iter().flat_map(args).collect()
}

fn value_name(arg: &Arg) -> String {
    let names = arg.get_value_names().filter(|_| arg.get_action().takes_values()).unwrap_or_default();
    names.iter().map(clap::builder::Str::as_str).collect()
}

/// Returns the blocks below a command's options.
fn blocks(command: &Command) -> Vec<String> {
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    text.split("\n\n").map(str::to_owned).collect()
}

fn parses(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split_whitespace().map(|word| word.trim_matches('\'')))
}

#[test]
fn the_arguments_of_all_commands_are_sound() {
    Cli::command().debug_assert();
}

#[test]
fn an_option_means_the_same_everywhere() {
    let mut known: BTreeMap<String, (String, String)> = BTreeMap::new();
    let mut shorts: BTreeMap<String, char> = BTreeMap::new();
    for (command, arg) in shown() {
        let Some(long) = arg.get_long() else { continue };
        let value = value_name(&arg);
        let (first, there) = known.entry(long.to_owned()).or_insert_with(|| (command.clone(), value.clone()));
        assert_eq!(value, *there, "--{long} of {command} and {first}");
        if let Some(short) = arg.get_short() {
            assert_eq!(*shorts.entry(long.to_owned()).or_insert(short), short, "--{long} of {command}");
        }
        if long == "pid" {
            assert!(matches!(arg.get_action(), ArgAction::Append), "--pid of {command} can't be repeated");
        }
        assert!(
            arg.get_visible_aliases().unwrap_or_default().is_empty(),
            "--{long} of {command} has two names"
        );
    }
    for (long, value) in [
        ("interval", "TIME"),
        ("duration", "TIME"),
        ("limit", "N"),
        ("pid", "PID"),
        ("dir", "DIR"),
        ("config", "FILE"),
        ("json", ""),
    ] {
        assert_eq!(known[long].1, value, "--{long}");
    }
}

#[test]
fn former_names_are_taken_and_not_shown() {
    for (name, line) in FORMER {
        let wrong: Vec<_> = shown().into_iter().filter(|(_, arg)| arg.get_long() == Some(name)).collect();
        assert!(wrong.is_empty(), "--{name} is shown: {wrong:?}");
        assert!(parses(&format!("pagekeeper {line}")).is_ok(), "{line}");
    }
}

#[test]
fn directories_are_arguments_and_options() {
    for (command, arg) in shown().iter().filter(|(_, arg)| arg.is_positional()) {
        let value = value_name(arg);
        assert!(
            ["DIR", "PATH", "SRC", "DST", "COMMAND", "SHELL"].contains(&value.as_str()),
            "{value} of {command}"
        );
        if matches!(value.as_str(), "DIR" | "PATH") {
            let has = shown().iter().any(|(other, arg)| other == command && arg.get_long() == Some("dir"));
            assert!(has, "{command} has {value} and no --dir");
        }
    }
}

#[test]
fn defaults_are_written_in_one_form() {
    for (command, arg) in shown() {
        let name = arg.get_id();
        let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
        let text = help.split_once("[default: ").map_or(help.as_str(), |(text, default)| {
            assert!(default.ends_with(']'), "{command} {name}: {help}");
            text
        });
        assert!(!text.contains("default"), "{command} {name}: {help}");
        let all = arg.get_default_values().iter().all(|value| value.is_empty() || value == "..");
        assert!(!arg.is_hide_default_value_set() || all, "{command} {name} hides its default");
    }
}

#[test]
fn every_report_can_be_json_and_has_a_schema() {
    for (name, command) in commands().into_iter().filter(|(name, _)| !NO_REPORT.contains(&name.as_str())) {
        let has = command.get_arguments().any(|arg| arg.get_long() == Some("json"));
        assert!(has, "{name} has no --json");
        let file = format!("{}.json", name.replace(' ', "-"));
        let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/schemas").join(file);
        let text = std::fs::read(&schema).unwrap_or_else(|error| panic!("{}: {error}", schema.display()));
        let schema: serde_json::Value = serde_json::from_slice(&text).expect("a schema is JSON");
        let text = schema.to_string();
        assert!(text.contains("\"schema_version\":{\"const\":"), "{name}: {text}");
        assert!(!schema["title"].is_null() && !schema["$id"].is_null(), "{name}: {text}");
    }
}

#[test]
fn help_has_examples_in_columns_that_never_wrap() {
    for (name, command) in commands() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let is_short = name.is_empty() || about.chars().count() <= ABOUT_COLUMNS;
        assert!(!about.is_empty() && is_short && !about.ends_with('.'), "{name}: {about}");
        let blocks = blocks(&command);
        assert!(blocks[0].starts_with("Examples:\n  "), "{name} has no examples");
        for block in blocks {
            if !block.contains("\n  ") {
                assert!(!block.trim_end().contains('\n'), "{name} breaks a line: {block}");
                continue;
            }
            let (heading, lines) = block.split_once('\n').expect("two lines");
            assert!(heading.ends_with(':'), "{name}: {heading}");
            let mut columns = Vec::new();
            for line in lines.lines() {
                assert!(line.starts_with("  ") && line.chars().count() <= COLUMNS, "{name}: {line}");
                let text = line.trim_start();
                let first = line.len() - text.len();
                if first > 2 {
                    columns.push(first);
                } else if let Some(at) = text.find("  ") {
                    columns.push(line.len() - text[at..].trim_start().len());
                }
            }
            columns.dedup();
            assert!(columns.len() <= 1, "{name}: columns {columns:?} in\n{block}");
        }
    }
}

#[test]
fn examples_are_accepted() {
    let mut parsed = 0;
    for (name, command) in commands() {
        for line in blocks(&command)[0].lines().filter_map(|line| line.strip_prefix("  ")) {
            let typed = line.split("  ").next().unwrap_or_default();
            let of_us = typed.split(" | ").map(|part| part.split(" > ").next().unwrap_or_default());
            for part in of_us.filter(|part| part.starts_with("pagekeeper")) {
                assert!(parses(part).is_ok(), "{name}: {part}: {:?}", parses(part).err());
                parsed += 1;
            }
        }
    }
    assert!(parsed > 50, "{parsed}");
}
