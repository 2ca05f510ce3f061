#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| wayside_fuzz::run("update_frame", input));
