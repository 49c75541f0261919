//! Fixture streams of the real in_forward, odd inputs, and random messages.

use std::io::Write;
use std::path::PathBuf;

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::*;
use crate::event::{EventTime, Value, msgpack};

const NOW: EventTime = EventTime::Int(1_800_000_000);

/// One event as it left: tag, time, raw record.
type Event = (Vec<u8>, EventTime, Vec<u8>);

/// What became of a stream.
#[derive(Debug, Default, PartialEq)]
struct Reading {
    events: Vec<Event>,
    acks: Vec<u8>,
    invalid: usize,
    torn_bytes: usize,
    odd: Vec<String>,
    oversize: usize,
    fatal: Option<String>,
    left_bytes: usize,
}

fn read_with(stream: &[u8], piece_bytes: usize, settings: ReaderSettings) -> Reading {
    let mut reader = FrameReader::new(settings);
    let mut buffer = BytesMut::new();
    let mut reading = Reading::default();
    'stream: for piece in stream.chunks(piece_bytes.max(1)) {
        buffer.extend_from_slice(piece);
        loop {
            let message = match reader.next(&mut buffer, NOW) {
                Item::Incomplete => break,
                Item::Heartbeat => continue,
                Item::Odd(text) => {
                    reading.odd.push(text);
                    continue;
                }
                Item::Oversize { .. } => {
                    reading.oversize += 1;
                    continue;
                }
                Item::Message(message) => Ok(message),
                Item::Compressed(compressed) => compressed.inflate(),
                Item::Fatal(error) => Err(error),
            };
            match message {
                Ok(message) => {
                    let tag = message.stream.tag.as_bytes().to_vec();
                    assert_eq!(message.stream.iter().count(), message.stream.count);
                    reading.events.extend(
                        message.stream.iter().map(|(time, record)| (tag.clone(), time, record.to_vec())),
                    );
                    reading.invalid += message.dropped.total();
                    reading.torn_bytes += message.torn_bytes;
                    if let Some(chunk) = &message.options.chunk {
                        ack::write_ack(&mut reading.acks, chunk);
                    }
                }
                Err(error) => {
                    reading.fatal = Some(error.to_string());
                    break 'stream;
                }
            }
        }
    }
    reading.left_bytes = buffer.len();
    reading
}

fn read(stream: &[u8]) -> Reading {
    let whole = read_with(stream, stream.len(), ReaderSettings::default());
    let bytewise = read_with(stream, 1, ReaderSettings::default());
    let without_rest =
        |reading: &Reading| (reading.events.clone(), reading.acks.clone(), reading.fatal.clone());
    assert_eq!(without_rest(&whole), without_rest(&bytewise));
    whole
}

/// The folder of forward streams: in `FIXTURES_DIR`, or that itself, or the project's copy.
pub(crate) fn fixtures_dir() -> PathBuf {
    let folder = PathBuf::from(std::env::var("FIXTURES_DIR").unwrap_or_else(|_| "testdata/fixtures".into()));
    let inner = folder.join("forward");
    if inner.is_dir() { inner } else { folder }
}

/// Every stream of the folder gives exactly the events and bytes of the real in_forward, whole and byte by byte.
#[test]
fn fixture_streams() {
    let folder = fixtures_dir();
    let index = std::fs::read_to_string(folder.join("index.json")).unwrap();
    let index: Vec<serde_json::Value> = serde_json::from_str(&index).unwrap();
    assert!(!index.is_empty());
    let mut not_built = Vec::new();
    for row in &index {
        let name = row["name"].as_str().unwrap();
        let stream = std::fs::read(folder.join(format!("{name}.bin"))).unwrap();
        let reading = read(&stream);
        if name.contains("zstd") || name.contains("json-stream") {
            let fatal = reading.fatal.expect(name);
            assert!(fatal.contains("not built yet"), "{name}: {fatal}");
            not_built.push(name);
            continue;
        }
        assert_eq!((reading.fatal, reading.left_bytes), (None, 0), "{name}");
        let expected = std::fs::read_to_string(folder.join(format!("{name}.expected.jsonl"))).unwrap();
        let expected: Vec<serde_json::Value> =
            expected.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let got: Vec<serde_json::Value> = reading.events.iter().map(as_expected).collect();
        assert_eq!(got, expected, "{name}");
        let response = std::fs::read(folder.join(format!("{name}.response.bin"))).unwrap_or_default();
        assert_eq!(reading.acks, response, "{name}");
    }
    println!("forward fixtures: {} streams, {} not built: {not_built:?}", index.len(), not_built.len());
    assert_eq!(not_built.len(), 2);
}

