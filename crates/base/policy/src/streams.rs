//! Streams: which pages a program that reads or writes once may give back, and at which pace.

pub mod once_through;
pub mod pending_ranges;
pub mod read_pace;
pub mod reader_state;
pub mod scattered;
pub mod stream;
#[cfg(feature = "std")]
pub mod stream_hold;
pub mod stream_pace;
#[cfg(feature = "std")]
pub mod stream_pages;
pub mod uncached_reads;
