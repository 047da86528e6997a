//! Slots, holds and grace periods, one step at a time. `model` checks them in every order of
//! threads.

use crate::readers::{HOLDS_PER_SLOT_MAX, ReaderRegistry};
use crate::sync::{Arc, BarrierPair};

fn readers() -> ReaderRegistry {
    ReaderRegistry::new(BarrierPair::probe())
}

#[test]
fn a_grace_is_over_at_once_when_nobody_reads() {
    let readers = readers();
    let slot = readers.register();
    let section = slot.enter(readers.barrier());
    slot.leave(section);
    assert!(readers.start_grace_period().unwrap().is_over());
}

#[test]
fn a_grace_waits_for_the_sections_under_way_and_for_no_later_ones() {
    let readers = readers();
    let (one, other) = (readers.register(), readers.register());
    let first = one.enter(readers.barrier());
    let mut grace_period = readers.start_grace_period().unwrap();
    let late = other.enter(readers.barrier());
    assert!(!grace_period.is_over());
    one.leave(first);
    let again = one.enter(readers.barrier());
    assert!(grace_period.is_over(), "the section that it waited for has ended");
    one.leave(again);
    other.leave(late);
}

#[test]
fn holds_are_seen_until_they_are_let_go() {
    let readers = readers();
    let slot = readers.register();
    let holds: Vec<_> = [7, 0, 3].map(|frame| slot.hold(frame).unwrap()).into();
    assert_eq!(readers.held(), [0, 3, 7]);
    for hold in holds {
        slot.release(hold);
    }
    assert_eq!(readers.held(), []);
}

#[test]
fn holds_run_out() {
    let readers = readers();
    let slot = readers.register();
    let holds: Vec<_> = (0..).map_while(|frame| slot.hold(frame)).collect();
    assert_eq!(holds.len(), HOLDS_PER_SLOT_MAX);
    for hold in holds {
        slot.release(hold);
    }
}

#[test]
fn a_slot_goes_to_the_next_thread_unless_a_guard_was_forgotten() {
    let readers = readers();
    let first = readers.register();
    first.give_back();
    let second = readers.register();
    assert!(Arc::ptr_eq(&first, &second));
    let _forgotten = second.hold(1).unwrap();
    second.give_back();
    assert!(!Arc::ptr_eq(&second, &readers.register()));
    assert_eq!(readers.held(), [1]);
}

#[test]
fn sections_count_the_hits() {
    let readers = readers();
    let slot = readers.register();
    for missed in [false, true, false] {
        let section = slot.enter(readers.barrier());
        if missed {
            slot.leave_uncounted(section);
        } else {
            slot.leave(section);
        }
    }
    assert_eq!(readers.hits(), 2);
}