fn as_expected((tag, time, record): &Event) -> serde_json::Value {
    let nanoseconds = match time {
        EventTime::Int(_) => serde_json::Value::Null,
        EventTime::Ext { nanoseconds, .. } => (*nanoseconds).into(),
    };
    serde_json::json!({
        "tag": String::from_utf8_lossy(tag),
        "sec": time.seconds(),
        "nsec": nanoseconds,
        "record": Value::decode(record).unwrap().0.to_json(),
    })
}

/// What the real out_forward sent in each of its settings.
#[test]
fn recorded_out_forward_streams() {
    let mut files = 0;
    for entry in std::fs::read_dir(fixtures_dir()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.starts_with("recorded-out_forward") {
            continue;
        }
        files += 1;
        let reading = read(&std::fs::read(&path).unwrap());
        let got: Vec<_> = reading.events.iter().map(as_expected).collect();
        assert_eq!(
            got,
            [
                serde_json::json!({"tag": "app.web", "sec": 1_700_000_001, "nsec": 123_456_789, "record": {"msg": "one"}}),
                serde_json::json!({"tag": "app.web", "sec": 1_700_000_002, "nsec": 0, "record": {"msg": "two"}}),
            ],
            "{name}"
        );
        assert_eq!(!reading.acks.is_empty(), name.contains("ack"), "{name}");
    }
    assert!(files >= 6, "{files} files");
}

const RECORD: &[u8] = b"\x81\xa1k\x01";

fn message(parts: &[&[u8]]) -> Vec<u8> {
    let mut out = vec![0x90 | parts.len() as u8];
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out
}

