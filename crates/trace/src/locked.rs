//! Memory of programs and maps, which counts as locked before Linux 5.11, where 64 KiB are usual ("bpf: Eliminate rlimit-based memory
//! accounting").
//!
//! Invariant: the process's limit is afterwards as it was. Fails as the call does where the limit may not be raised.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Makes a call, once more without the limit if it is refused. Newer kernels refuse both alike.
pub(crate) fn without_limit<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    match call() {
        Err(Errno::PERM) => {}
        other => return other,
    }
    let limit = getrlimit(Resource::Memlock);
    setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None })
        .or_else(|_| setrlimit(Resource::Memlock, Rlimit { current: limit.maximum, ..limit.clone() }))
        .map_err(|_| Errno::PERM)?;
    let result = call();
    // To lower it is always allowed.
    let _ = setrlimit(Resource::Memlock, limit);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_for_a_refused_call_alone() {
        let before = getrlimit(Resource::Memlock);
        let mut calls = Vec::new();
        let refused: Result<(), Errno> = without_limit(|| {
            calls.push(getrlimit(Resource::Memlock).current);
            Err(Errno::PERM)
        });
        assert_eq!(refused, Err(Errno::PERM));
        assert_eq!(calls[0], before.current);
        assert!(calls.get(1).is_none_or(|raised| *raised == None || *raised == before.maximum), "{calls:?}");
        assert_eq!(without_limit(|| Ok::<_, Errno>(getrlimit(Resource::Memlock))), Ok(before.clone()));
        assert_eq!(getrlimit(Resource::Memlock), before, "it is as it was");
    }
}
