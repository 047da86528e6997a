//! Gaps in the view of the host as a whole. They are known from its setup, before any call fails.

use pagekeeper_kernel::pressure::SysRoots;
use pagekeeper_text::{escaped, listed};
use pagekeeper_trace::{MissingPermission, TraceError, TraceSource, Tracer};
use rustix::thread::CapabilitySet;

use crate::Host;
use crate::VisibilityGap;
use crate::visibility::{VisibilityGaps, has, lacked};

/// The number of the first pid namespace (`PROC_PID_INIT_INO` of `linux/proc_ns.h`).
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Adds the gaps in the host's own figures.
pub(crate) fn of_host(host: &Host, gaps: &mut VisibilityGaps) {
    for (pressure, what) in [
        (&host.memory_pressure, "tasks that wait for memory"),
        (&host.io_pressure, "tasks that wait for storage"),
    ] {
        if pressure.is_none() {
            gaps.add(
                what,
                "this kernel does not measure pressure",
                Some("psi=1 on the kernel's command line (Linux 4.20)"),
            );
        }
    }
    if !host.devices.is_empty() && host.devices.iter().all(|(_, device)| device.stats.is_none()) {
        let capability = lacked(&[("CAP_DAC_READ_SEARCH", CapabilitySet::DAC_READ_SEARCH)]);
        let capability = capability.map(|capability| format!(", and {capability}")).unwrap_or_default();
        let needs = format!("mount -t debugfs debugfs /sys/kernel/debug{capability}");
        gaps.add("the dirty bytes of each device", "debugfs can't be read", Some(&needs));
    }
}

/// Adds the gaps in the view of processes.
pub(crate) fn of_processes(roots: &SysRoots, gaps: &mut VisibilityGaps) {
    let namespace = |pid: &str| std::fs::read_link(roots.proc.path().join(pid).join("ns/pid"));
    // The first process's namespace is that of the whole mount; not everybody may read it.
    if let Ok(shown) = namespace("1").or_else(|_| namespace("self"))
        && shown.as_os_str() != FIRST_PID_NAMESPACE
    {
        gaps.add(
            "databases and processes outside this container",
            format!("{} shows those of {} only", escaped(roots.proc.path()), escaped(&shown)),
            Some("the host's /proc (docker run --pid=host; Kubernetes: hostPID: true)"),
        );
    }
    let point = roots.proc.path();
    let hides = roots.proc.own_mounts().unwrap_or_default().into_iter().find_map(|mount| {
        let value = escaped(&mount.option("hidepid")?).to_string();
        (mount.point == point && !matches!(value.as_str(), "0" | "off")).then_some(value)
    });
    if let Some(value) = hides.filter(|_| !has(CapabilitySet::SYS_PTRACE)) {
        gaps.add(
            "processes of other users",
            format!("{} is mounted with hidepid={value}", escaped(point)),
            Some("CAP_SYS_PTRACE"),
        );
    }
}

/// Adds the gaps in tracing.
pub(crate) fn of_tracing(tracer: &Tracer, gaps: &mut VisibilityGaps) {
    match tracer.source() {
        TraceSource::Bpf => {}
        TraceSource::Counters { no_bpf } => gaps.add(
            "pages that come and go, tasks throttled for dirty pages, tasks that reclaim",
            why(no_bpf),
            needs(no_bpf).as_deref(),
        ),
    }
    for missing in tracer.missing() {
        gaps.add("some of the events", missing.to_string(), None);
    }
}

/// Returns the gap for a subject that could not be traced beside a [`Tracer`], with the reason.
///
/// ```
/// use pagekeeper_observe::not_traced;
/// use pagekeeper_trace::TraceError;
///
/// let gap = not_traced("the duration of syncs", &TraceError::NoTracefs);
/// assert_eq!(gap.why, "tracefs is not mounted");
/// ```
pub fn not_traced(what: &str, error: &TraceError) -> VisibilityGap {
    VisibilityGap { what: what.to_owned(), why: why(error), needs: needs(error) }
}

/// Returns the kernel's reason; [`needs`] names the remedy.
fn why(error: &TraceError) -> String {
    match error {
        TraceError::Refused { call, what, source, .. } => format!("{call} {what}: {source}"),
        TraceError::NoTracefs => "tracefs is not mounted".to_owned(),
        other => other.to_string(),
    }
}