fn options(pairs: &[(&str, Value)]) -> Vec<u8> {
    Value::Map(pairs.iter().map(|(key, value)| (Value::from(*key), value.clone())).collect()).to_msgpack()
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

fn bin(data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    msgpack::write_bin(&mut out, data);
    out
}

fn entries_of(count: usize) -> Vec<u8> {
    (1..=count).flat_map(|time| [&[0x92, time as u8][..], RECORD].concat()).collect()
}

#[test]
fn option_maps_in_every_form_and_chunks_as_they_came() {
    let chunk = b"\xa5chunk\xa3a=\n";
    let forms: [&[u8]; 4] =
        [b"\x81", b"\xde\x00\x01", b"\xdf\x00\x00\x00\x01", b"\x82\xa1x\x92\xc0\x81\x01\x02"];
    for header in forms {
        for tag in [&b"\xa1t"[..], b"\xc4\x01t", b"\xd9\x01t", b"\xda\x00\x01t", b"\xdb\x00\x00\x00\x01t"] {
            let stream = message(&[tag, &[5], RECORD, &[header, chunk].concat()]);
            let reading = read(&stream);
            assert_eq!(reading.events, [(b"t".to_vec(), EventTime::Int(5), RECORD.to_vec())]);
            assert_eq!(reading.acks, b"\x81\xa3ack\xa3a=\n");
        }
    }
    let reading = read(&message(&[b"\xa1t", &[5], RECORD, b"\x81\xc4\x05chunk\xc4\x02\xff\xfe"]));
    assert_eq!(reading.acks, b"\x81\xa3ack\xc4\x02\xff\xfe");
    for id in [vec![b'x'], vec![b'f'; 32], vec![b'-'; 36], vec![b'y'; 1024]] {
        let reading = read(&message(&[b"\xa1t", &[0x90], &options(&[("chunk", Value::Str(id.clone()))])]));
        let mut expected = b"\x81\xa3ack".to_vec();
        msgpack::write_str(&mut expected, &id);
        assert_eq!(reading.acks, expected);
    }
}

#[test]
fn packed_entries_of_every_width() {
    let body = entries_of(2);
    for header in [
        vec![0xa0 | body.len() as u8],
        vec![0xd9, body.len() as u8],
        vec![0xda, 0, body.len() as u8],
        vec![0xdb, 0, 0, 0, body.len() as u8],
        vec![0xc4, body.len() as u8],
        vec![0xc5, 0, body.len() as u8],
        vec![0xc6, 0, 0, 0, body.len() as u8],
    ] {
        for option in [
            vec![],
            vec![0xc0],
            vec![0x80],
            options(&[
                ("size", Value::Int(999)),
                ("compressed", "text".into()),
                ("eventEntryDataSize", Value::Nil),
            ]),
            options(&[("size", "x".into()), ("compressed", Value::Nil)]),
        ] {
            let packed = [&header[..], &body].concat();
            let parts: &[&[u8]] =
                if option.is_empty() { &[b"\xa1t", &packed] } else { &[b"\xa1t", &packed, &option] };
            let reading = read(&message(parts));
            assert_eq!(reading.events.len(), 2);
            assert_eq!((reading.invalid, reading.torn_bytes, reading.left_bytes), (0, 0, 0));
        }
    }
}

#[test]
fn odd_inputs_as_fluentd_takes_them() {
    let chunk = options(&[("chunk", "c".into())]);
    const ACK: &[u8] = b"\x81\xa3ack\xa1c";
    // a nil time, nil tag, int tag: dropped and acked
    for (tag, time) in [(&b"\xa1t"[..], &b"\xc0"[..]), (b"\xc0", b"\x05"), (b"\x07", b"\x05")] {
        let reading = read(&message(&[tag, time, RECORD, &chunk]));
        assert_eq!((reading.events.len(), reading.invalid, &reading.acks[..]), (0, 1, ACK));
        let reading = read(&message(&[tag, b"\xa1x", &chunk]));
        assert_eq!(reading.events.len(), 0);
    }
    assert_eq!(read(&message(&[b"\xa1t", b"\x05"])).invalid, 1);
    assert_eq!(read(&message(&[b"\xa1t", b"\x05", b"\xc0", &chunk])).acks, ACK);
    // packed entries for a tag that is none
    let reading = read(&message(&[b"\xc0", &bin(&entries_of(3)), &chunk]));
    assert_eq!((reading.events.len(), reading.invalid, &reading.acks[..]), (0, 3, ACK));
    // a fourth element after the options
    let reading = read(&message(&[b"\xa1t", &bin(&entries_of(1)), &chunk, b"\x93\x01\x02\x03"]));
    assert_eq!((reading.events.len(), reading.left_bytes), (1, 0));
    // [tag, [time, {}], record]: Forward mode, both elements invalid
    let reading = read(&message(&[b"\xa1t", b"\x92\x05\x80", RECORD]));
    assert_eq!((reading.events.len(), reading.invalid), (0, 2));
    // no messages at all
    let reading = read(b"\x90\x91\xa1t\xc3\xa3abc\xc0");
    assert_eq!(reading.odd, ["[]", "[\"t\"]", "true", "\"abc\""]);
    // a float time keeps its fraction
    let reading = read(&message(&[b"\xa1t", b"\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00", RECORD]));
    assert_eq!(reading.events[0].1, EventTime::Ext { seconds: 1, nanoseconds: 500_000_000 });
    // fruently's time
    let reading = read(&message(&[b"\xa1t", b"\xc4\x0a\xd7\x00\x00\x00\x00\x05\x00\x00\x00\x06", RECORD]));
    assert_eq!(reading.events[0].1, EventTime::Ext { seconds: 5, nanoseconds: 6 });
    // time 0
    assert_eq!(read(&message(&[b"\xa1t", b"\x00", RECORD])).events[0].1, NOW);
}

#[test]
fn fatal_inputs() {
    let gzip_option = options(&[("compressed", "gzip".into()), ("chunk", "c".into())]);
    let fatal = |stream: &[u8]| {
        let reading = read(stream);
        assert_eq!((reading.events.len(), reading.acks.len()), (0, 0));
        reading.fatal.unwrap_or_default()
    };
    assert!(fatal(b"\xc1").contains("0xc1"));
    assert!(fatal(&message(&[b"\xa1t", &[5], b"\x81\xa1k\xd4\x05\x00"])).contains("ext type 5"));
    let broken = [entries_of(2), vec![0x92, 1, 0x81, 0xc1]].concat();
    assert!(fatal(&message(&[b"\xa1t", &bin(&broken)])).contains("0xc1"));
    assert!(fatal(&message(&[b"\xa1t", &bin(&gzip(&broken)), &gzip_option])).contains("0xc1"));
    assert!(fatal(&message(&[b"\xa1t", &bin(b"junk"), &gzip_option])).contains("gzip"));
    let word = options(&[("compressed", "lz4".into())]);
    assert!(fatal(&message(&[b"\xa1t", &bin(&entries_of(1)), &word])).contains("lz4"));
    assert!(fatal(&[0x91; 1000]).contains("nested"));
    assert!(fatal(b"\x93\xa1t\xdb\xff\xff\xff\xff").contains("limit"));
    assert!(fatal(b"{\"a\"").contains("json"));
    assert!(fatal(b"[\"a\"").contains("json"));
    // later bytes of that value are plain integers
    assert_eq!(read(b"\xc0[").odd, ["91"]);
}

/// At the border of the nesting limit, whole and cut streams agree, and what passes can be decoded.
#[test]
fn nesting_is_counted_from_the_message() {
    let mut passed = Vec::new();
    for levels in 115..135 {
        let record = [&b"\x81\xa1k"[..], &vec![0x91; levels], &[0x90]].concat();
        let entry = [&[0x92, 5][..], &record].concat();
        let option = [&b"\x81\xa1k"[..], &vec![0x91; levels], &[0x80]].concat();
        let streams = [
            message(&[b"\xa1t", &[5], &record]),
            message(&[b"\xa1t", &[&[0x91][..], &entry].concat()]),
            message(&[b"\xa1t", &bin(&entry)]),
            message(&[b"\xa1t", &[5], RECORD, &option]),
        ];
        for (mode, stream) in streams.iter().enumerate() {
            let reading = read(stream);
            assert_eq!(reading.events.len(), usize::from(reading.fatal.is_none()));
            assert!(reading.events.iter().all(|(_, _, record)| Value::decode(record).is_ok()));
            passed.extend(reading.fatal.is_none().then_some((mode, levels)));
        }
    }
    let deepest = |mode| passed.iter().filter(|(of, _)| *of == mode).map(|(_, levels)| *levels).max();
    assert_eq!([0, 1, 2, 3].map(deepest), [126, 124, 126, 126].map(Some));
}

#[test]
fn a_torn_tail_is_counted_and_the_rest_acked() {
    let chunk = options(&[("chunk", "c".into())]);
    let body = [&entries_of(2)[..], &[0x92, 1, 0x81, 0xa1]].concat();
    let reading = read(&message(&[b"\xa1t", &bin(&body), &chunk]));
    assert_eq!((reading.events.len(), reading.torn_bytes, reading.acks.len()), (2, 4, 7));
    let gzip_option = options(&[("chunk", "c".into()), ("compressed", "gzip".into())]);
    let reading = read(&message(&[b"\xa1t", &bin(&gzip(&body)), &gzip_option]));
    assert_eq!((reading.events.len(), reading.torn_bytes, reading.acks.len()), (2, 4, 7));
}

#[test]
fn gzip_members_are_joined_and_capped() {
    let option = options(&[("compressed", "gzip".into())]);
    let body = [gzip(&entries_of(2)), gzip(&entries_of(1))].concat();
    assert_eq!(read(&message(&[b"\xa1t", &bin(&body), &option])).events.len(), 3);
    let settings = ReaderSettings { decompression_size_limit: 10, ..ReaderSettings::default() };
    let reading = read_with(&message(&[b"\xa1t", &bin(&body), &option]), 1000, settings);
    assert!(reading.fatal.unwrap().contains("decompression_size_limit"));
}

#[test]
fn signals_other_than_logs_are_acked_and_carry_no_events() {
    let option =
        options(&[("chunk", "c".into()), ("fluent_signal", Value::Int(1)), ("compressed", "gzip".into())]);
    let stream = message(&[b"\xa1t", &bin(b"not msgpack \xc1"), &option]);
    let reading = read(&stream);
    assert_eq!((reading.events.len(), reading.acks.len(), reading.fatal), (0, 7, None));
    let mut buffer = BytesMut::from(&stream[..]);
    let Item::Message(message) = FrameReader::new(ReaderSettings::default()).next(&mut buffer, NOW) else {
        panic!("a signal is a message");
    };
    assert_eq!(message.options.fluent_signal, 1);
}

#[test]
fn plain_messages_of_one_tag_are_one_stream() {
    let plain = |tag: &[u8], time: u8| message(&[tag, &[time], RECORD]);
    let go_client = message(&[b"\xa1a", &[3], RECORD, &[0x80]]);
    let with_chunk = message(&[b"\xa1a", &[5], RECORD, &options(&[("chunk", "c".into())])]);
    let stream = [
        plain(b"\xa1a", 1),
        plain(b"\xa1a", 2),
        go_client,
        plain(b"\xa1b", 4),
        with_chunk,
        plain(b"\xa1a", 6),
    ]
    .concat();
    let mut buffer = BytesMut::from(&[&stream[..], &stream[..3]].concat()[..]);
    let mut reader = FrameReader::new(ReaderSettings::default());
    let mut counts = Vec::new();
    while let Item::Message(message) = reader.next(&mut buffer, NOW) {
        counts.push((message.stream.tag.to_string(), message.messages, message.stream.count));
    }
    let expected = [("a", 3), ("b", 1), ("a", 1), ("a", 1)];
    assert_eq!(counts, expected.map(|(tag, count)| (String::from(tag), count, count)));
    assert_eq!(buffer.len(), 3);
}

#[test]
fn chunk_size_limit_drops_and_goes_on() {
    let settings = ReaderSettings { chunk_size_limit: Some(20), ..ReaderSettings::default() };
    let big = message(&[b"\xa1t", &bin(&entries_of(9)), &options(&[("chunk", "c".into())])]);
    let long_record = Value::Map(vec![("k".into(), Value::Str(vec![b'x'; 50]))]).to_msgpack();
    let stream = [
        message(&[b"\xa1t", &[1], RECORD]),
        big,
        message(&[b"\xa1t", &[2], &long_record]),
        message(&[b"\xa1t", &[3], RECORD]),
    ]
    .concat();
    for piece in [1, 7, stream.len()] {
        let reading = read_with(&stream, piece, settings);
        assert_eq!((reading.events.len(), reading.oversize, reading.acks.len()), (2, 2, 0));
    }
}

#[test]
fn a_message_beyond_the_limit_ends_the_connection_before_it_is_read() {
    let settings = ReaderSettings { message_size_limit: 1000, ..ReaderSettings::default() };
    let mut reader = FrameReader::new(settings);
    let mut buffer = BytesMut::from(&b"\x92\xa1t\xda\x03\xe8"[..]);
    assert!(matches!(reader.next(&mut buffer, NOW), Item::Fatal(FrameError::TooLarge { .. })));
    let array = [&b"\x92\xa1t\xdd\x00\xff\xff\xff"[..], &[0x91; 2000]].concat();
    assert!(read_with(&array, 100, settings).fatal.is_some());
    let mut reader = FrameReader::new(settings);
    let mut buffer = BytesMut::from(&b"\x92\xa1t\xda\x01\x00"[..]);
    assert!(matches!(reader.next(&mut buffer, NOW), Item::Incomplete));
    assert_eq!(reader.needed_bytes(), 6 + 256);
}

/// A large message in small reads is walked once: the work is linear, not quadratic, in its size.
#[test]
fn large_messages_are_not_scanned_again() {
    let count: u32 = 200_000;
    let mut stream = b"\x92\xa1t".to_vec();
    msgpack::write_array_header(&mut stream, count);
    (0..count).for_each(|_| stream.extend_from_slice(b"\x92\x05\x81\xa1k\x01"));
    let start = std::time::Instant::now();
    let reading = read_with(&stream, 10, ReaderSettings::default());
    assert_eq!(reading.events.len(), count as usize);
    // Quadratic work would be 10^10 steps; linear is a few million. The bound is generous for a loaded machine.
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}

fn any_record() -> impl Strategy<Value = Vec<u8>> {
    let value = prop_oneof![
        any::<i64>().prop_map(Value::Int),
        any::<f64>().prop_map(Value::Float),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::Str),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::Bin),
        Just(Value::Array(vec![Value::Nil, Value::Map(vec![])])),
        Just(Value::Ext(0, vec![0; 8])),
    ];
    prop::collection::vec(("[a-z]{0,8}", value), 0..18).prop_map(|pairs| {
        Value::Map(pairs.into_iter().map(|(key, value)| (Value::from(key.as_str()), value)).collect())
            .to_msgpack()
    })
}

