//! A user-space page cache for the immutable files of storage engines.

mod batch;
mod builder;
mod cache;
mod error;
mod evict;
mod file;
mod file_table;
mod find;
mod frames;
mod future;
mod guard;
mod hot;
mod left;
mod lend;
mod load;
mod options;
mod pool;
mod prefetch;
mod private;
mod queues;
mod read;
mod readers;
mod rule;
mod stats;
mod sync;
mod sys;
/// Of the sources that `model` compiles a second time.
#[cfg(test)]
mod tests {
    mod readers;
    mod translation;
    mod waiter;
}
mod thread;
mod translation;
mod waiter;
mod word;

use sys::{arena, table};

pub use batch::ReadRequest;
pub use builder::{Backend, Builder, HugePages};
pub use cache::PageCache;
pub use error::{BuildError, Error};
pub use file::CachedFile;
pub use file_table::FileTable;
pub use guard::{PageGuard, PageRef};
pub use load::LoadedPage;
pub use options::OpenOptions;
pub use stats::Stats;
