//! The sentences of findings, by name, from `advice/findings.toml`.
//!
//! A name in braces stands for a value: `{limit}`. `{name: text {}}` adds a value together with
//! words of its own, and nothing if the value is unknown or empty. Values are never searched for
//! braces, since others choose the names in them.

use std::fmt::Display;
use std::sync::LazyLock;
use std::time::Duration;

use pagekeeper_text::{ByteSize, duration, rate};
use serde_json::Value;

static TEXTS: LazyLock<toml::Table> =
    LazyLock::new(|| toml::from_str(include_str!("../advice/findings.toml")).expect("it is tested"));

/// Returns the text of this name, `section.text`, as it stands in the table.
pub(crate) fn template(id: &str) -> Option<&'static str> {
    let (first, rest) = id.split_once('.')?;
    rest.split('.').try_fold(TEXTS.get(first)?, |table, name| table.get(name))?.as_str()
}

/// Returns the text of this name with these values. The name must be in the table.
pub(crate) fn text(id: &str, values: &[(&str, &dyn Display)]) -> String {
    let template = template(id).unwrap_or_default();
    debug_assert!(!template.is_empty(), "no text is called {id}");
    let filled = filled(template, values);
    debug_assert!(filled.is_some(), "a value of {id} is missing");
    filled.unwrap_or_default()
}

/// Returns a value, or an empty text if it is unknown.
pub(crate) fn known(value: Option<impl Display>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Returns a figure as people read it, by the unit at the end of its name.
pub(crate) fn shown(name: &str, figure: &Value) -> String {
    let number = figure.as_u64().unwrap_or_default();
    match figure {
        Value::String(text) => text.clone(),
        _ if name.ends_with("_per_second") => rate(number),
        _ if name.ends_with("_bytes") => ByteSize(number).to_string(),
        _ if name.ends_with("_seconds") => {
            duration(Duration::try_from_secs_f64(figure.as_f64().unwrap_or_default()).unwrap_or_default())
        }
        figure => figure.to_string(),
    }
}

/// Returns a text with the values of the names in its braces; `None` if one of them has no value.
pub(crate) fn filled(text: &str, values: &[(&str, &dyn Display)]) -> Option<String> {
    let value = |name: &str| values.iter().find(|(known, _)| *known == name).map(|(_, value)| value);
    let (mut filled_text, mut rest) = (String::new(), text);
    while let Some((before, behind)) = rest.split_once('{') {
        let (place, after) = behind.split_at(end_of_place(behind));
        filled_text += before;
        filled_text += &match place.split_once(':') {
            None => value(place)?.to_string(),
            Some((name, words)) => match value(name).map(ToString::to_string) {
                Some(own) if !own.is_empty() => {
                    filled(words, &[&[("", &own as &dyn Display)], values].concat())?
                }
                _ => String::new(),
            },
        };
        rest = after.strip_prefix('}').unwrap_or_default();
    }
    Some(filled_text + rest)
}

/// Returns the length of a place's content, up to the brace that ends it.
fn end_of_place(text: &str) -> usize {
    let mut depth = 1;
    let end = text.find(|letter| {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        depth == 0
    });
    end.unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_braces_are_filled_in_and_braces_of_values_stay() {
        let values: &[(&str, &dyn Display)] = &[("a", &"{b}"), ("b", &2)];
        assert_eq!(filled("x {a} {b}{b} y", values).unwrap(), "x {b} 22 y");
        assert_eq!(filled("plain", values).unwrap(), "plain");
        assert_eq!(filled("{c}", values), None, "no value");
    }

    #[test]
    fn words_beside_an_unknown_value_are_left_out() {
        let values: &[(&str, &dyn Display)] = &[("a", &"{}"), ("b", &2), ("empty", &"")];
        let text = "x{a:, {} of it{b: in {} parts of {a}}}{empty:; {}}{c:; {b}}.";
        assert_eq!(filled(text, values).unwrap(), "x, {} of it in 2 parts of {}.");
    }

    #[test]
    fn figures_have_the_unit_of_their_name() {
        let shown = |name: &str, figure: Value| shown(name, &figure);
        assert_eq!(shown("free_bytes", 4096.into()), "4 KiB");
        assert_eq!(shown("read_bytes_per_second", (5 << 20).into()), "5 MiB/s");
        assert_eq!(shown("stalled_seconds", 1.5.into()), "1.5 s");
        assert_eq!(shown("stalls", 12_345.into()), "12345");
        assert_eq!(shown("device", "8:0".into()), "8:0");
    }

    fn ids(table: &toml::Table, above: &str, all: &mut Vec<String>) {
        for (name, value) in table {
            let id = format!("{above}{name}");
            match value {
                toml::Value::Table(below) => ids(below, &format!("{id}."), all),
                text => {
                    assert!(text.as_str().is_some_and(|text| !text.is_empty()), "{id}");
                    all.push(id);
                }
            }
        }
    }

    #[test]
    fn each_text_is_used_and_each_name_has_a_text() {
        let sources = crate::testing::sources();
        let mut all = Vec::new();
        ids(&TEXTS, "", &mut all);
        for id in &all {
            let (section, name) = id.rsplit_once('.').expect("a section");
            let is_used = sources.contains(&format!("\"{id}\""))
                || sources.contains(&format!("\"{section}\"")) && sources.contains(&format!(".{name}\""));
            assert!(is_used || sources.contains(&format!(".{name}\"")), "nothing uses {id}");
        }
        for call in ["text(\"", "Evidence::of(\""] {
            for rest in sources.split(call).skip(1) {
                let id = rest.split('"').next().unwrap_or_default();
                assert!(template(id).is_some() || !id.contains('.'), "{call}{id}");
            }
        }
    }
}
