//! The names of programs known to stream.

use globset::{Glob, GlobMatcher};

/// Globs for the names (`/proc/PID/comm`, at most 15 bytes) of programs that stream: that read or
/// write much, once and in order. These are backups, dumps, archivers and copies, and programs that
/// compress or checksum files.
pub const STREAMING_PROGRAMS: [&str; 58] = [
    "tar",
    "bsdtar",
    "cpio",
    "cp",
    "dd",
    "rsync",
    "scp",
    "sftp",
    "sftp-server",
    "rclone",
    "gzip",
    "pigz",
    "bzip2",
    "xz",
    "zstd",
    "lz4",
    "md5sum",
    "sha1sum",
    "sha256sum",
    "sha512sum",
    "b2sum",
    "cksum",
    "pg_basebackup",
    "pg_dump",
    "pg_dumpall",
    "pg_combinebacku",
    "pg_receivewal",
    "pg_verifybackup",
    "pg_checksums",
    "pgbackrest",
    "pg_probackup*",
    "barman*",
    "wal-g*",
    "mariabackup",
    "mariadb-backup",
    "mariadb-dump",
    "mbstream",
    "mysqldump",
    "mysqlpump",
    "mysqlbackup",
    "mydumper",
    "myloader",
    "mariadb",
    "mysql",
    "mariadb-import",
    "mysqlimport",
    "xtrabackup",
    "xbstream",
    "xbcloud",
    "xbcrypt",
    "mongodump",
    "mongorestore",
    "restic",
    "borg",
    "bup",
    "kopia",
    "duplicity",
    "duplicacy",
];

/// Returns matchers for [`STREAMING_PROGRAMS`].
///
/// # Panics
///
/// Never in a build that passed its tests: each is read there.
pub fn streaming_programs() -> Vec<GlobMatcher> {
    let matcher = |name: &&str| Glob::new(name).expect("the names are tested").compile_matcher();
    STREAMING_PROGRAMS.iter().map(matcher).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_streaming_programs_fit_the_kernels_field() {
        assert!(STREAMING_PROGRAMS.iter().all(|name| (1..=15).contains(&name.len())));
        assert_eq!(streaming_programs().len(), STREAMING_PROGRAMS.len());
    }
}
