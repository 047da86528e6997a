//! Work on each disk: releases, writeback, held writers, and the share that is left to others.

pub(crate) mod backlog;
pub(crate) mod device;
pub(crate) mod drained;
pub(crate) mod hold;
pub(crate) mod others;
pub(crate) mod paced_turns;
pub(crate) mod turns;
pub(crate) mod writing;
