//! Properties of [`pagekeeper_policy::step`] that hold for any database. They run random operations
//! on a model of files, page cache and executor, and check each step's acts against a second, plain
//! statement of the rules. Those of streams run on a model of the page cache alone.

mod exact;
mod followed;
mod model;
mod read_back;
mod recovery;
mod ring;
mod series;
mod stream;
mod world;
