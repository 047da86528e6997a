//! Files of the process: the tables of descriptors, temporary files, and files to release.

pub mod identity;
pub mod open_readers;
pub mod paths;
pub mod table;
pub mod temporary;
pub mod tracked_files;
pub mod tracked_place;
