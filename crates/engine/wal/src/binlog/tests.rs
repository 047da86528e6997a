//! The binlog as a whole.

mod bad_disk;
mod basic;
mod crash;
mod failures;
mod followers;
mod full_disk;
mod model;
mod residency;
mod rot;
mod support;
mod truncate;
