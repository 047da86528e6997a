//! Commands that an operator runs by hand, their conventions, and unusual directory trees. No
//! database.

#[path = "../support/mod.rs"]
mod support;

mod block_devices;
mod completions;
mod deadlines;
mod demo;
mod doctor_schema;
mod endless;
mod exit_codes;
mod forged_names;
mod frozen;
mod habits;
mod idle_pages;
mod nasty_trees;
mod odd_proc;
mod odd_settings;
mod peers;
mod schemas;
mod store;
mod store_format;
mod toggled;
mod top;
