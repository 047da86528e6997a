//! Properties of [`pagekeeper_policy::step`] that hold for any database. They run random operations
//! on a model of files, page cache and executor, and check each step's acts against a second, plain
//! statement of the rules. Those of streams run on a model of the page cache alone,
//! those of cache sizes on recorded accesses.

mod exact;
mod followed;
mod miss_curve;
mod model;
mod read_back;
mod recovery;
mod ring;
mod series;
mod stream;
mod world;
