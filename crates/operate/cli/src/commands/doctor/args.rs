//! The arguments of `pagekeeper doctor`.

use std::path::PathBuf;
use std::time::Duration;

use pagekeeper_text::parse_period;

use crate::arguments::DirArgs;

/// Find what databases lose to the page cache, and what fixes it
///
/// Inspects every database on this host, or those that are named, watches for ten seconds, and
/// reports each way in which they lose to the page cache: with the evidence, what it costs, the
/// database's own setting that fixes it, and what pagekeeper can do.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "pagekeeper doctor [OPTIONS] [DIR]...
       pagekeeper doctor --elsewhere [OPTIONS]",
    after_help = crate::help::of!("doctor")
)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(super) dirs: DirArgs,
    /// Inspect this process only, whatever it is; may be given several times
    #[arg(long, value_name = "PID", conflicts_with_all = ["dirs", "dir"])]
    pub(super) pid: Vec<u32>,
    /// How long to watch
    #[arg(long, alias = "watch", value_name = "TIME", value_parser = parse_period, default_value = "10s")]
    pub(super) duration: Duration,
    /// Evict pages left in the page cache of files that are used with direct I/O
    #[arg(long)]
    pub(super) fix: bool,
    /// Exit with 1 for a warning, 2 for something serious, 3 if not all could be inspected
    #[arg(long)]
    pub(super) check: bool,
    /// How long a recovery after a crash may take: names what shortens one that would take longer
    #[arg(long, value_name = "TIME", value_parser = parse_period)]
    pub(super) recovery_target: Option<Duration>,
    /// Disk profile that pagekeeper probe --output wrote, instead of the saved one
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(super) disk_profile: Option<PathBuf>,
    /// Snapshot that pagekeeper snapshot wrote before a restart, to compare with what is resident
    /// now
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(super) snapshot: Option<PathBuf>,
    /// Name who has most of the page cache that is of no database, closed files too: walks the
    /// host's local file systems, for five seconds at the most
    #[arg(long, conflicts_with_all = ["dirs", "dir", "pid"])]
    pub(super) elsewhere: bool,
    /// Print one JSON object with all figures, in bytes and seconds
    #[arg(long)]
    pub(super) json: bool,
}
