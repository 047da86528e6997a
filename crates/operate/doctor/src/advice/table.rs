//! The table of all advice, as data.
//!
//! `docs/src/commands/doctor.md` shows it. Tests here check every row for the promises of [`Advice`].

pub(crate) mod innodb;
pub(crate) mod postgresql;
pub(crate) mod rocksdb;

use super::row::Advice;

const COUNT: usize = innodb::ROWS.len() + postgresql::ROWS.len() + rocksdb::ROWS.len();

/// All database settings that are ever advised.
pub const TABLE: [&Advice; COUNT] = {
    let mut all = [innodb::ROWS[0]; COUNT];
    let parts: [&[&Advice]; 3] = [&innodb::ROWS, &postgresql::ROWS, &rocksdb::ROWS];
    let (mut part, mut next) = (0, 0);
    while part < parts.len() {
        let mut row = 0;
        while row < parts[part].len() {
            all[next] = parts[part][row];
            next += 1;
            row += 1;
        }
        part += 1;
    }
    all
};

#[cfg(test)]
mod tests;
