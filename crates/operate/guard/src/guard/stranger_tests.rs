//! Tests of servers that are known by the files that they hold open, and of strangers that hold
//! files of such names: their own beside another user's, by hard links and symbolic ones. As root:
//! the guard may open everything, and each process runs as a user of its own.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use pagekeeper_kernel::{InspectedFile, Links, residency};

use super::claim_tests::{ATTACKER, DATABASE, Fake, Watch, directory, log, scratch, whole};
use crate::config::Options;

/// A server that is known by its open files, whatever its process's name.
struct Known {
    profile: &'static str,
    /// The name of its process.
    process: &'static str,
    /// The directory of its logs.
    directory: &'static str,
    /// The beginning of a log's name without the last digit of its number, and the name's end.
    log: (&'static str, &'static str),
    /// Files beside its logs.
    beside: &'static [&'static str],
    /// The guard's configuration: a budget would keep all of such small files.
    rules: &'static str,
}

const KNOWN: [Known; 4] = [
    Known {
        profile: "kafka",
        process: "java",
        directory: "load-0",
        log: ("0000000000000000000", ".log"),
        beside: &["00000000000000000004.timeindex"],
        rules: "[rules.kafka.messages]\nrule = \"budget\"\nbudget = \"4K\"\n",
    },
    Known {
        profile: "rabbitmq",
        process: "beam.smp",
        directory: "quorum",
        log: ("0000000", ".wal"),
        beside: &["meta.dets"],
        rules: "",
    },
    Known {
        profile: "cassandra",
        process: "java",
        directory: "commitlog",
        log: ("CommitLog-7-170000000000", ".log"),
        beside: &[],
        rules: "[rules.cassandra.wal]\nrule = \"budget\"\nbudget = \"4K\"\n",
    },
    Known {
        profile: "opensearch",
        process: "java",
        directory: "translog",
        log: ("translog-", ".tlog"),
        beside: &["translog.ckp"],
        rules: "[rules.opensearch.wal]\nrule = \"budget\"\nbudget = \"4K\"\n",
    },
];

impl Known {
    /// Returns the path of a log in a directory.
    fn log(&self, directory: &Path, number: u32) -> PathBuf {
        directory.join(format!("{}{number}{}", self.log.0, self.log.1))
    }

    /// Makes a directory of its logs for a user.
    fn directory(&self, parent: &Path, user: u32, mode: u32) -> PathBuf {
        let path = directory(parent.join(self.directory), user, mode);
        for name in self.beside {
            std::fs::write(path.join(name), "").unwrap();
        }
        path
    }

    /// Watches only these processes.
    fn watch(&self, scratch: &Path, pids: &[u32]) -> Watch {
        let config = scratch.join("guard.toml");
        std::fs::write(&config, self.rules).unwrap();
        Watch::with(Options { find: false, pids: pids.to_vec(), ..Options::read(&config).unwrap() })
    }
}

/// Returns the bytes of a file that are resident, or were evicted by the kernel alone (for instance
/// where it pages out idle memory): a release by advice leaves no trace.
fn resident_or_reclaimed(path: &Path) -> u64 {
    let counts = residency(&InspectedFile::open(path, Links::Refuse).unwrap(), 0..u64::MAX).unwrap();
    counts.resident + counts.evicted.unwrap_or_default()
}

#[test]
fn a_stranger_with_files_of_such_names_gets_nothing_of_another_user() {
    for known in KNOWN {
        let Some(dir) = scratch("strangers who hold files of servers' names") else { return };
        let [theirs, open_to_all, mine] =
            ["theirs", "open", "mine"].map(|name| directory(dir.path().join(name), ATTACKER, 0o755));
        // Everybody may read them.
        let theirs = known.directory(&theirs, DATABASE, 0o755);
        let mut others: Vec<PathBuf> =
            [1, 2, 3].map(|number| log(known.log(&theirs, number), DATABASE, 0o644)).into();
        // Everybody may create files here.
        let open_to_all = known.directory(&open_to_all, DATABASE, 0o1777);
        others.extend([1, 2].map(|number| log(known.log(&open_to_all, number), DATABASE, 0o644)));

        let home = mine;
        let mine = known.directory(&home, ATTACKER, 0o755);
        let own = log(known.log(&mine, 1), ATTACKER, 0o600);
        let newest = log(known.log(&mine, 4), ATTACKER, 0o600);
        // Another user's files, under names in a directory of the attacker's own.
        std::fs::hard_link(&others[0], known.log(&mine, 2)).unwrap();
        symlink(&others[1], known.log(&mine, 3)).unwrap();
        // The attacker's own file, by a name in another's directory; and another's file, through a
        // directory of the attacker's own.
        std::fs::hard_link(&newest, known.log(&open_to_all, 4)).unwrap();
        symlink(&theirs, home.join("linked-0")).unwrap();
        let holds = format!(
            "exec 3>>{} 4<{} 5>>{}",
            newest.display(),
            known.log(&home.join("linked-0"), 3).display(),
            known.log(&open_to_all, 4).display()
        );
        let fake = Fake::start(dir.path(), known.process, ATTACKER, &home, &holds);
        let mut watch = known.watch(dir.path(), &[fake.pid()]);
        watch.tick_until_released(&own);
        watch.tick_past_listing();
        let left: Vec<u64> = others.iter().map(|path| resident_or_reclaimed(path)).collect();
        assert_eq!(left, [whole(); 5], "{}: {:#?}", known.profile, watch.reports);
        let found = format!("\"{}\"", known.profile);
        assert!(
            watch.report_count("Found", fake.pid(), &found) > 0,
            "{}: {:#?}",
            known.profile,
            watch.reports
        );
        let refused = watch.report_count("Refused", fake.pid(), theirs.to_str().unwrap());
        assert_eq!(refused, 1, "{}: {:#?}", known.profile, watch.reports);

        // The same files are released for their owner.
        let opens = format!("exec 3>>{}", others[2].display());
        let real = Fake::start(dir.path(), known.process, DATABASE, &theirs, &opens);
        known.watch(dir.path(), &[fake.pid(), real.pid()]).tick_until_released(&others[0]);
    }
}
