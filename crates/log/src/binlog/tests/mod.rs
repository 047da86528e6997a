//! The binlog as a whole.

mod basic;
mod crash;
mod support;
