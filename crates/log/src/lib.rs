//! Logs that give their pages back, and bulk writes that disturb no one.

mod error;
#[allow(dead_code, reason = "the logs that use it are being built")]
mod record;

pub use error::Error;
