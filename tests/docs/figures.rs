//! The figures of docs/figures.toml in each document that shows them, as
//! `<!--NAME-->FIGURE<!--/-->`.

use super::{pages, root};

const END: &str = "<!--/-->";

#[test]
fn figures_are_the_same_in_all_documents() {
    let figures = std::fs::read_to_string(root().join("docs/figures.toml")).expect("the figures");
    let figures: toml::Table = figures.parse().expect("TOML");
    let mut shown = Vec::new();
    for page in pages().into_iter().chain([root().join("bench/README.md")]) {
        let text = std::fs::read_to_string(&page).expect("a page");
        let mut written = String::new();
        for part in text.split_inclusive(END) {
            let marked =
                part.strip_suffix(END).and_then(|part| part.rsplit_once("-->")?.0.rsplit_once("<!--"));
            let Some((before, name)) = marked else {
                written += part;
                continue;
            };
            let figure =
                figures.get(name).and_then(|figure| figure.get("measured").and(figure.get("is"))?.as_str());
            let figure = figure.unwrap_or_else(|| panic!("docs/figures.toml has no {name}"));
            assert!(!before.ends_with('\n'), "{name} begins a line, which would be HTML");
            written.extend([before, "<!--", name, "-->", figure, END]);
            shown.push(name.to_owned());
        }
        if std::env::var_os("PAGEKEEPER_WRITE_FIGURES").is_some() {
            std::fs::write(&page, &written).expect("write the page");
        } else {
            assert!(text == written, "{}: figures are not as in docs/figures.toml", page.display());
        }
    }
    let is_once = |name: &&String| shown.iter().filter(|shown| shown == name).count() < 2;
    let once: Vec<_> = figures.keys().filter(is_once).collect();
    assert!(once.is_empty(), "docs/figures.toml is for figures of several places: {once:?}");
}
