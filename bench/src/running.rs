//! A child process that ends with its handle: it is killed and waited for.
//!
//! Invariant: no child outlives the value. Nothing fails, because both calls fail only where it has
//! ended already.

use std::ops::{Deref, DerefMut};
use std::process::Child;

/// A child process.
#[derive(Debug)]
pub(crate) struct RunningChild(Child);

impl From<Child> for RunningChild {
    fn from(child: Child) -> Self {
        Self(child)
    }
}

impl Deref for RunningChild {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for RunningChild {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for RunningChild {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