fn needs(error: &TraceError) -> Option<String> {
    match error {
        // A process that lacks the first capability may lack the next ones too.
        TraceError::Refused { needs: MissingPermission::Capabilities(names), .. } => {
            let wanted = [
                ("CAP_DAC_READ_SEARCH", CapabilitySet::DAC_READ_SEARCH),
                ("CAP_BPF", CapabilitySet::BPF),
                ("CAP_PERFMON", CapabilitySet::PERFMON),
            ];
            lacked(&wanted).or_else(|| Some(listed(names)))
        }
        TraceError::Refused { needs: MissingPermission::NoLockdown(_), .. } => {
            Some("a kernel that is not locked down".to_owned())
        }
        TraceError::Refused { needs: MissingPermission::OtherPolicy, .. } => {
            Some("leave of the security module or seccomp filter".to_owned())
        }
        TraceError::Refused { needs: MissingPermission::LessParanoia, .. } => {
            Some("sysctl kernel.perf_event_paranoid=2, or CAP_SYS_ADMIN,".to_owned())
        }
        // A process that may mount tracefs has it mounted for itself.
        TraceError::NoTracefs => {
            let mount = "mount -t tracefs tracefs /sys/kernel/tracing";
            let capability = lacked(&[("CAP_SYS_ADMIN", CapabilitySet::SYS_ADMIN)]);
            Some(
                capability.map_or_else(|| mount.to_owned(), |capability| format!("{capability}, or {mount}")),
            )
        }
        TraceError::OtherNamespace => Some("the host's process numbers (--pid=host, or hostPID)".to_owned()),
        TraceError::NotAsked
        | TraceError::NoTypes { .. }
        | TraceError::Types { .. }
        | TraceError::Name { .. }
        | TraceError::NoEvent { .. }
        | TraceError::NoField { .. }
        | TraceError::Format { .. }
        | TraceError::Call { .. }
        | TraceError::Rejected { .. }
        | TraceError::TooMany { .. }
        | TraceError::Kernel(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    fn listed_gaps(gaps: VisibilityGaps) -> Vec<(String, Option<String>)> {
        gaps.into_gaps().into_iter().map(|gap| (gap.what, gap.needs)).collect()
    }

    /// Makes a `/proc` whose first process is in this pid namespace.
    fn tree(namespace: &str, options: &str) -> (tempfile::TempDir, SysRoots) {
        let tree = tempfile::tempdir().unwrap();
        let roots = SysRoots::at(tree.path());
        for name in ["1/ns", "self"] {
            std::fs::create_dir_all(roots.proc.path().join(name)).unwrap();
        }
        symlink(namespace, roots.proc.path().join("1/ns/pid")).unwrap();
        let point = roots.proc.path().display();
        let mounts = format!("22 1 0:21 / {point} rw - proc proc {options}\n");
        std::fs::write(roots.proc.path().join("self/mountinfo"), mounts).unwrap();
        (tree, roots)
    }

    #[test]
    fn processes_that_cant_be_seen_are_reported() {
        let of = |namespace, options| {
            let (_tree, roots) = tree(namespace, options);
            let mut gaps = VisibilityGaps::default();
            of_processes(&roots, &mut gaps);
            listed_gaps(gaps)
        };
        assert_eq!(of(FIRST_PID_NAMESPACE, "rw"), []);
        assert_eq!(of(FIRST_PID_NAMESPACE, "rw,hidepid=0"), []);
        let inside = of("pid:[4026532007]", "rw");
        assert!(inside[0].0.contains("outside this container"), "{inside:?}");
        assert!(inside[0].1.as_ref().unwrap().contains("--pid=host"));
        if rustix::process::geteuid().is_root() {
            assert_eq!(of(FIRST_PID_NAMESPACE, "rw,hidepid=invisible"), []);
            let hidden = crate::testing::as_nobody(|| {
                let mut gaps = VisibilityGaps::default();
                let (_tree, roots) = tree(FIRST_PID_NAMESPACE, "rw,hidepid=2");
                of_processes(&roots, &mut gaps);
                listed_gaps(gaps)
            });
            assert_eq!(hidden, [("processes of other users".to_owned(), Some("CAP_SYS_PTRACE".to_owned()))]);
        }
    }

    #[test]
    fn a_kernel_without_psi_is_reported() {
        let tree = tempfile::tempdir().unwrap();
        let roots = SysRoots::at(tree.path());
        let own = Path::new("/proc");
        for name in ["meminfo", "zoneinfo", "vmstat"] {
            std::fs::create_dir_all(roots.proc.path()).unwrap();
            std::fs::copy(own.join(name), roots.proc.path().join(name)).unwrap();
        }
        let parameters = roots.proc.path().join("sys/vm");
        std::fs::create_dir_all(&parameters).unwrap();
        for entry in std::fs::read_dir("/proc/sys/vm").unwrap().flatten() {
            if entry.file_name().to_string_lossy().starts_with("dirty") {
                std::fs::copy(entry.path(), parameters.join(entry.file_name())).unwrap();
            }
        }
        let host = host::read(&roots, Vec::new()).unwrap();
        let mut gaps = VisibilityGaps::default();
        of_host(&host, &mut gaps);
        let listed = listed_gaps(gaps);
        assert_eq!(listed.len(), 2, "{listed:?}");
        assert!(listed.iter().all(|(_, needs)| needs.as_ref().unwrap().contains("psi=1")));
    }

    #[test]
    fn each_fallback_of_tracing_names_the_missing_feature() {
        let refused = |needs| TraceError::Refused {
            call: "bpf(MAP_CREATE)",
            what: "pages".into(),
            needs,
            source: std::io::ErrorKind::PermissionDenied.into(),
        };
        let capabilities = || needs(&refused(MissingPermission::Capabilities(&["CAP_BPF", "CAP_PERFMON"])));
        if rustix::process::geteuid().is_root() {
            let all = crate::testing::as_nobody(capabilities);
            assert_eq!(all.as_deref(), Some("CAP_DAC_READ_SEARCH, CAP_BPF and CAP_PERFMON"));
        } else {
            assert!(capabilities().unwrap().contains("CAP_BPF"));
        }
        assert!(needs(&TraceError::NoTracefs).unwrap().contains("mount -t tracefs"));
        assert!(needs(&refused(MissingPermission::OtherPolicy)).unwrap().contains("seccomp"));
        assert!(
            needs(&refused(MissingPermission::LessParanoia))
                .unwrap()
                .contains("kernel.perf_event_paranoid=2")
        );
        assert_eq!(needs(&TraceError::NotAsked), None);
        // The reason does not repeat the remedy.
        let reason = why(&refused(MissingPermission::Capabilities(&["CAP_BPF"])));
        assert_eq!(reason, "bpf(MAP_CREATE) pages: permission denied");
        assert_eq!(why(&TraceError::NoTracefs), "tracefs is not mounted");
    }
}
