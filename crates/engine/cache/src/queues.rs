//! The frames that hold pages, in the order of the two queues: lists of frame numbers threaded
//! through one array, so that a frame can leave from any position in O(1).
//!
//! Invariants: a frame is in at most one list, the one that its `place` names; the lists' lengths
//! are those of their chains. Kept under the pool's lock.

use crate::entry::QueueKind;

const NO_FRAME: u32 = u32::MAX;

/// The place of a frame. See the diagram in `pool`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FramePlace {
    /// Holds no page, ready for use.
    Free,
    /// Being loaded into.
    Loading,
    /// Being loaded into, but named by no entry: its page was rewritten meanwhile.
    Detached,
    /// Holds a page, in this queue.
    Queued(QueueKind),
    /// Taken out of its entry; readers may still use it.
    Retired,
    /// Its memory is given back, since tables take up as much.
    OnLoan,
}

/// The record of a frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrameRecord {
    /// The file whose page it holds or loads.
    pub(crate) file: u64,
    /// The number of that page.
    pub(crate) page: u32,
    prev: u32,
    next: u32,
    pub(crate) place: FramePlace,
}

/// A frame that was never used.
const UNUSED_FRAME: FrameRecord =
    FrameRecord { file: 0, page: 0, prev: NO_FRAME, next: NO_FRAME, place: FramePlace::Free };

#[derive(Debug, Clone, Copy)]
struct FrameList {
    front: u32,
    back: u32,
    len: usize,
}

/// All frames, and the two queues.
#[derive(Debug)]
pub(crate) struct FrameQueues {
    /// The records of the frames that were ever used, which are the lowest: memory is touched as
    /// frames are.
    frames: Vec<FrameRecord>,
    small: FrameList,
    main: FrameList,
}

impl FrameQueues {
    pub(crate) fn new(frames: u32) -> Self {
        let empty = FrameList { front: NO_FRAME, back: NO_FRAME, len: 0 };
        Self { frames: Vec::with_capacity(frames as usize), small: empty, main: empty }
    }

    pub(crate) fn frame(&self, frame: u32) -> &FrameRecord {
        self.frames.get(frame as usize).unwrap_or(&UNUSED_FRAME)
    }

    fn frame_mut(&mut self, frame: u32) -> &mut FrameRecord {
        let index = frame as usize;
        if index >= self.frames.len() {
            self.frames.resize(index + 1, UNUSED_FRAME);
        }
        &mut self.frames[index]
    }

    /// Sets the place of a frame that is in no queue, and its page.
    pub(crate) fn set(&mut self, frame: u32, place: FramePlace, of: Option<(u64, u32)>) {
        let this = self.frame_mut(frame);
        debug_assert!(!matches!(this.place, FramePlace::Queued(_)), "frame {frame} is in a queue");
        debug_assert!(!matches!(place, FramePlace::Queued(_)), "use push");
        this.place = place;
        if let Some((file, page)) = of {
            (this.file, this.page) = (file, page);
        }
    }

    pub(crate) fn len(&self, queue: QueueKind) -> usize {
        match queue {
            QueueKind::Small => self.small.len,
            QueueKind::Main => self.main.len,
        }
    }

    fn list(&mut self, queue: QueueKind) -> &mut FrameList {
        match queue {
            QueueKind::Small => &mut self.small,
            QueueKind::Main => &mut self.main,
        }
    }

    /// Puts a frame that is in no queue at the back of one.
    pub(crate) fn push(&mut self, queue: QueueKind, frame: u32) {
        let list = self.list(queue);
        let before = std::mem::replace(&mut list.back, frame);
        list.len += 1;
        if before == NO_FRAME {
            list.front = frame;
        } else {
            self.frames[before as usize].next = frame;
        }
        let this = self.frame_mut(frame);
        debug_assert!(!matches!(this.place, FramePlace::Queued(_)), "frame {frame} is in a queue already");
        (this.prev, this.next, this.place) = (before, NO_FRAME, FramePlace::Queued(queue));
    }

    /// Returns the frame that has been in a queue longest.
    pub(crate) fn front(&self, queue: QueueKind) -> Option<u32> {
        let front = match queue {
            QueueKind::Small => self.small.front,
            QueueKind::Main => self.main.front,
        };
        (front != NO_FRAME).then_some(front)
    }

    /// Takes a frame out of its queue and marks it as retired.
    ///
    /// # Panics
    ///
    /// If it is in no queue.
    pub(crate) fn remove(&mut self, frame: u32) -> QueueKind {
        let FrameRecord { prev, next, place, .. } = *self.frame(frame);
        let FramePlace::Queued(queue) = place else { panic!("frame {frame} is in no queue: {place:?}") };
        if prev == NO_FRAME {
            self.list(queue).front = next;
        } else {
            self.frames[prev as usize].next = next;
        }
        if next == NO_FRAME {
            self.list(queue).back = prev;
        } else {
            self.frames[next as usize].prev = prev;
        }
        self.list(queue).len -= 1;
        self.frames[frame as usize].place = FramePlace::Retired;
        queue
    }

    /// Takes a frame out of its queue and puts it at the back of another, or of the same.
    pub(crate) fn move_to(&mut self, queue: QueueKind, frame: u32) {
        self.remove(frame);
        self.push(queue, frame);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn chain(queues: &FrameQueues, queue: QueueKind) -> Vec<u32> {
        let mut chain = Vec::new();
        let mut next = queues.front(queue);
        while let Some(frame) = next {
            assert_eq!(queues.frame(frame).place, FramePlace::Queued(queue));
            chain.push(frame);
            let after = queues.frame(frame).next;
            next = (after != NO_FRAME).then_some(after);
        }
        assert_eq!(chain.len(), queues.len(queue));
        chain
    }

    #[test]
    fn a_queue_gives_in_the_order_it_was_given() {
        let mut queues = FrameQueues::new(5);
        for frame in [3, 1, 4] {
            queues.push(QueueKind::Small, frame);
        }
        assert_eq!(chain(&queues, QueueKind::Small), [3, 1, 4]);
        assert_eq!(queues.remove(1), QueueKind::Small);
        assert_eq!(queues.frame(1).place, FramePlace::Retired);
        queues.move_to(QueueKind::Main, 3);
        queues.move_to(QueueKind::Small, 4);
        assert_eq!((chain(&queues, QueueKind::Small), chain(&queues, QueueKind::Main)), (vec![4], vec![3]));
        queues.remove(4);
        assert_eq!(queues.front(QueueKind::Small), None);
    }

    proptest::proptest! {
        #[test]
        fn queues_are_as_two_deques(steps in proptest::collection::vec((0_u32..8, 0_u8..3), 0..200)) {
            let mut queues = FrameQueues::new(8);
            let mut model = [VecDeque::new(), VecDeque::new()];
            for (frame, what) in steps {
                let at = model.iter().position(|queue| queue.contains(&frame));
                let to = if what == 0 { QueueKind::Small } else { QueueKind::Main };
                if let Some(at) = at {
                    model[at].retain(|&other| other != frame);
                    queues.remove(frame);
                    queues.set(frame, FramePlace::Free, Some((frame.into(), frame)));
                }
                if what < 2 {
                    model[usize::from(what)].push_back(frame);
                    queues.push(to, frame);
                }
                proptest::prop_assert_eq!(&model[0], &chain(&queues, QueueKind::Small));
                proptest::prop_assert_eq!(&model[1], &chain(&queues, QueueKind::Main));
            }
        }
    }
}
