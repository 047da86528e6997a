//! The parser of a line of tracing for random input: hidden, and built only with the feature
//! `fuzzing`.

use crate::lines::{TraceLine, parse};

/// Parses a line. Returns its task's name if it is an event.
pub fn task_of_event(line: &[u8]) -> Option<&[u8]> {
    match parse(line)? {
        TraceLine::Event(record) => Some(record.name),
        TraceLine::Lost(_) => None,
    }
}
