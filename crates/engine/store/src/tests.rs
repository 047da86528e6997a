//! Tests of the store's promises on a simulated disk: durability after crashes, errors of a failing
//! disk, and order in time.

mod backup;
mod bad_disk;
mod compact;
mod crashes;
mod damage_lives;
pub(crate) mod disk;
mod exhaustive;
mod index;
mod life;
mod model;
mod mutations;
mod oracle;
mod page_map;
mod places;
mod recovery;
mod repair;
mod resize;
mod restore;
mod settled;
mod snapshots;
mod world;
