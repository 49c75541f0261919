//! Damaged chunk files: every byte flipped, every length cut, and the committed files of every version.

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;

use super::crash_tests::{Oracle, Step, World, config, event};
use super::files::Part;
use super::format::{self, Head, Totals};
use super::places::{Places, State};
use super::sim::Disk;
use super::*;
use crate::event::{Tag, Value};

const ID: ChunkId = ChunkId(*b"\x06\x18\x06\x34\xf0\xcb\x24\xc7\x81\xd7\xa4\x7a\x03\x3c\x31\xa2");
/// Events of each frame.
const FRAMES: [std::ops::Range<u64>; 3] = [0..2, 2..3, 3..7];

/// A chunk file with three frames, and where each frame stands.
fn chunk_file(seal: bool) -> (Vec<u8>, Vec<std::ops::Range<usize>>) {
    chunk_file_of(EntryForm::Events, seal)
}

fn chunk_file_of(form: EntryForm, seal: bool) -> (Vec<u8>, Vec<std::ops::Range<usize>>) {
    let metadata = Metadata {
        timekey: Some(1_700_000_000),
        tag: Some(Tag::from("app.web")),
        variables: vec![("host".into(), Value::from("a")), ("$.k.ns".into(), Value::Nil)],
    };
    let created_at = UNIX_EPOCH + Duration::new(1_700_000_000, 5);
    let mut file =
        format::encode_beginning(ID, &Head { plugin_id: "out_forward".into(), created_at, form, metadata });
    let mut places = Vec::new();
    let mut totals = Totals::default();
    for (number, events) in FRAMES.into_iter().enumerate() {
        let payload: Vec<u8> = events.clone().flat_map(event).collect();
        let count = (events.end - events.start) as usize;
        let payload = match form {
            EntryForm::Events => payload.into(),
            EntryForm::TaggedEvents => crate::event::with_tag(&Tag::from("app.web"), &payload, count),
        };
        totals.frames += 1;
        totals.events += events.end - events.start;
        totals.bytes += payload.len() as u64;
        let part = Part {
            sender_chunk: (number == 1).then(|| Bytes::from_static(b"sender-id")),
            payload,
            events: (events.end - events.start) as usize,
        };
        let frames =
            super::files::frames(ID, file.len() as u64, std::slice::from_ref(&part), 1_700_000_001_000);
        let start = file.len();
        file.extend_from_slice(&frames.headers[0]);
        file.extend_from_slice(part.sender_chunk.as_deref().unwrap_or_default());
        file.extend_from_slice(&part.payload);
        places.push(start..file.len());
    }
    if seal {
        let seal = format::encode_seal(ID, file.len() as u64, totals, 1_700_000_002_000);
        file.extend_from_slice(&seal);
    }
    (file, places)
}

/// Opens a buffer over this one file and returns the events that come out.
fn delivered(state: State, file: &[u8]) -> Result<Vec<u64>, String> {
    let mut disk = Disk::with_directory("/var/buffer");
    let places = Places::new(Path::new("/var/buffer"), false);
    disk.put(&places.chunk(state, ID), file);
    let mut world = World::open(disk, config(), None)?.ok_or("crashed")?;
    let mut oracle = Oracle { sent: 7, ..Oracle::default() };
    world.run(&mut oracle, &[Step::EnqueueAll, Step::Drain])?;
    Ok(oracle.delivered.into_iter().collect())
}

fn whole_frames(
    places: &[std::ops::Range<usize>],
    damaged: impl Fn(&std::ops::Range<usize>) -> bool,
) -> Vec<u64> {
    let frames = FRAMES.into_iter().zip(places).filter(|(_, place)| !damaged(place));
    frames.flat_map(|(events, _)| events).collect()
}

#[test]
fn a_flipped_byte_costs_its_own_frame_at_most() {
    let mut tried = 0;
    for (state, seal) in [(State::Staged, false), (State::Staged, true), (State::Queued, true)] {
        let (file, places) = chunk_file(seal);
        assert_eq!(delivered(state, &file).unwrap(), [0, 1, 2, 3, 4, 5, 6]);
        for at in 0..file.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut damaged = file.clone();
                damaged[at] ^= flip;
                let expected = whole_frames(&places, |place| place.contains(&at));
                let got = delivered(state, &damaged)
                    .unwrap_or_else(|error| panic!("byte {at} ^ {flip:#x}: {error}"));
                assert_eq!(got, expected, "byte {at} ^ {flip:#x}");
                tried += 1;
            }
        }
    }
    println!("{tried} flips");
}

#[test]
fn a_cut_file_delivers_its_whole_frames() {
    for (state, seal) in [(State::Staged, false), (State::Staged, true), (State::Queued, true)] {
        let (file, places) = chunk_file(seal);
        for len in 0..file.len() {
            let expected = whole_frames(&places, |place| place.end > len);
            let got = delivered(state, &file[..len]).unwrap_or_else(|error| panic!("{len} bytes: {error}"));
            assert_eq!(got, expected, "{len} bytes");
        }
    }
}

