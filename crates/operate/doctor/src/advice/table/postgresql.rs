//! The rows of `PostgreSQL`. Defaults are those of `guc_tables.c` from 13 to 18.

use crate::Goal;
use crate::advice::row::{Advice, Against, Effect, Offer, Product};

/// The common part of all rows.
const POSTGRESQL: Advice = Advice {
    id: "",
    product: Product::PostgreSql,
    since: "13",
    before: None,
    goals: &[],
    setting: "",
    offer: Offer::Is(""),
    default: "",
    against: Against::Default,
    effect: Effect::Reload,
    does: "",
    costs: "",
    recovery: None,
    source: "",
};

const AS_IT_GOES: &str = "what it writes is then sent to the disk as it goes, not all at the end";
const WRITEBACK: &str = "pages that are soon written again are sent to the disk more than once";

pub(crate) const CHECKPOINT_FLUSH_AFTER: Advice = Advice {
    id: "postgresql-checkpoint-flush-after",
    goals: &[Goal::SteadyWriteback],
    setting: "checkpoint_flush_after",
    offer: Offer::Is("256kB"),
    default: "256kB",
    does: AS_IT_GOES,
    costs: WRITEBACK,
    source: "https://www.postgresql.org/docs/current/runtime-config-wal.html#GUC-CHECKPOINT-FLUSH-AFTER",
    ..POSTGRESQL
};

pub(crate) const BGWRITER_FLUSH_AFTER: Advice = Advice {
    id: "postgresql-bgwriter-flush-after",
    goals: &[Goal::SteadyWriteback],
    setting: "bgwriter_flush_after",
    offer: Offer::Is("512kB"),
    default: "512kB",
    does: AS_IT_GOES,
    costs: WRITEBACK,
    source: "https://www.postgresql.org/docs/current/runtime-config-resource.html#GUC-BGWRITER-FLUSH-AFTER",
    ..POSTGRESQL
};

pub(crate) const WAL_RECYCLE: Advice = Advice {
    id: "postgresql-wal-recycle",
    goals: &[Goal::SteadyWriteback],
    setting: "wal_recycle",
    offer: Offer::Is("on"),
    default: "on",
    does: "segments are then used again, and not written with zeros first",
    costs: "on a copy-on-write file system (btrfs, ZFS) a new segment may be faster than an old one: leave it off there",
    source: "https://www.postgresql.org/docs/current/runtime-config-wal.html#GUC-WAL-RECYCLE",
    ..POSTGRESQL
};

pub(crate) const SHARED_BUFFERS: Advice = Advice {
    id: "postgresql-shared-buffers",
    goals: &[Goal::LessDoubleCaching],
    setting: "shared_buffers",
    offer: Offer::Reckoned { how: "a quarter of the memory, and at least the default" },
    default: "128MB",
    effect: Effect::Restart,
    does: "a quarter of the memory is where PostgreSQL's manual says to begin",
    costs: "what no longer fits is read from the page cache, at the price of a copy, or from the disk; check the hit rate",
    source: "https://www.postgresql.org/docs/current/runtime-config-resource.html#GUC-SHARED-BUFFERS",
    ..POSTGRESQL
};

pub(crate) const PREWARM: Advice = Advice {
    id: "postgresql-autoprewarm",
    goals: &[Goal::WarmStart],
    setting: "shared_preload_libraries",
    offer: Offer::Reckoned { how: "what is loaded already, and pg_prewarm" },
    default: "",
    against: Against::Other("what is loaded already stays; one library more is"),
    effect: Effect::Restart,
    does: "autoprewarm then loads after each start what was in shared_buffers",
    costs: "one more process, which writes a list of pages every five minutes, and reads after a start; the library \
            (package postgresql-contrib) must be there, or the server does not start",
    source: "https://www.postgresql.org/docs/current/pgprewarm.html",
    ..POSTGRESQL
};

const MORE_WRITES: &str =
    "checkpoints come more often: more full pages in WAL, more writes to the tables, and less throughput";

pub(crate) const CHECKPOINT_TIMEOUT: Advice = Advice {
    id: "postgresql-checkpoint-timeout",
    goals: &[Goal::ShortRecovery],
    setting: "checkpoint_timeout",
    offer: Offer::Is("5min"),
    default: "5min",
    does: "checkpoints come more often, so that a recovery has less to read",
    costs: MORE_WRITES,
    recovery: Some("shorter"),
    source: "https://www.postgresql.org/docs/current/runtime-config-wal.html#GUC-CHECKPOINT-TIMEOUT",
    ..POSTGRESQL
};

pub(crate) const MAX_WAL_SIZE: Advice = Advice {
    id: "postgresql-max-wal-size",
    goals: &[Goal::ShortRecovery],
    setting: "max_wal_size",
    offer: Offer::Reckoned { how: "what can be recovered within the target, and at least the default" },
    default: "1GB",
    does: "a checkpoint begins before about this much WAL is written",
    costs: MORE_WRITES,
    recovery: Some("shorter"),
    source: "https://www.postgresql.org/docs/current/runtime-config-wal.html#GUC-MAX-WAL-SIZE",
    ..POSTGRESQL
};

pub(crate) const RECOVERY_PREFETCH: Advice = Advice {
    id: "postgresql-recovery-prefetch",
    since: "15",
    goals: &[Goal::ShortRecovery],
    setting: "recovery_prefetch",
    offer: Offer::Is("try"),
    default: "try",
    does: "a recovery then reads ahead what it will need",
    costs: "nothing while the server runs; in a recovery more reads in flight",
    recovery: Some("shorter"),
    source: "https://www.postgresql.org/docs/current/runtime-config-wal.html#GUC-RECOVERY-PREFETCH",
    ..POSTGRESQL
};

/// All rows.
pub(super) const ROWS: [&Advice; 8] = [
    &CHECKPOINT_FLUSH_AFTER,
    &BGWRITER_FLUSH_AFTER,
    &WAL_RECYCLE,
    &SHARED_BUFFERS,
    &PREWARM,
    &CHECKPOINT_TIMEOUT,
    &MAX_WAL_SIZE,
    &RECOVERY_PREFETCH,
];
