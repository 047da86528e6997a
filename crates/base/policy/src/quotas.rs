//! Fair shares of processor time, files and directories for the databases of many users.

#[cfg(feature = "std")]
pub mod cpu_budget;
#[cfg(feature = "std")]
pub mod full_listing;
#[cfg(feature = "std")]
pub mod quota;
#[cfg(feature = "std")]
pub mod shares;
#[cfg(feature = "std")]
pub mod turns;