#[test]
fn a_chunk_file_inside_an_event_is_no_frame() {
    let (inner, _) = chunk_file(true);
    let head = Head {
        plugin_id: String::new(),
        created_at: UNIX_EPOCH,
        form: EntryForm::Events,
        metadata: Metadata::default(),
    };
    let mut file = format::encode_beginning(ID, &head);
    // The frame around it is broken, so the scan searches through the event.
    file.extend_from_slice(&inner);
    let scan = format::scan(ID, &file);
    assert!(scan.frames.is_empty() && scan.seal.is_none());
    assert_eq!(scan.damaged.len(), 1);
}

#[test]
fn a_newer_version_is_left_alone_and_named() {
    let (mut file, _) = chunk_file(true);
    file[8] = 9;
    let crc = crc32c::crc32c(&file[..28]);
    file[28..32].copy_from_slice(&crc.to_le_bytes());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(format!("buffer.q{ID}.tchunk"));
    std::fs::write(&path, &file).unwrap();
    std::fs::write(directory.path().join("notes.txt"), "").unwrap();
    let (handle, report) = open(BufferConfig::file("out", directory.path())).unwrap();
    assert_eq!(report.newer_files, [format!("buffer.q{ID}.tchunk")]);
    assert_eq!(report.unknown_files, ["notes.txt"]);
    assert_eq!(report.queued + report.staged, 0);
    drop(handle);
    assert_eq!(std::fs::read(&path).unwrap(), file);
}

#[test]
fn a_path_with_chunks_of_the_other_form_is_refused_by_name_and_left_as_it_is() {
    for (written, opened) in
        [(EntryForm::Events, EntryForm::TaggedEvents), (EntryForm::TaggedEvents, EntryForm::Events)]
    {
        let (file, _) = chunk_file_of(written, false);
        let directory = tempfile::tempdir().unwrap();
        let name = format!("buffer.b{ID}.tchunk");
        std::fs::write(directory.path().join(&name), &file).unwrap();
        let mut config = BufferConfig::file("out", directory.path());
        config.entry_form = opened;
        let text = open(config.clone()).err().expect("refused").to_string();
        for part in [name.as_str(), written.as_str(), opened.as_str(), "choose another path"] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
        assert_eq!(std::fs::read(directory.path().join(&name)).unwrap(), file);
        config.entry_form = written;
        let (_handle, report) = open(config).unwrap();
        assert_eq!((report.staged, report.events), (1, 7));
    }
}

#[test]
fn damage_is_set_aside_named_and_counted() {
    let (mut file, places) = chunk_file(true);
    let at = places[1].end - 1;
    file[at] ^= 0xff;
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join(format!("buffer.b{ID}.tchunk")), &file).unwrap();
    std::fs::write(directory.path().join(format!("buffer.q{}.tchunk", ChunkId([7; 16]))), b"no chunk at all")
        .unwrap();
    let (_handle, report) = open(BufferConfig::file("out", directory.path())).unwrap();
    assert_eq!((report.queued, report.events), (1, 6));
    assert_eq!(report.damaged_files.len(), 2);
    assert_eq!(report.damaged_bytes, places[1].len() as u64 + 15);
    let side = std::fs::read(directory.path().join(format!("buffer.damaged/{ID}.damage"))).unwrap();
    let line = format!("offset={} bytes={}\n", places[1].start, places[1].len());
    assert!(side.starts_with(line.as_bytes()));
    assert_eq!(side[line.len()..side.len() - 1], file[places[1].clone()]);
    assert!(directory.path().join(format!("buffer.damaged/buffer.q{}.tchunk", ChunkId([7; 16]))).exists());
}

/// The committed files of every published version still read as they did. `WRITE_FIXTURES=1` writes those of the current
/// version, which must then be looked at and committed.
#[test]
fn fixtures_of_every_version_are_read() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/chunks");
    for (name, form, seal) in [
        ("version0-unsealed.tchunk", EntryForm::Events, false),
        ("version0-sealed.tchunk", EntryForm::Events, true),
        ("version0-tagged.tchunk", EntryForm::TaggedEvents, true),
    ] {
        let (expected, places) = chunk_file_of(form, seal);
        let path = folder.join(name);
        if std::env::var_os("WRITE_FIXTURES").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, &expected).unwrap();
        }
        let file = std::fs::read(&path).unwrap();
        assert!(file == expected, "{name}: today's bytes differ from the committed ones");
        let scan = format::scan(ID, &file);
        let head = scan.head.unwrap();
        assert_eq!(head.plugin_id, "out_forward");
        assert_eq!(head.form, form);
        assert_eq!(head.metadata.tag, Some(Tag::from("app.web")));
        assert_eq!(head.metadata.timekey, Some(1_700_000_000));
        assert_eq!(scan.seal.is_some(), seal);
        assert_eq!(
            scan.frames.iter().map(|frame| frame.offset as usize).collect::<Vec<_>>(),
            places.iter().map(|place| place.start).collect::<Vec<_>>()
        );
        assert_eq!(file[scan.frames[1].sender.clone()], *b"sender-id");
        assert!(scan.damaged.is_empty());
    }
}
