//! Output that goes to its disk while it is written, so that others hardly wait for it.

pub mod output_offset;
pub mod pacer;
pub mod write_behind;
pub mod write_parts;
pub mod write_queue;
pub mod writer_state;
