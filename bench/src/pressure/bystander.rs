//! The bystander: a process that allocates memory, touches it and frees it, in a loop.
//!
//! It stands for the rest of a service: its rate and its longest stall show how much the reads of others cost it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::helper::{Part, say_ready, say_result};
use super::map::FreshMemory;
use crate::data::MIB;

/// Pages allocated at once: 4 MiB.
const PAGES: usize = 1024;

/// The bystander's figures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Took {
    /// Rate of touching fresh memory.
    pub(super) mib_per_second: f64,
    /// The longest time that one page took, in ms.
    pub(super) longest_ms: f64,
}

/// The hidden command `pressure-bystander`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    part: Part,
}

/// Runs the bystander.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    arguments.part.enter()?;
    say_ready()?;
    say_result(&take(arguments.part.window())?)
}

fn take(window: Duration) -> Result<Took> {
    let began = Instant::now();
    let (mut last, mut longest, mut pages) = (began, Duration::ZERO, 0_usize);
    while last - began < window {
        let mut memory = FreshMemory::new(PAGES).context("can't have memory")?;
        for page in 0..PAGES {
            memory.touch(page);
            let now = Instant::now();
            // Freeing the last piece and allocating this one count with its first page.
            longest = longest.max(now - last);
            last = now;
        }
        pages += PAGES;
    }
    let bytes = (pages * FreshMemory::PAGE) as f64;
    Ok(Took {
        mib_per_second: bytes / MIB as f64 / (last - began).as_secs_f64(),
        longest_ms: longest.as_secs_f64() * 1e3,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_memory_until_its_time_is_over() {
        let took = take(Duration::from_millis(20)).unwrap();
        assert!(took.mib_per_second > 0.0 && took.longest_ms > 0.0, "{took:?}");
    }
}