fn any_time() -> impl Strategy<Value = EventTime> {
    prop_oneof![
        any::<i64>().prop_filter("0 means now", |time| *time != 0).prop_map(EventTime::Int),
        (1u32.., any::<u32>()).prop_map(|(seconds, nanoseconds)| EventTime::Ext { seconds, nanoseconds }),
    ]
}

/// A message of random mode, and what it must give.
fn any_message() -> impl Strategy<Value = (Vec<u8>, Vec<Event>, Vec<u8>)> {
    let chunk = prop::option::of(prop::collection::vec(any::<u8>(), 0..50));
    ("[a-c.]{0,3}", prop::collection::vec((any_time(), any_record()), 1..5), 0..6u8, chunk).prop_map(
        |(tag, events, mode, chunk)| {
            let events = if mode == 0 { events[..1].to_vec() } else { events };
            let mut entries = Vec::new();
            events.iter().for_each(|(time, record)| msgpack::write_entry(&mut entries, *time, record));
            let mut option = Vec::new();
            chunk.iter().for_each(|id| option.push(("chunk", Value::Str(id.clone()))));
            let mut out = vec![0x93];
            msgpack::write_str(&mut out, tag.as_bytes());
            match mode {
                0 => {
                    out[0] = 0x94;
                    out.extend_from_slice(&entries[1..]);
                }
                1 => {
                    msgpack::write_array_header(&mut out, events.len() as u32);
                    out.extend_from_slice(&entries);
                }
                2 => msgpack::write_bin(&mut out, &entries),
                3 => msgpack::write_str(&mut out, &entries),
                _ => {
                    option.push(("compressed", "gzip".into()));
                    msgpack::write_bin(&mut out, &gzip(&entries));
                }
            }
            out.extend_from_slice(&options(&option));
            let mut acks = Vec::new();
            if let Some(bytes) = chunk {
                ack::write_ack(&mut acks, &ChunkOption { bytes: Bytes::from(bytes), binary: false });
            }
            let events =
                events.into_iter().map(|(time, record)| (tag.as_bytes().to_vec(), time, record)).collect();
            (out, events, acks)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn random_messages_come_back(messages in prop::collection::vec(any_message(), 1..5), piece in 1usize..600) {
        let stream: Vec<u8> = messages.iter().flat_map(|(bytes, _, _)| bytes.clone()).collect();
        let reading = read_with(&stream, piece, ReaderSettings::default());
        prop_assert_eq!(&reading.fatal, &None);
        prop_assert_eq!(reading.left_bytes, 0);
        let events: Vec<Event> = messages.iter().flat_map(|(_, events, _)| events.clone()).collect();
        prop_assert_eq!(reading.events, events);
        prop_assert_eq!(reading.acks, messages.iter().flat_map(|(_, _, acks)| acks.clone()).collect::<Vec<_>>());
    }

    #[test]
    fn arbitrary_bytes_never_panic(data in prop::collection::vec(any::<u8>(), 0..300)) {
        fuzz_frame_reader(&data);
    }

    #[test]
    fn damaged_messages_never_panic(
        messages in prop::collection::vec(any_message(), 1..4),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        seed in any::<u8>(),
    ) {
        let mut stream: Vec<u8> = messages.iter().flat_map(|(bytes, _, _)| bytes.clone()).collect();
        for (at, byte) in damage {
            let at = at.index(stream.len());
            stream[at] = byte;
        }
        stream.insert(0, seed);
        fuzz_frame_reader(&stream);
    }
}

/// The committed corpus of the fuzz target, without its engine.
#[test]
fn the_fuzz_corpus_is_read_the_same_in_one_piece_and_in_many() {
    let mut inputs = 0;
    for entry in std::fs::read_dir("fuzz/corpus/frame_reader").unwrap() {
        let data = std::fs::read(entry.unwrap().path()).unwrap();
        fuzz_frame_reader(&data);
        for seed in [1, 2, 3, 13, 64] {
            fuzz_frame_reader(&[&[seed], &data[1..]].concat());
        }
        inputs += 1;
    }
    assert!(inputs >= 30, "{inputs} inputs");
}
