//! Logs: which of their pages may go, by known positions or by inferred ones.

pub mod allowance;
pub mod exact;
#[cfg(all(test, feature = "std"))]
pub(crate) mod examples;
#[cfg(feature = "std")]
pub(crate) mod facts;
#[cfg(feature = "std")]
pub(crate) mod followed;
#[cfg(feature = "std")]
pub mod follower_history;
#[cfg(feature = "std")]
pub(crate) mod history;
pub mod log;
pub mod log_rule;
#[cfg(feature = "std")]
pub(crate) mod read_back;
pub mod recovery;
#[cfg(feature = "std")]
pub mod removed_file;
pub mod sample_schedule;
#[cfg(feature = "std")]
pub(crate) mod state;
#[cfg(feature = "std")]
pub(crate) mod step;
#[cfg(feature = "std")]
pub(crate) mod step_action;
#[cfg(feature = "std")]
pub(crate) mod tail_inference;
