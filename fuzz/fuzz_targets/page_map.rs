//! `page_map` of crates/dev/fuzzing, under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| (pagekeeper_fuzzing::target("page_map").fuzz_one)(data));
