//! Lists in sentences.

use std::fmt::Display;

use crate::count;

/// Formats a list: "A, B and C".
pub fn listed<T: Display>(items: &[T]) -> String {
    match items {
        [] => String::new(),
        [one] => one.to_string(),
        [first @ .., last] => format!("{} and {last}", joined(first)),
    }
}

/// Formats the first items of a list, and the number of the others: "A, B and 3 more". Very many
/// must not fill a report.
pub fn listed_up_to<T: Display>(items: &[T], shown: usize) -> String {
    let (first, more) = items.split_at(items.len().min(shown));
    let first = joined(first);
    if more.is_empty() { first } else { format!("{first} and {} more", count(more.len() as u64)) }
}

fn joined<T: Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_or_the_number_of_others_comes_after_and() {
        assert_eq!((listed::<&str>(&[]), listed(&["a"])), (String::new(), "a".to_owned()));
        assert_eq!(listed(&["a", "b", "c"]), "a, b and c");
        assert_eq!(listed_up_to(&["a", "b", "c"], 3), "a, b, c");
        assert_eq!(listed_up_to(&["a", "b", "c"], 1), "a and 2 more");
    }
}
