//! Tests that watch the whole machine or lower its dirty limits: the doctor, the probe, streams
//! seen from outside. Runs alone.

#[path = "../support/mod.rs"]
mod support;

mod doctor_elsewhere;
mod doctor_mariadb;
mod doctor_memory;
mod doctor_pod;
mod doctor_pool;
mod doctor_read_ahead;
mod doctor_rocksdb;
mod doctor_settings;
mod doctor_streams;
mod doctor_swap;
mod doctor_synced;
mod doctor_unprofiled;
mod engine;
mod engine_pod;
mod guard_budgets;
mod guard_cgroups;
mod guard_cgroups_databases;
mod guard_cgroups_senpai;
mod guard_streams;
mod hostile;
mod hung;
mod probe;
mod size;
