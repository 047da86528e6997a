//! The support matrix of the book: its tables are those of docs/support.toml. Tests, installed
//! packages and scripts hold each row, and profiles name the servers that no test runs.

use std::collections::BTreeMap;
use std::process::Command;

use serde::Deserialize;

use super::{promises, root};

const HEADINGS: &str = "tested with | expected to work | unsupported |\n|---|---|---|---|\n";
const END: &str = "\n<!-- to here -->";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Matrix {
    database: Vec<Row>,
    platform: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    #[serde(default)]
    tested: String,
    #[serde(default)]
    expected: String,
    #[serde(default)]
    unsupported: String,
    #[serde(default)]
    tests: Vec<String>,
    /// Packages of Debian 12, with the beginning of their versions.
    #[serde(default)]
    packages: BTreeMap<String, String>,
    /// Files, with words that each has.
    #[serde(default)]
    scripts: BTreeMap<String, Vec<String>>,
}

impl Row {
    /// Returns the row as Markdown.
    fn line(&self) -> String {
        let cells = [&self.name, &self.tested, &self.expected, &self.unsupported];
        let cell = |text: &String| if text.is_empty() { " |".to_owned() } else { format!(" {text} |") };
        format!("|{}\n", cells.map(cell).concat())
    }

    /// Returns a sentence for each thing that should hold this row and does not.
    fn faults(&self, sources: &str) -> Vec<String> {
        const TARGETS: [&str; 3] = ["make test-stories", "make test-databases", "make test-mysql"];
        let tests = self.tests.iter().filter(|name| !promises::is_run(sources, name, &TARGETS));
        let mut faults: Vec<String> = tests.map(|name| format!("no test is called {name}")).collect();
        for (package, version) in &self.packages {
            let other = installed(package).filter(|installed| !is_version(installed, version));
            faults.extend(other.map(|other| format!("{package} has version {other}, not {version}")));
            if !self.tested.contains(version) {
                faults.push(format!("{version} is not among the tested versions"));
            }
        }
        for (file, words) in &self.scripts {
            let text = std::fs::read_to_string(root().join(file)).unwrap_or_default();
            let missing = words.iter().filter(|words| !text.contains(words.as_str()));
            faults.extend(missing.map(|words| format!("{file} has no \"{words}\"")));
        }
        let is_held = !(self.tests.is_empty() && self.packages.is_empty() && self.scripts.is_empty());
        if self.name.contains("databases/") && !self.tested.is_empty() && !is_held {
            faults.push("nothing shows that it is tested".to_owned());
        }
        faults
    }
}

/// Returns the version of a package on Debian 12, without its epoch; `None` elsewhere, and if it is
/// not installed.
fn installed(package: &str) -> Option<String> {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    if !release.contains("VERSION_ID=\"12\"") {
        return None;
    }
    let query = Command::new("dpkg-query").args(["-W", "-f", "${Version}", package]).output().ok()?;
    let version = String::from_utf8(query.stdout).ok().filter(|version| !version.is_empty())?;
    Some(version.split_once(':').map_or(version.as_str(), |(_, version)| version).to_owned())
}

fn is_version(version: &str, begins: &str) -> bool {
    version.strip_prefix(begins).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

fn matrix() -> Matrix {
    let text = std::fs::read_to_string(root().join("docs/support.toml")).expect("the support matrix");
    toml::from_str(&text).expect("TOML of this form")
}

#[test]
fn support_tables_agree_with_the_data() {
    let path = root().join("docs/src/databases.md");
    let page = std::fs::read_to_string(&path).expect("a page");
    let matrix = matrix();
    let mut written = page.clone();
    for (name, rows) in [("database", matrix.database), ("platform", matrix.platform)] {
        let begin = format!("<!-- docs/support.toml, {name}, from here -->\n\n");
        let (before, rest) = written.split_once(&begin).expect("the mark of a table");
        let (_, after) = rest.split_once(END).expect("its end");
        let lines: String = rows.iter().map(Row::line).collect();
        written = format!("{before}{begin}| {name} | {HEADINGS}{lines}{END}{after}");
    }
    if std::env::var_os("PAGEKEEPER_WRITE_FIGURES").is_some() {
        std::fs::write(&path, written).expect("write the page");
    } else {
        assert!(page == written, "{}: tables are not as in docs/support.toml", path.display());
    }
}

#[test]
fn support_is_held_by_tests_packages_and_scripts() {
    let sources = promises::sources(&root());
    let matrix = matrix();
    let rows = matrix.database.iter().chain(&matrix.platform);
    let faults: Vec<(&str, Vec<String>)> = rows.map(|row| (&*row.name, row.faults(&sources))).collect();
    let faults: Vec<_> = faults.iter().filter(|(_, faults)| !faults.is_empty()).collect();
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn support_is_only_expected_where_profiles_say_so() {
    // In a profile: "# NOT TESTED: NAME VERSIONS" and a remark.
    let lines = pagekeeper_catalog::BUILT_IN_PROFILES.iter().flat_map(|(_, text)| text.lines());
    let said: Vec<&str> = lines.filter_map(|line| line.strip_prefix("# NOT TESTED: ")).collect();
    let name = |said: &&str| said.split(|c: char| !c.is_alphanumeric()).next().map(str::to_owned);
    let in_profiles: Vec<String> = said.iter().filter_map(name).collect();
    assert!(in_profiles.len() >= 5, "they were found: {in_profiles:?}");
    let rows = matrix().database;
    let expected: Vec<&Row> = rows.iter().filter(|row| !matches!(&*row.expected, "" | "-")).collect();
    let is_of = |row: &Row, name: &String| row.name.contains(name) || row.expected.contains(name);
    for name in &in_profiles {
        let is_said = expected.iter().any(|row| is_of(row, name));
        assert!(is_said, "no row of the support matrix says that {name} is only expected to work");
    }
    for row in expected {
        assert!(in_profiles.iter().any(|name| is_of(row, name)), "no profile says so: {}", row.name);
    }
}

#[test]
fn a_version_is_more_than_its_first_digits() {
    assert!(is_version("10.11.19-0+deb12u1", "10.11") && is_version("15.18", "15"));
    assert!(!is_version("7.81", "7.8") && !is_version("1.7.8", "7.8"));
}
