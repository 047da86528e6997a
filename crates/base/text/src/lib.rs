//! All text that leaves a process: one function for each thing that is printed.
//!
//! Names that others chose pass through [`escaped`], [`shell_quoted`] or [`unescaped`], and never
//! reach a terminal as they are. Figures have a unit and few digits. Formatting never fails;
//! parsing fails with a sentence that quotes its input.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod count;
mod duration;
mod escape;
mod list;
mod quote;
mod size;
#[cfg(test)]
mod testing;
mod wrap;

pub use count::{count, counted, percent};
pub use duration::{HumanDuration, duration, microseconds, parse_period};
pub use escape::{EscapedText, escaped, escaped_bytes, is_plain, json_escaped, unescaped, unescaped_bytes};
pub use list::{listed, listed_up_to};
pub use quote::{ShellQuoted, shell_quoted};
pub use size::{ByteSize, parse_size, rate};
pub use wrap::{LABEL_COLUMNS, labelled, wrapped, wrapped_at};
