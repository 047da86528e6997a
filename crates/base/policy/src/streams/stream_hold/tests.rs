use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const BOUND: u64 = 16 * MIB;
const LIMITS: WriterLimits = WriterLimits { unwritten: Some(BOUND), rate: None };

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn a_writer_with_little_runs_beside_one_with_much() {
    let mut device = DeviceHolds::default();
    device.dirtied(1, 17 * MIB, at(0));
    device.dirtied(2, MIB, at(0));
    assert_eq!(device.decide(LIMITS, at(0)).held, [1]);
    device.dirtied(2, 16 * MIB, at(1));
    assert_eq!(device.decide(LIMITS, at(1)).held, [1, 2], "both have their share");
    // If processes that have ended left twice the bound, nobody is spared.
    let mut device = DeviceHolds::default();
    device.dirtied(1, 33 * MIB, at(0));
    device.dirtied(2, MIB, at(0));
    assert_eq!(device.decide(LIMITS, at(0)).held, [1]);
    device.ended(1);
    assert_eq!(device.decide(LIMITS, at(0)).held, [2]);
}

#[test]
fn the_largest_of_many_writers_are_held() {
    let mut device = DeviceHolds::default();
    for process in 0..1000_u32 {
        device.dirtied(process, MIB + u64::from(process), at(0));
    }
    let held = device.decide(LIMITS, at(0)).held;
    assert_eq!(held, (1000 - u32::try_from(HELD_MAX).unwrap()..1000).collect::<Vec<u32>>());
}

#[test]
fn a_stalled_disk_holds_no_writer() {
    let mut device = DeviceHolds::default();
    device.dirtied(1, 17 * MIB, at(0));
    assert_eq!(device.decide(LIMITS, at(500)).held, [1]);
    device.dirtied(1, MIB, at(19_500));
    assert_eq!(device.decide(LIMITS, at(19_900)).held, [1], "a busy disk is waited for");
    assert_eq!(device.decide(LIMITS, at(20_000)).held, []);
    device.written(MIB, at(20_100));
    device.dirtied(1, MIB, at(20_100));
    assert_eq!(device.decide(LIMITS, at(20_100)).held, [1]);
}

#[test]
fn ended_and_idle_writers_are_not_held() {
    let mut device = DeviceHolds::default();
    device.dirtied(1, 10 * MIB, at(0));
    device.dirtied(2, 10 * MIB, at(0));
    device.ended(1);
    assert_eq!(device.decide(LIMITS, at(0)).held, [2]);
    device.written(MIB, at(900));
    assert_eq!(device.decide(LIMITS, at(4900)).held, [2], "it may wait for a processor in its moments");
    device.written(MIB, at(4950));
    assert_eq!(device.decide(LIMITS, at(5000)).held, [], "it dirtied nothing for five seconds");
    device.written(18 * MIB, at(5100));
    let after = device.decide(LIMITS, at(5100));
    assert_eq!((after.again_at, device.is_idle()), (None, true));
}

#[test]
fn a_writer_that_may_outrun_its_disk_is_held_if_the_next_decision_is_late() {
    let mut device = DeviceHolds::default();
    // 4 MiB a millisecond, but nothing was too much yet.
    device.dirtied(1, 8 * MIB, at(2));
    let first = device.decide(LIMITS, at(2));
    assert_eq!((first.held, first.held_if_late, first.late_at), (vec![], vec![1], at(4)));
    device.dirtied(1, 12 * MIB, at(5));
    let full = device.decide(LIMITS, at(5));
    assert_eq!((full.held, full.held_if_late), (vec![1], vec![]));
    device.written(12 * MIB, at(205));
    let after = device.decide(LIMITS, at(205));
    let again_at = after.again_at.unwrap();
    assert_eq!((after.held, after.held_if_late), (vec![], vec![1]));
    assert!(after.late_at >= again_at && after.late_at <= at(208), "{:?}", after.late_at);
    assert!(again_at <= at(208), "its 8 MiB of room are 2 ms at its speed: {again_at:?}");
    // The disk has slowed down.
    for millis in (210..30_000).step_by(10) {
        device.dirtied(1, MIB / 16, at(millis));
        device.written(MIB / 16, at(millis));
        device.decide(LIMITS, at(millis));
    }
    let slow = device.decide(LIMITS, at(30_000));
    let again_at = slow.again_at.unwrap();
    assert_eq!((slow.held, slow.held_if_late), (vec![], vec![]));
    assert!(again_at > at(30_005), "{again_at:?}");
}

#[test]
fn a_rate_is_kept_on_average() {
    let limits = WriterLimits { unwritten: None, rate: Some(10 * MIB) };
    let mut device = DeviceHolds::default();
    let mut dirtied = 0;
    for step in 0..10_000 {
        if device.decide(limits, at(step)).held.is_empty() {
            device.dirtied(1, MIB / 2, at(step));
            dirtied += MIB / 2;
        }
    }
    assert!((100 * MIB..102 * MIB).contains(&dirtied), "{dirtied}");
}

