//! The reasons why tracing, or a better source of it, is not available: the call that failed, and
//! the capability it needs.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use pagekeeper_text::escaped;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

/// An error of tracing.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The options ask for a lower level.
    #[error("the options ask for less")]
    NotAsked,
    /// The kernel's tracing file system is not mounted.
    #[error("tracefs is not mounted: mount -t tracefs tracefs /sys/kernel/tracing")]
    NoTracefs,
    /// This kernel does not have a tracepoint.
    #[error("this kernel has no tracepoint {event} (no {})", escaped(path))]
    NoEvent {
        /// The tracepoint: `filemap:mm_filemap_add_to_page_cache`.
        event: String,
        /// The path of its description.
        path: PathBuf,
    },
    /// A tracepoint of this kernel lacks a field, or has it in an unknown size.
    #[error("the tracepoint {event} has no field {field} that is understood")]
    NoField {
        /// The tracepoint.
        event: String,
        /// The field.
        field: &'static str,
    },
    /// A `format` file has a line that can't be parsed.
    #[error("{}: can't read \"{line}\"", escaped(path))]
    Format {
        /// The file.
        path: PathBuf,
        /// The line.
        line: String,
    },
    /// The kernel refused for lack of permission.
    #[error("{call} {what}: {source}: {needs}")]
    Refused {
        /// The system call.
        call: &'static str,
        /// Its object: a path, program, map or tracepoint.
        what: String,
        /// What it needs.
        needs: MissingPermission,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A system call failed otherwise.
    #[error("{call} {what}: {source}")]
    Call {
        /// The system call.
        call: &'static str,
        /// Its object: a path, program, map or tracepoint.
        what: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The kernel's verifier rejected a program.
    #[error("bpf(PROG_LOAD) {program}: {source}; the verifier says:\n{log}")]
    Rejected {
        /// The program.
        program: String,
        /// The verifier's log.
        log: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The kernel was built without a description of its types (`CONFIG_DEBUG_INFO_BTF`).
    #[error("the kernel does not describe its types (no {})", escaped(path))]
    NoTypes {
        /// The path of the description.
        path: PathBuf,
    },
    /// The kernel's description of its types lacks an item.
    #[error("{}: {source}", escaped(path))]
    Types {
        /// The description.
        path: PathBuf,
        /// The item that is missing.
        #[source]
        source: crate::page_events::BtfError,
    },
    /// Processes have other numbers here than in the kernel's events.
    #[error("this is not the first pid namespace, whose numbers the kernel's events have")]
    OtherNamespace,
    /// A name that the kernel can't compare.
    #[error("the process name \"{name}\": at most 15 bytes, and * only at the end")]
    Name {
        /// The name.
        name: String,
    },
    /// More files or devices were chosen than a filter holds.
    #[error("{given} files or devices to trace, at most {max} are possible")]
    TooMany {
        /// The number that was given.
        given: usize,
        /// The largest possible number.
        max: usize,
    },
    /// A file of `/proc` or `/sys`, or one that is to be watched, can't be read.
    #[error(transparent)]
    Kernel(#[from] pagekeeper_kernel::Error),
}

/// The requirement of a refused call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingPermission {
    /// These capabilities (capabilities(7)), by name; the caller lacks each of them.
    Capabilities(&'static [&'static str]),
    /// The kernel is locked down to this degree, which forbids the call even to root
    /// (`kernel_lockdown(7)`).
    NoLockdown(LockdownLevel),
    /// The capabilities are present; a security module or a seccomp filter forbids the call.
    OtherPolicy,
    /// The capabilities are present, but for `perf_event_open(2)` this kernel requires
    /// `CAP_SYS_ADMIN` while `kernel.perf_event_paranoid` is above 2. Kernels of distributions have
    /// this setting, Debian's by default.
    LessParanoia,
}

/// The degree of the kernel's lockdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockdownLevel {
    /// The kernel can't be changed from outside.
    Integrity,
    /// The kernel's memory can't be read either: no tracing at all.
    Confidentiality,
}

impl fmt::Display for MissingPermission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capabilities(names) => write!(f, "needs {}", names.join(" and ")),
            Self::NoLockdown(LockdownLevel::Integrity) => {
                f.write_str("the kernel is locked down (integrity)")
            }
            Self::NoLockdown(LockdownLevel::Confidentiality) => {
                f.write_str("the kernel is locked down (confidentiality)")
            }
            Self::OtherPolicy => f.write_str("a security module or a seccomp filter forbids it"),
            Self::LessParanoia => f.write_str("kernel.perf_event_paranoid above 2 forbids it"),
        }
    }
}

/// The kind of permission that a call needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PermissionKind {
    /// bpf(2) for tracepoints, and `perf_event_open(2)`.
    Programs,
    /// Reading the files of tracefs.
    Reading,
}

impl PermissionKind {
    /// Returns what is missing, given the caller's capabilities.
    fn needs(self, has: CapabilitySet, lockdown: Option<LockdownLevel>) -> MissingPermission {
        if lockdown == Some(LockdownLevel::Confidentiality) {
            return MissingPermission::NoLockdown(LockdownLevel::Confidentiality);
        }
        let (bpf, perfmon) = (has.contains(CapabilitySet::BPF), has.contains(CapabilitySet::PERFMON));
        match self {
            Self::Programs if has.contains(CapabilitySet::SYS_ADMIN) || (bpf && perfmon) => {
                MissingPermission::OtherPolicy
            }
            Self::Programs if bpf => MissingPermission::Capabilities(&["CAP_PERFMON"]),
            Self::Programs if perfmon => MissingPermission::Capabilities(&["CAP_BPF"]),
            Self::Programs => MissingPermission::Capabilities(&["CAP_BPF", "CAP_PERFMON"]),
            _ if has.contains(CapabilitySet::DAC_OVERRIDE) => MissingPermission::OtherPolicy,
            Self::Reading if has.contains(CapabilitySet::DAC_READ_SEARCH) => MissingPermission::OtherPolicy,
            Self::Reading => MissingPermission::Capabilities(&["CAP_DAC_READ_SEARCH"]),
        }
    }
}

