//! Any bytes as a chunk file or a journal: no panic, each byte is good or damaged, every frame lies in a good range.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tributary::buffer::read_anything(data));
