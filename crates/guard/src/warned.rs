//! What was warned of already of one directory or process, so that each warning comes once for each.
//!
//! Invariants: it goes with the directory or process that it is of: a database that is started again is warned of again, and
//! no user's directories, nor one in another namespace that has the same path, take the place of another's warning. It holds
//! [`MOST`] at most; that there are more is said once, in place of the next.

use std::collections::HashSet;

/// So many warnings are given of one. Of a log there are a handful of kinds, each of them in a few words more or less.
const MOST: usize = 32;

/// What was warned of.
#[derive(Debug, Default)]
pub(crate) struct Warned {
    texts: HashSet<String>,
    is_full: bool,
}

impl Warned {
    /// What is to be reported now of a warning; nothing if that was done before.
    pub(crate) fn news(&mut self, warning: String) -> Option<String> {
        if self.is_full || self.texts.contains(&warning) {
            return None;
        }
        if self.texts.len() == MOST {
            self.is_full = true;
            return Some(format!(
                "there are more than {MOST} different warnings here: no further ones are reported"
            ));
        }
        self.texts.insert(warning.clone());
        Some(warning)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_warning_comes_once_and_so_does_that_there_are_too_many() {
        let mut warned = Warned::default();
        assert_eq!(warned.news("recycled".to_owned()).as_deref(), Some("recycled"));
        assert_eq!(warned.news("recycled".to_owned()), None);
        let all = (0..3 * MOST).filter_map(|number| warned.news(number.to_string()));
        let all: Vec<String> = all.collect();
        assert_eq!(all.len(), MOST, "one of them was the first, and the last is about the rest");
        assert!(all[MOST - 1].contains("no further ones are reported"), "{all:?}");
    }
}
