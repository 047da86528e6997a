//! What holds for [`pagekeeper_policy::step`] whatever a database does: random operations on a model of files, page
//! cache and executor, each step's acts checked against the rules stated a second time, in the plainest way. And for streams, on a model of the page cache alone.

mod exact;
mod followed;
mod model;
mod read_back;
mod recovery;
mod ring;
mod series;
mod stream;
mod world;
