//! A user-space page cache for the immutable files of storage engines.
