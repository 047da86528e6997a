//! Replaces the event count in the models.

use loom::sync::{Condvar, Mutex};

/// An event count made of a lock and a condition variable.
#[derive(Debug, Default)]
pub(crate) struct EventCount {
    notified: Mutex<u32>,
    condition: Condvar,
}

impl EventCount {
    pub(crate) fn count(&self) -> u32 {
        *self.notified.lock().unwrap()
    }

    pub(crate) fn wait(&self, count: u32, _: Option<std::time::Duration>) {
        let notified = self.notified.lock().unwrap();
        if *notified == count {
            drop(self.condition.wait(notified).unwrap());
        }
    }

    pub(crate) fn notify_all(&self) {
        *self.notified.lock().unwrap() += 1;
        self.condition.notify_all();
    }

    pub(crate) fn notify_one(&self) {
        *self.notified.lock().unwrap() += 1;
        self.condition.notify_one();
    }
}