impl TraceError {
    /// Returns the error of a failed call: [`Self::Refused`] if permission is missing.
    pub(super) fn of(
        permission: PermissionKind,
        call: &'static str,
        what: impl Into<String>,
        errno: Errno,
    ) -> Self {
        let (what, source) = (what.into(), io::Error::from(errno));
        if !matches!(errno, Errno::PERM | Errno::ACCESS) {
            return Self::Call { call, what, source };
        }
        // Capabilities of the calling thread; none if they can't be read.
        let has = rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
        let mut needs = permission.needs(has, lockdown());
        let paranoia = || std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
        if needs == MissingPermission::OtherPolicy && is_paranoia(call, errno, has, &paranoia()) {
            needs = MissingPermission::LessParanoia;
        }
        Self::Refused { call, what, needs, source }
    }

    /// Returns the error of a failed operation on a file of tracefs.
    pub(super) fn file(
        permission: PermissionKind,
        call: &'static str,
        path: &Path,
        error: &io::Error,
    ) -> Self {
        let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
        Self::of(permission, call, escaped(path).to_string(), errno)
    }
}

/// Returns whether a call was refused despite `CAP_PERFMON` because of
/// `kernel.perf_event_paranoid`, which has this value. Mainline kernels know nothing above 2.
fn is_paranoia(call: &str, errno: Errno, has: CapabilitySet, paranoia: &str) -> bool {
    call == "perf_event_open"
        && errno == Errno::ACCESS
        && !has.contains(CapabilitySet::SYS_ADMIN)
        && paranoia.trim().parse::<i32>().is_ok_and(|level| level > 2)
}

fn lockdown() -> Option<LockdownLevel> {
    parse_lockdown(&std::fs::read_to_string("/sys/kernel/security/lockdown").ok()?)
}

/// Parses `none [integrity] confidentiality`.
fn parse_lockdown(text: &str) -> Option<LockdownLevel> {
    match text.split_whitespace().find(|word| word.starts_with('['))? {
        "[integrity]" => Some(LockdownLevel::Integrity),
        "[confidentiality]" => Some(LockdownLevel::Confidentiality),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_permissions_are_named() {
        let none = CapabilitySet::empty();
        let programs = |has| PermissionKind::Programs.needs(has, None);
        assert_eq!(programs(none), MissingPermission::Capabilities(&["CAP_BPF", "CAP_PERFMON"]));
        assert_eq!(programs(CapabilitySet::BPF), MissingPermission::Capabilities(&["CAP_PERFMON"]));
        assert_eq!(programs(CapabilitySet::PERFMON), MissingPermission::Capabilities(&["CAP_BPF"]));
        assert_eq!(programs(CapabilitySet::BPF | CapabilitySet::PERFMON), MissingPermission::OtherPolicy);
        assert_eq!(programs(CapabilitySet::SYS_ADMIN), MissingPermission::OtherPolicy);
        assert_eq!(
            PermissionKind::Reading.needs(none, None),
            MissingPermission::Capabilities(&["CAP_DAC_READ_SEARCH"])
        );
        assert_eq!(
            PermissionKind::Reading.needs(CapabilitySet::DAC_READ_SEARCH, None),
            MissingPermission::OtherPolicy
        );
        let locked =
            PermissionKind::Programs.needs(CapabilitySet::all(), Some(LockdownLevel::Confidentiality));
        assert_eq!(locked, MissingPermission::NoLockdown(LockdownLevel::Confidentiality));
    }

    #[test]
    fn the_paranoia_of_distributions_is_named() {
        let rights = CapabilitySet::BPF | CapabilitySet::PERFMON;
        let by = |call, errno, has, level| is_paranoia(call, errno, has, level);
        assert!(by("perf_event_open", Errno::ACCESS, rights, "3\n"));
        assert!(by("perf_event_open", Errno::ACCESS, rights, "4\n"));
        assert!(!by("perf_event_open", Errno::ACCESS, rights, "2\n"), "of the mainline kernel");
        assert!(!by("perf_event_open", Errno::ACCESS, rights, ""));
        assert!(!by("perf_event_open", Errno::PERM, rights, "3\n"), "a seccomp filter's");
        assert!(!by("bpf(PROG_LOAD)", Errno::ACCESS, rights, "3\n"));
        assert!(!by("perf_event_open", Errno::ACCESS, rights | CapabilitySet::SYS_ADMIN, "3\n"));
    }

    #[test]
    fn the_lockdown_mode_is_the_word_in_brackets() {
        assert_eq!(parse_lockdown("[none] integrity confidentiality\n"), None);
        assert_eq!(parse_lockdown("none [integrity] confidentiality\n"), Some(LockdownLevel::Integrity));
        assert_eq!(
            parse_lockdown("none integrity [confidentiality]\n"),
            Some(LockdownLevel::Confidentiality)
        );
        assert_eq!(parse_lockdown(""), None);
    }

    #[test]
    fn the_call_and_its_requirement_are_reported() {
        let error = TraceError::Refused {
            call: "bpf(MAP_CREATE)",
            what: "pages".into(),
            needs: MissingPermission::Capabilities(&["CAP_BPF", "CAP_PERFMON"]),
            source: Errno::PERM.into(),
        };
        assert_eq!(
            error.to_string(),
            "bpf(MAP_CREATE) pages: Operation not permitted (os error 1): needs CAP_BPF and CAP_PERFMON"
        );
    }
}
