//! What stands on the disk, byte for byte: encoding and decoding alone, without any I/O.
//!
//! Whatever bytes are given, decoding ends in a value or an error that says what is wrong, never in a panic. `docs/format.md`
//! specifies all of it.
