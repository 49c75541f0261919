//! What does it cost to take one event off the wire? Shape scan of packed messages of 1,000 events, and Message mode
//! with one event each, both of the 252-byte nginx record that docs/BENCH.md describes.
//!
//! `cargo bench --bench decode`; prints the best of several rounds, in nanoseconds of CPU per event.

use std::hint::black_box;
use std::time::Instant;

use bytes::BytesMut;
use tributary::event::{EventTime, Value, msgpack};
use tributary::forward::{FrameReader, Item, ReaderSettings};

const EVENTS_PER_MESSAGE: usize = 1000;
const MESSAGES: usize = 40;
const ROUNDS: usize = 25;

fn record(sequence: u64) -> Vec<u8> {
    let text = |text: &str| Value::from(text);
    let pairs = vec![
        (text("remote"), text("192.0.2.157")),
        (text("host"), text("-")),
        (text("user"), text("-")),
        (text("method"), text("GET")),
        (text("path"), text(&format!("/images/products/{:04}.jpg", sequence % 10_000))),
        (text("code"), text("200")),
        (text("size"), text("15231")),
        (text("referer"), text("https://shop.example/list?page=3")),
        (text("agent"), text("Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/128.0.1")),
        (text("run"), Value::UInt(0x8000_0000_0000_0001)),
        (text("seq"), Value::UInt(0x8000_0000_0000_0000 + sequence)),
        (text("sent_ns"), Value::UInt(0x97a1_0000_0000_0000 + sequence)),
    ];
    Value::Map(pairs).to_msgpack()
}

fn packed() -> Vec<u8> {
    let mut out = Vec::new();
    for message in 0..MESSAGES {
        let mut entries = Vec::new();
        for event in 0..EVENTS_PER_MESSAGE {
            let time = EventTime::Ext { seconds: 1_700_000_000, nanoseconds: event as u32 };
            msgpack::write_entry(&mut entries, time, &record((message * EVENTS_PER_MESSAGE + event) as u64));
        }
        out.extend_from_slice(b"\x92\xa7app.web");
        msgpack::write_bin(&mut out, &entries);
    }
    out
}

fn plain(option: bool) -> Vec<u8> {
    let mut out = Vec::new();
    for event in 0..MESSAGES * EVENTS_PER_MESSAGE {
        out.extend_from_slice(if option { b"\x94\xa7app.web" } else { b"\x93\xa7app.web" });
        msgpack::write_time(&mut out, EventTime::Ext { seconds: 1_700_000_000, nanoseconds: event as u32 });
        out.extend_from_slice(&record(event as u64));
        if option {
            out.push(0x80);
        }
    }
    out
}

/// Best time per event over the rounds; the bytes arrive in reads of `read_bytes`.
fn measure(name: &str, stream: &[u8], read_bytes: usize) {
    let mut best = f64::MAX;
    let total = MESSAGES * EVENTS_PER_MESSAGE;
    for _ in 0..ROUNDS {
        let mut reader = FrameReader::new(ReaderSettings::default());
        let mut buffer = BytesMut::with_capacity(read_bytes * 2);
        let (mut count, mut scan_seconds) = (0, 0.0);
        for read in stream.chunks(read_bytes) {
            buffer.extend_from_slice(read);
            let start = Instant::now();
            while let Item::Message(message) = reader.next(&mut buffer, EventTime::Int(1)) {
                count += black_box(message).stream.count;
            }
            scan_seconds += start.elapsed().as_secs_f64();
        }
        assert_eq!(count, total);
        best = best.min(scan_seconds * 1e9 / total as f64);
    }
    let rate = stream.len() as f64 / total as f64 / best;
    println!("{name:<44} {best:7.1} ns/event {rate:6.2} GB/s");
}

fn main() {
    println!("record: {} bytes", record(0).len());
    let stream = packed();
    measure("packed, 1000 events a message, one read each", &stream, stream.len() / MESSAGES);
    measure("packed, reads of 64 KiB", &stream, 64 * 1024);
    for (name, option) in
        [("Message mode, reads of 64 KiB", false), ("Message mode with {}, reads of 64 KiB", true)]
    {
        measure(name, &plain(option), 64 * 1024);
    }
    measure("Message mode, reads of 4 KiB", &plain(false), 4 * 1024);
}
