//! Running databases: the processes of a host, recognised by profiles.

pub(crate) mod discover;
pub(crate) mod finder;
pub(crate) mod process_table;
