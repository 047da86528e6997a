//! A device's own limit on dirty pages (`strict_limit`): it throttles writers while total dirty
//! memory is far below the limits, so no change of the global limits helps.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use pagekeeper_kernel::pressure::BackingDevice;
use pagekeeper_text::{ByteSize, duration};
use pagekeeper_trace::PauseCounts;

use crate::advice::step;
use crate::observed::attribution::database_of;
use crate::texts::{known, text};
use crate::{Cost, Evidence, Finding, Fix, Kind, Observation, Severity};

/// Dirty bytes allowed on a device whose files are synced: a disk of 100 MB/s writes this in a
/// sixth of a second.
const DEVICE_DIRTY_BYTES_MAX: u64 = 16 << 20;

/// Whether these pauses came from the device's own limit: total dirty memory was below the
/// throttling threshold.
pub(crate) fn is_own(pause: &PauseCounts) -> bool {
    pause.levels.dirty < pause.levels.threshold()
}

/// Returns the devices whose own limits throttled databases.
pub(super) fn find(observation: &Observation<'_>) -> Vec<Finding> {
    let pauses = observation.pauses();
    let mut devices: BTreeMap<&str, Vec<&PauseCounts>> = BTreeMap::new();
    for pause in pauses.filter(|pause| is_own(pause) && database_of(observation, &pause.task).is_some()) {
        devices.entry(&pause.device).or_default().push(pause);
    }
    devices.into_iter().map(|(name, pauses)| limited(observation, name, &pauses)).collect()
}

fn limited(observation: &Observation<'_>, name: &str, pauses: &[&PauseCounts]) -> Finding {
    let total: Duration = pauses.iter().map(|pause| pause.pauses.total()).sum();
    let most = |of: fn(&PauseCounts) -> u64| pauses.iter().map(|pause| of(pause)).max().unwrap_or_default();
    let (dirty, begins) = (most(|pause| pause.levels.dirty), most(|pause| pause.levels.threshold()));
    let (on_device, steered) =
        (most(|pause| pause.levels.device_dirty), most(|pause| pause.levels.device_setpoint));
    let device = of_name(observation, name);
    let is_synced = observation.is_synced(name);
    let whole = Evidence::of("device-limit.levels")
        .with("device", name)
        .with("dirty_bytes", dirty)
        .with("throttling_begins_bytes", begins)
        .with("device_dirty_bytes", on_device)
        .with("device_setpoint_bytes", steered);
    Finding {
        kind: Kind::DirtyLimits,
        severity: Severity::Warning,
        database: None,
        title: text("device-limit.title", &[("device", &name)]),
        evidence: vec![whole, in_force(name, device)],
        cost: Cost::measured(text(
            "device-limit.cost",
            &[("throttled", &duration(total)), ("period", &duration(observation.period()))],
        )),
        fixes: if is_synced { Vec::new() } else { fixes(name, device) },
        remarks: is_synced.then(|| text("device-limit.remark", &[])).into_iter().collect(),
        pagekeeper: None,
    }
}

fn of_name<'a>(observation: &Observation<'a>, name: &str) -> Option<&'a BackingDevice> {
    observation.after.host.devices.iter().map(|(_, device)| device).find(|device| device.name == name)
}

/// Returns the fix that bounds the dirty pages of a device whose files are synced, so that each
/// sync has at most that much before it. Returns `None` if the kernel has no such setting, or if a
/// bound is already set.
pub(crate) fn cap(observation: &Observation<'_>, name: &str) -> Option<Fix> {
    let device = of_name(observation, name)?;
    let strict = device.strict_limit.filter(|strict| !strict)?;
    let before = device.max_bytes?;
    let place = format!("/sys/class/bdi/{name}");
    let values: &[(&str, &dyn Display)] = &[
        ("most", &DEVICE_DIRTY_BYTES_MAX),
        ("most_in_words", &ByteSize(DEVICE_DIRTY_BYTES_MAX)),
        ("place", &place),
        ("ratio", &device.max_ratio),
        ("strict", &u64::from(strict)),
        ("device", &name),
        ("before", &ByteSize(before)),
    ];
    Some(step("cap-device", values))
}

/// Describes the device's settings, as far as they can be read.
fn in_force(name: &str, device: Option<&BackingDevice>) -> Evidence {
    let place = format!("/sys/class/bdi/{name}");
    let Some(device) = device else {
        return Evidence::new(text("device-limit.unread", &[("place", &place)]));
    };
    let strict = match device.strict_limit {
        Some(true) => "device-limit.strict",
        Some(false) => "device-limit.not-strict",
        None => "device-limit.unknown",
    };
    Evidence::of("device-limit.in-force")
        .with("device", name)
        .with("max_ratio_percent", device.max_ratio)
        .with_known("strict_limit", device.strict_limit)
        .with_known("max_bytes", device.max_bytes)
        .say("place", place)
        .say("strict", text(strict, &[]))
        .say("most", known(device.max_bytes))
}

fn fixes(name: &str, device: Option<&BackingDevice>) -> Vec<Fix> {
    let mut fixes = Vec::new();
    if device.is_none_or(|device| device.strict_limit == Some(true)) {
        let undo = match device.and_then(|device| device.strict_limit) {
            Some(before) => format!("echo {} >/sys/class/bdi/{name}/strict_limit", u64::from(before)),
            None => "write the present values back".to_owned(),
        };
        fixes.push(step("no-strict-limit", &[("device", &name), ("undo", &undo)]));
    }
    if let Some(ratio) = device.map(|device| device.max_ratio).filter(|ratio| *ratio < 100) {
        let percent = (ratio.max(1) * 4).min(100);
        let values: &[(&str, &dyn Display)] = &[("percent", &percent), ("device", &name), ("before", &ratio)];
        fixes.push(step("larger-device-share", values));
    }
    fixes
}
