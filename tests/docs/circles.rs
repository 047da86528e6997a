//! Import cycles: files of a crate that use each other, directly or indirectly. A reader of one has
//! to read all of them.
//!
//! Only paths that begin with `crate`, `self` or `super` count, and no tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::files_below;

/// Maximum files in an import cycle.
const FILES_MAX: usize = 2;

type Module = Vec<String>;

/// Returns the module of a source file: empty for a crate's root.
fn module(source: &Path) -> Module {
    let mut names: Module =
        source.with_extension("").iter().map(|name| name.to_string_lossy().into_owned()).collect();
    names.pop_if(|last| ["mod", "lib", "main"].contains(&last.as_str()));
    names
}

/// Returns the paths in a `use` tree, each a list of names.
fn paths(tree: &str, before: &[&str], found: &mut Vec<Module>) {
    let Some((head, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default().trim();
        let names = before.iter().copied().chain(path.split("::")).filter(|name| !name.is_empty());
        return found.push(names.map(str::to_owned).collect());
    };
    let before: Vec<&str> = before.iter().copied().chain(head.trim().split("::")).collect();
    let (mut depth, mut from) = (0, 0);
    let inner = rest.trim_end().strip_suffix('}').unwrap_or(rest);
    for (at, sign) in inner.char_indices().chain([(inner.len(), ',')]) {
        depth += i32::from(sign == '{') - i32::from(sign == '}');
        if sign == ',' && depth == 0 {
            paths(inner[from..at].trim(), &before, found);
            from = (at + 1).min(inner.len());
        }
    }
}

/// Returns the modules that a source file uses.
fn named(of: &Module, text: &str, all: &BTreeSet<Module>) -> BTreeSet<Module> {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let mut found = Vec::new();
    for statement in code.join("\n").split(';') {
        let mut words = statement.rsplit("\nuse ");
        if let Some(tree) = words.next().filter(|_| words.next().is_some() || statement.starts_with("use ")) {
            paths(tree, &[], &mut found);
        } else {
            let is_part = |sign: char| sign.is_alphanumeric() || sign == '_' || sign == ':';
            let inline = statement.split(|sign| !is_part(sign)).filter(|word| word.contains("::"));
            inline.for_each(|word| paths(word, &[], &mut found));
        }
    }
    let target = |path: Module| {
        let mut at = match path.first()?.as_str() {
            "crate" => Vec::new(),
            "super" | "self" => of.clone(),
            _ => return None,
        };
        for name in path {
            match name.as_str() {
                "crate" | "self" => {}
                "super" => drop(at.pop()),
                _ => at.push(name),
            }
        }
        while !all.contains(&at) {
            at.pop()?;
        }
        (at != *of).then_some(at)
    };
    found.into_iter().filter_map(target).collect()
}

/// Returns all modules that can be reached from a module.
fn reached<'a>(from: &'a Module, uses: &'a BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<&'a Module> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        next.extend(uses.get(module).into_iter().flatten().filter(|used| seen.insert(*used)));
    }
    seen
}

/// Returns a sentence for each crate whose import cycles exceed their limit.
pub(super) fn violations(root: &Path) -> Vec<String> {
    let mut crates: BTreeMap<String, BTreeMap<Module, String>> = BTreeMap::new();
    for file in files_below(&root.join("crates"), "rs") {
        let Some((directory, source)) = file.to_str().and_then(|path| path.split_once("/src/")) else {
            continue;
        };
        let module = module(Path::new(source));
        if !module.iter().any(|name| name.ends_with("tests")) {
            let name = directory.rsplit('/').next().unwrap_or_default().to_owned();
            let text = std::fs::read_to_string(&file).expect("a source");
            crates.entry(name).or_default().insert(module, text);
        }
    }
    let mut wrong = Vec::new();
    for (name, sources) in &crates {
        let all = sources.keys().cloned().collect();
        let uses = sources.iter().map(|(of, text)| (of.clone(), named(of, text, &all))).collect();
        let reach: BTreeMap<&Module, BTreeSet<&Module>> =
            sources.keys().map(|of| (of, reached(of, &uses))).collect();
        let circle = |of: &Module| {
            let both = reach[of].iter().filter(|other| reach[*other].contains(of));
            both.map(|module| module.join("/")).collect::<Vec<_>>()
        };
        let largest = sources.keys().map(circle).max_by_key(Vec::len).unwrap_or_default();
        if largest.len() > FILES_MAX {
            wrong.push(format!(
                "{name}: {} files use each other, {FILES_MAX} may: {largest:?}",
                largest.len()
            ));
        }
    }
    assert!(crates.len() > 10, "no sources below {}", root.display());
    wrong
}
