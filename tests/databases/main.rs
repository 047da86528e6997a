//! The guard beside real databases: MariaDB with a replica, PostgreSQL, MySQL, RocksDB, etcd, and
//! in containers.

#[path = "../support/mod.rs"]
mod support;

mod advice;
mod bulk;
mod capabilities;
mod cassandra;
mod claims;
mod clickhouse;
mod containers;
mod discovery;
mod guard_life;
mod hint;
mod logged;
mod many_directories;
mod mariadb;
mod metrics;
mod mysql;
mod postgresql;
mod postgresql_readers;
mod read_back;
mod recovery;
mod recycled;
mod restart;
mod rocksdb_direct;
mod rocksdb_driver;
mod selection;
mod settings;
mod stream_service;
mod text_logs;
