//! The binlog as a whole.

mod bad_disk;
mod basic;
mod crash;
mod failures;
mod followers;
mod model;
mod residency;
mod rot;
mod support;
