//! Pressure stall information: the share of time for which work waited for a resource
//! (`Documentation/accounting/psi.rst`, since Linux 4.20).

use std::path::Path;
use std::time::Duration;

use super::{SysRoots, read_optional};
use crate::Result;
use crate::process::malformed;

/// The resource that was waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PressureResource {
    /// A processor.
    Cpu,
    /// Memory: reclaim, refaults, swap.
    Memory,
    /// Storage.
    Io,
}

impl PressureResource {
    /// Returns the kernel's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Io => "io",
        }
    }
}

/// Time lost to waiting: moving averages in percent, and the total since boot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StallStats {
    /// Over the last 10 seconds, in percent of the time.
    pub avg10: f64,
    /// Over the last minute, in percent.
    pub avg60: f64,
    /// Over the last five minutes, in percent.
    pub avg300: f64,
    /// Total time lost since boot.
    pub total: Duration,
}

/// The pressure on one resource.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pressure {
    /// At least one task waited.
    pub some: StallStats,
    /// All tasks with work waited. For the processor only since Linux 5.13.
    pub full: Option<StallStats>,
}

impl Pressure {
    /// Returns the machine's pressure on a resource; `None` if the kernel does not measure it.
    pub fn read(roots: &SysRoots, resource: PressureResource) -> Result<Option<Self>> {
        Self::read_file(&roots.proc_file("pressure").join(resource.name()))
    }

    /// Reads the pressure from a file in this format, such as `memory.pressure` of a cgroup of
    /// version 2.
    pub fn read_file(path: &Path) -> Result<Option<Self>> {
        let Some(text) = read_optional(path)? else {
            return Ok(None);
        };
        let (mut some, mut full) = (None, None);
        for line in text.lines() {
            let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
            let stalled = parse(rest).ok_or_else(|| malformed(path, line))?;
            match kind {
                "some" => some = Some(stalled),
                "full" => full = Some(stalled),
                _ => return Err(malformed(path, line)),
            }
        }
        let some = some.ok_or_else(|| malformed(path, "the line \"some\""))?;
        Ok(Some(Self { some, full }))
    }
}

fn parse(fields: &str) -> Option<StallStats> {
    let field = |name: &str| {
        fields
            .split(' ')
            .find_map(|field| field.split_once('=').filter(|(key, _)| *key == name))
            .map(|(_, value)| value)
    };
    Some(StallStats {
        avg10: field("avg10")?.parse().ok()?,
        avg60: field("avg60")?.parse().ok()?,
        avg300: field("avg300")?.parse().ok()?,
        total: Duration::from_micros(field("total")?.parse().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::tree;
    use super::*;
    use crate::testing::skip;

    #[test]
    fn this_machine_is_pressed_by_a_percentage() {
        for resource in [PressureResource::Cpu, PressureResource::Memory, PressureResource::Io] {
            match Pressure::read(&SysRoots::default(), resource).unwrap() {
                Some(pressure) => assert!((0.0..=100.0).contains(&pressure.some.avg10)),
                None => skip(format_args!("this kernel does not measure {} pressure", resource.name())),
            }
        }
    }

    #[test]
    fn some_and_full_and_neither() {
        let line = "avg10=1.50 avg60=0.24 avg300=0.00 total=4066723";
        let (_tree, roots) = tree(&[
            ("proc/pressure/io", &format!("some {line}\nfull {line}\n")),
            ("proc/pressure/cpu", &format!("some {line}\n")),
            ("proc/pressure/memory", "some avg10=x avg60=0 avg300=0 total=1\n"),
        ]);
        let io = Pressure::read(&roots, PressureResource::Io).unwrap().unwrap();
        assert_eq!(io.full.unwrap().total, Duration::from_micros(4_066_723));
        assert!((io.some.avg10 - 1.5).abs() < 1e-9);
        assert_eq!(Pressure::read(&roots, PressureResource::Cpu).unwrap().unwrap().full, None);
        assert!(
            Pressure::read(&roots, PressureResource::Memory).unwrap_err().to_string().contains("avg10=x")
        );
        let (_tree, roots) = tree(&[]);
        assert_eq!(Pressure::read(&roots, PressureResource::Io).unwrap(), None);
    }
}
