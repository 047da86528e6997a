//! `snapshot` of crates/dev/fuzzing, under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| (pagekeeper_fuzzing::target("snapshot").fuzz_one)(data));
