//! The kernel's reclaim, by its counters: /proc/vmstat and /proc/pressure/memory.
//!
//! The counters are the whole machine's. Reclaim inside a cgroup is in `scanned` and `reclaimed`, but not in the
//! counters of kswapd and of direct reclaim, which show shortage on the machine itself (Linux's
//! `shrink_inactive_list`). Counters that a kernel lacks are 0; without pressure stall information there is no
//! `stalled_us`.

use super::group::field_of;

/// Counters, or the difference of two samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Reclaim {
    /// Pages scanned by reclaim, including in cgroups.
    pub(super) scanned: u64,
    /// Pages reclaimed.
    pub(super) reclaimed: u64,
    /// Pages scanned by kswapd.
    pub(super) by_kswapd: u64,
    /// Pages scanned by the allocating tasks themselves, because the machine had no free memory.
    pub(super) direct: u64,
    /// Number of such direct reclaims.
    pub(super) stalls: u64,
    /// Time in µs in which at least one task waited for memory.
    pub(super) stalled_us: Option<u64>,
}

impl Reclaim {
    /// Reads the counters.
    pub(super) fn now() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        Self::of(&read("/proc/vmstat"), &read("/proc/pressure/memory"))
    }

    fn of(vmstat: &str, pressure: &str) -> Self {
        let sum = |names: &[&str]| names.iter().filter_map(|name| field_of(vmstat, name)).sum();
        let stalls = vmstat
            .lines()
            .filter_map(|line| line.strip_prefix("allocstall_")?.split_once(' ')?.1.parse::<u64>().ok());
        let some = pressure.lines().find(|line| line.starts_with("some "));
        Self {
            scanned: sum(&["pgscan_anon", "pgscan_file"]),
            reclaimed: sum(&["pgsteal_anon", "pgsteal_file"]),
            by_kswapd: sum(&["pgscan_kswapd"]),
            direct: sum(&["pgscan_direct"]),
            stalls: stalls.sum(),
            stalled_us: some.and_then(|line| line.rsplit_once("total=")?.1.parse().ok()),
        }
    }

    /// Returns the difference to `before`.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            scanned: self.scanned - before.scanned,
            reclaimed: self.reclaimed - before.reclaimed,
            by_kswapd: self.by_kswapd - before.by_kswapd,
            direct: self.direct - before.direct,
            stalls: self.stalls - before.stalls,
            stalled_us: self.stalled_us.zip(before.stalled_us).map(|(now, before)| now - before),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_and_subtracted() {
        let vmstat = "allocstall_dma 1\nallocstall_movable 4\npgscan_kswapd 10\npgscan_direct 20\n\
                      pgscan_direct_throttle 7\npgscan_anon 1\npgscan_file 50\npgsteal_anon 0\npgsteal_file 40\n";
        let pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total=915\nfull avg10=0.00 total=606\n";
        let counters = Reclaim::of(vmstat, pressure);
        let wanted = Reclaim {
            scanned: 51,
            reclaimed: 40,
            by_kswapd: 10,
            direct: 20,
            stalls: 5,
            stalled_us: Some(915),
        };
        assert_eq!(counters, wanted);
        let none = Reclaim::of("", "");
        assert_eq!(none, Reclaim::default());
        assert_eq!(counters.since(Reclaim { stalled_us: Some(900), ..none }).stalled_us, Some(15));
        assert_eq!(counters.since(counters), Reclaim { stalled_us: Some(0), ..none });
    }
}
