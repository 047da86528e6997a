//! The limit on locked memory. Programs and maps count towards it before Linux 5.11, where 64 KiB
//! are usual ("bpf: Eliminate rlimit-based memory accounting").
//!
//! Invariant: the process's limit is afterwards as it was: one thread at a time raises it. Fails as
//! the call does if the limit may not be raised.

use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Held by the thread that has the limit raised: another one would take the raised limit for the
/// original.
static RAISED_LIMIT: Mutex<()> = Mutex::new(());

/// Makes a call, and retries it with the limit raised if it is refused. Newer kernels refuse that,
/// too.
pub(crate) fn without_limit<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    match call() {
        Err(Errno::PERM) => {}
        other => return other,
    }
    let _one = RAISED_LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
    let limit = getrlimit(Resource::Memlock);
    setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None })
        .or_else(|_| setrlimit(Resource::Memlock, Rlimit { current: limit.maximum, ..limit }))
        .map_err(|_| Errno::PERM)?;
    let result = call();
    // Lowering it is always allowed.
    let _ = setrlimit(Resource::Memlock, limit);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_for_a_refused_call_alone() {
        // Other tests may have raised the limit at other times.
        let limit = || {
            let _one = RAISED_LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
            getrlimit(Resource::Memlock)
        };
        let before = limit();
        let mut calls = Vec::new();
        let refused: Result<(), Errno> = without_limit(|| {
            calls.push(getrlimit(Resource::Memlock).current);
            Err(Errno::PERM)
        });
        assert_eq!(refused, Err(Errno::PERM));
        assert!(calls.get(1).is_none_or(|raised| raised.is_none() || *raised == before.maximum), "{calls:?}");
        let mut times = 0;
        let passed = without_limit(|| {
            times += 1;
            Ok::<_, Errno>(())
        });
        assert_eq!((passed, times), (Ok(()), 1), "a program that passes is called once");
        assert_eq!(limit(), before, "it is as it was");
    }
}
