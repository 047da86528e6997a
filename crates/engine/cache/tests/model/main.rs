//! Random sequences of all the cache's operations, compared with a model that only knows seeds and
//! lengths. Each result is the right bytes or the right error, kept pages never change, and
//! everything works again once a fault is lifted.
//!
//! On the simulated disk, background reads are done step by step, so that a failing case repeats:
//! `PROPTEST_RNG_SEED` repeats a run, `PROPTEST_CASES` sets the number of its cases (256).

mod disk;
mod op;
mod world;

#[path = "../support/mod.rs"]
mod support;

use pagekeeper_cache::Backend;
use proptest::prelude::*;

use disk::{OnDisk, SimulatedDisk};
use op::{ModelOp, op};
use world::ModelWorld;

/// Returns a configuration for one part in `share` of `PROPTEST_CASES`. A failure's seed is
/// printed, not written into the tree.
fn config(share: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig { cases: (default.cases / share).max(1), failure_persistence: None, ..default }
}

/// Returns the shapes of caches: frames, bytes of a page.
fn shape() -> impl Strategy<Value = (u32, usize)> {
    (64_u32..=400, 12_u32..=16).prop_map(|(frames, shift)| (frames, 1 << shift))
}

fn ops() -> impl Strategy<Value = Vec<ModelOp>> {
    prop::collection::vec(op(), 1..60)
}

proptest! {
    #![proptest_config(config(2))]

    #[test]
    fn on_a_simulated_disk_with_faults((frames, page_size) in shape(), seed: u64, ops in ops()) {
        let mut world = ModelWorld::new(SimulatedDisk::new(seed), frames, page_size);
        for op in &ops {
            world.apply(op);
        }
        world.finish();
    }
}

proptest! {
    #![proptest_config(config(16))]

    #[test]
    fn on_a_real_disk((frames, page_size) in shape(), backend in 0..3, ops in ops()) {
        let backend = match backend {
            0 => Backend::Threads,
            1 => Backend::Buffered,
            _ => Backend::Auto,
        };
        let mut world = ModelWorld::new(OnDisk::new(backend), frames, page_size);
        for op in &ops {
            world.apply(op);
        }
        world.finish();
    }
}