/// An event on a device.
#[derive(Debug, Clone)]
enum Event {
    Dirtied(u32, u64),
    Written(u64),
    Ended(u32),
    Later(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0..4_u32, 0..8 * MIB).prop_map(|(process, bytes)| Event::Dirtied(process, bytes)),
        2 => (0..8 * MIB).prop_map(Event::Written),
        1 => (0..4_u32).prop_map(Event::Ended),
        2 => (0..1500_u64).prop_map(Event::Later),
    ]
}

proptest! {
    #[test]
    fn a_held_writer_writes_there_and_over_half_of_the_bound_is_dirty(events in vec(event(), 1..200)) {
        let mut device = DeviceHolds::default();
        let mut now = 0;
        let (mut last, mut held) = (BTreeMap::new(), Vec::new());
        for event in events {
            match event {
                Event::Dirtied(process, bytes) => {
                    device.dirtied(process, bytes, at(now));
                    last.insert(process, now);
                }
                Event::Written(bytes) => device.written(bytes, at(now)),
                Event::Ended(process) => {
                    device.ended(process);
                    last.remove(&process);
                }
                Event::Later(millis) => now += millis,
            }
            let decision = device.decide(LIMITS, at(now));
            if device.unwritten() <= BOUND / 2 {
                prop_assert!(decision.held.is_empty());
            }
            for process in &decision.held {
                let active_for = if held.contains(process) { 5000 } else { 1000 };
                prop_assert!(last.get(process).is_some_and(|at| now - at < active_for));
            }
            let late_at = decision.late_at;
            if !decision.held_if_late.is_empty() {
                prop_assert!(decision.held.is_empty() && late_at < at(now + 1000), "{:?}", device);
                prop_assert!(decision.again_at.is_some_and(|again| late_at >= again));
            }
            held = decision.held;
            let is_moving = at(now).saturating_sub(device.progress_at) < STALLED_AFTER;
            let has_writers = last.values().any(|at| now - at < 1000);
            if device.unwritten() > 2 * BOUND && is_moving && has_writers {
                prop_assert!(!held.is_empty(), "somebody is held: {:?}", device);
            }
            prop_assert!(decision.again_at.is_none_or(|again| again > at(now)));
        }
    }

    /// A simulated disk with writers that write whenever they run: the bound holds up to one step's
    /// data, the disk never runs dry, and equal writers get equal parts.
    #[test]
    fn the_bound_is_kept_and_writers_get_equal_parts(
        writers in 1..5_u32,
        disk in 20..400_u64,
        speed in 500..2000_u64,
    ) {
        let (step_us, mut now_us) = (500, 0);
        let mut device = DeviceHolds::default();
        let mut held = Vec::new();
        let mut got = vec![0_u64; writers as usize];
        let mut again = Duration::ZERO;
        let mut idle_steps = 0;
        while now_us < 5_000_000 {
            let now = Duration::from_micros(now_us);
            let free: Vec<u32> = (0..writers).filter(|writer| !held.contains(writer)).collect();
            for writer in &free {
                // All writers share one memory bandwidth.
                let bytes = speed * step_us / free.len() as u64;
                device.dirtied(*writer, bytes, now);
                got[*writer as usize] += bytes;
            }
            let written = (disk * step_us).min(device.unwritten());
            idle_steps += u32::from(written < disk * step_us);
            device.written(written, now);
            if now >= again {
                let decision = device.decide(LIMITS, now);
                (held, again) = (decision.held, decision.again_at.unwrap_or(now));
            }
            // At most ten milliseconds of writing, before the first decision knows the pace.
            prop_assert!(device.unwritten() < BOUND + 12_000 * speed, "{}", device.unwritten());
            now_us += step_us;
        }
        prop_assert!(idle_steps == 0, "{idle_steps}");
        let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
        prop_assert!(most - least <= most / 4 + 32 * MIB, "{got:?}");
    }

    #[test]
    fn holds_are_short_and_have_moments_between_them(
        steps in vec((any::<bool>(), 0..200_000_u64), 1..300),
    ) {
        let mut cycle = HoldCycle::default();
        let (mut now, mut held, mut free) = (0, None, None);
        for (is_wanted, later) in steps {
            // The caller comes no later than requested.
            let most = match cycle.next(is_wanted, Duration::from_micros(now)) {
                HoldStep::Stop => {
                    prop_assert!(is_wanted && held.is_none());
                    prop_assert!(free.is_none_or(|free| u128::from(now - free) >= HOLD_GAP_MIN.as_micros()));
                    held = Some(now);
                    0
                }
                HoldStep::LetGo => {
                    prop_assert!(held.take().is_some_and(|held| now - held <= 50_000));
                    free = Some(now);
                    0
                }
                HoldStep::Wait(time) => u64::try_from(time.as_micros()).unwrap(),
                HoldStep::Rest => {
                    prop_assert!(!is_wanted && held.is_none());
                    later
                }
            };
            prop_assert_eq!(cycle.held_since().is_some(), held.is_some());
            now += later.min(most);
        }
    }
}
