//! Any bytes as a forward connection: no panic, no event that iterates differently than it counts, and the same events
//! however the bytes are cut into reads. The first byte of the input is the size of the pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tributary::forward::fuzz_frame_reader(data));
