//! `innodb_header` of crates/dev/fuzzing, under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| (pagekeeper_fuzzing::target("innodb_header").fuzz_one)(data));
