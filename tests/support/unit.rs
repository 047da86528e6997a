//! The permissions and the memory limit of the shipped systemd unit, and programs started with
//! exactly these.
//!
//! setpriv(1) sets the capabilities, in a private mount namespace with tracefs mounted as at boot.
//!  The unit's read-only file systems and seccomp filter are not applied.
//!

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// A user that owns nothing, like that of `DynamicUser=`.
pub(crate) const USER_ID: u32 = 61_999;

/// Returns the capabilities that systemd would give by `CapabilityBoundingSet=` and
/// `AmbientCapabilities=` of these files of `deploy/`, which are the same.
pub(crate) fn capabilities(files: &[&str]) -> BTreeSet<String> {
    let of = |key: &str| -> BTreeSet<String> {
        let words = files.iter().flat_map(|file| values(file, key)).collect::<Vec<_>>().join(" ");
        assert!(!words.contains('~'), "{key} of {files:?} takes something away: {words}");
        words.split_whitespace().map(str::to_owned).collect()
    };
    let (bounding, ambient) = (of("CapabilityBoundingSet="), of("AmbientCapabilities="));
    assert_eq!(bounding, ambient, "{files:?}");
    assert!(!bounding.is_empty(), "{files:?} give none");
    bounding
}

/// Returns the guard's memory limit in a file of `deploy/`, in bytes: its last `MemoryMax=`, in
/// MiB.
pub(crate) fn memory_max(file: &str) -> u64 {
    let limits = values(file, "MemoryMax=");
    let mebibytes = limits.last().and_then(|limit| limit.strip_suffix('M')).expect("a limit in MiB");
    mebibytes.parse::<u64>().expect("a number") * super::MIB
}

fn values(file: &str, key: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../deploy").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().filter_map(|line| line.strip_prefix(key)).map(str::to_owned).collect()
}

/// Starts a program as a user with exactly these capabilities, who can never gain others.
///
pub(crate) fn confined(program: &Path, capabilities: &BTreeSet<String>) -> Command {
    let with = |name: &String| {
        let name = name.strip_prefix("CAP_").expect("the name of a capability").to_ascii_lowercase();
        format!("+{name}")
    };
    let set = [vec!["-all".to_owned()], capabilities.iter().map(with).collect()].concat().join(",");
    let mounted =
        "mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing; exec \"$@\"";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--", "sh", "-c", mounted, "sh", "setpriv"])
        .args([
            &format!("--reuid={USER_ID}"),
            &format!("--regid={USER_ID}"),
            "--clear-groups",
            "--no-new-privs",
        ])
        .args(["--bounding-set", "--inh-caps", "--ambient-caps"].map(|option| format!("{option}={set}")))
        .args([OsStr::new("--pdeathsig=KILL"), OsStr::new("--"), program.as_os_str()]);
    command
}

/// Returns the capability sets of a running process as masks. Checks that its user is nobody.
///
pub(crate) fn sets_of(pid: u32) -> BTreeSet<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let field = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name)).expect("always there");
        value.trim().to_owned()
    };
    assert!(field("Uid:").split_whitespace().all(|id| id == USER_ID.to_string()), "{status}");
    assert_eq!(field("NoNewPrivs:"), "1");
    ["CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"]
        .map(|set| u64::from_str_radix(&field(set), 16).expect("hexadecimal"))
        .into()
}

/// Returns the mask of capabilities, by `include/uapi/linux/capability.h`.
pub(crate) fn mask(capabilities: &BTreeSet<String>) -> u64 {
    let bit = |name: &String| match name.as_str() {
        "CAP_DAC_READ_SEARCH" => 2,
        "CAP_FOWNER" => 3,
        "CAP_SYS_PTRACE" => 19,
        "CAP_PERFMON" => 38,
        "CAP_BPF" => 39,
        other => panic!("{other} is new here: is it needed?"),
    };
    capabilities.iter().map(|name| 1_u64 << bit(name)).sum()
}
