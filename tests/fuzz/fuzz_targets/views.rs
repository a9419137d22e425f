#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dafs_tests::fuzz::views(data));
