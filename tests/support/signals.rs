//! Signals as a program started by a user expects them.
//!
//! `nohup`, a shell's background job and many CI systems start programs with signals ignored, and
//! whatever these start inherits that: a shell can't trap such a signal, and a terminal's key
//! reaches no process. A signal with a handler is inherited with its default action.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::process::Signal;

const BY_DEFAULT: [Signal; 6] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2];

/// Gives children of this process the default action for signals that it ignores, while it stays
/// immune to them.
pub(crate) fn reset_for_children() {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc(5) is mounted");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).expect("always there");
    let ignored = u64::from_str_radix(ignored, 16).expect("a mask of signals");
    for signal in BY_DEFAULT.map(Signal::as_raw) {
        if ignored >> (signal - 1) & 1 == 1 {
            let handled = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal, handled).expect("a signal that may be handled");
        }
    }
}
