//! The vector rows of out_file, and what must hold when writes fail.

use std::io::{self, Write};
use std::path::Path as FilePath;
use std::sync::Mutex;
use std::time::SystemTime;

use serde_json::Value as Json;

use super::*;
use crate::buffer::{ChunkId, Metadata};
use crate::event::{EventTime, RecordAccessor, Tag, Value, msgpack, with_tag};
use crate::formatter::tests::{element_of, time_of, value_of, vector_rows};
use crate::output::buffer_section;
use crate::time::with_local_zone;

/// A chunk without chunk keys that holds these entries.
pub(in crate::output) fn chunk_of(entries: &[u8]) -> Chunk {
    Chunk {
        id: ChunkId([7; 16]),
        metadata: Metadata::default(),
        count: 0,
        size_bytes: entries.len() as u64,
        created_at: SystemTime::UNIX_EPOCH,
        payload: vec![bytes::Bytes::copy_from_slice(entries)],
    }
}

fn entry(time: EventTime, record: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    msgpack::write_entry(&mut out, time, &record.to_msgpack());
    out
}

fn numbered(number: i64) -> Vec<u8> {
    entry(EventTime::Int(number), &Value::Map(vec![("n".into(), Value::Int(number))]))
}

/// The output as configured, with the directory put before its path.
fn configured(params: &Json, directory: &FilePath) -> Result<Box<dyn OutputConfig>, String> {
    let mut element = element_of("match **", params);
    if let Some(path) = params["path"].as_str() {
        element = element.with_param("path", directory.join(path).to_str().expect("UTF-8"));
    }
    let mut diagnostics = Diagnostics::new();
    let chunking = chunking_of(&element, &mut diagnostics);
    let config = with_local_zone("Etc/UTC", || configure(&element, chunking.as_ref(), &mut diagnostics));
    config.ok_or_else(|| diagnostics.render())
}

/// What the buffer section says, as the pipeline would read it.
fn chunking_of(element: &Element, diagnostics: &mut Diagnostics) -> Option<Chunking> {
    with_local_zone("Etc/UTC", || {
        let section = buffer_section::open(element, PLUGIN.buffering, diagnostics)?;
        section.expect("always buffered").chunking().cloned()
    })
}

fn output(params: &Json, directory: &FilePath) -> Arc<dyn Output> {
    let context =
        OutputContext { plugin_id: "object:1".into(), metrics: Arc::default(), system: Arc::default() };
    let config = configured(params, directory).unwrap_or_else(|error| panic!("{params}: {error}"));
    config.build(context).expect("built")
}

/// The template and timekey that a configuration gives.
fn template(params: &Json, directory: &FilePath) -> Result<(String, Option<i64>), String> {
    let mut element = element_of("match **", params);
    element = element.with_param(
        "path",
        directory.join(params["path"].as_str().expect("a path")).to_str().expect("UTF-8"),
    );
    let mut diagnostics = Diagnostics::new();
    let chunking = chunking_of(&element, &mut diagnostics);
    let config = with_local_zone("Etc/UTC", || configure(&element, chunking.as_ref(), &mut diagnostics));
    config.ok_or_else(|| diagnostics.render())?;
    let chunking = chunking.expect("configured before");
    let params = OutFileParams::from_element(&element, &mut diagnostics).expect("configured before");
    let path = path_template(&params, &element, &chunking, &mut diagnostics).expect("valid");
    Ok((path.to_string(), chunking.timekey.map(|timekey| timekey.unit_seconds)))
}

#[tokio::test]
async fn vectors() {
    let (mut run, mut not_built) = (0, std::collections::BTreeMap::<String, usize>::new());
    for row in vector_rows("outputs.jsonl") {
        let plugin = row["plugin"].as_str().expect("a name").to_owned();
        let needs_compress = row["params"].get("compress").is_some();
        match plugin.as_str() {
            "out/file.path_template" if !needs_compress => check_template(&row),
            "out/file.timekey_format" => {
                let timekey = row["params"]["timekey"].as_i64();
                assert_eq!(row["expect"]["format"], path::timekey_format(timekey), "{row}");
            }
            "out/file.next_index" => check_next_index(&row),
            "out/file.write" if !needs_compress => check_write(&row).await,
            "out/file.path_template" | "out/file.write" => {
                *not_built.entry(format!("{plugin} with compress")).or_default() += 1;
                continue;
            }
            _ => {
                *not_built.entry(plugin).or_default() += 1;
                continue;
            }
        }
        run += 1;
    }
    println!("out_file: {run} rows run; rows of others: {not_built:?}");
    assert!(run > 20, "{run}");
}

fn check_template(row: &Json) {
    let directory = tempfile::tempdir().expect("a directory");
    let result = template(&row["params"], directory.path());
    if row["expect"]["config_error"] == true {
        assert!(result.is_err(), "{row}: {result:?}");
        return;
    }
    let (path, timekey) = result.unwrap_or_else(|error| panic!("{row}: {error}"));
    let shown = path.replace(directory.path().to_str().expect("UTF-8"), "DIR");
    assert_eq!(row["expect"]["template"], shown, "{row}");
    if let Some(timekey) = timekey {
        assert_eq!(row["expect"]["timekey"].as_f64(), Some(timekey as f64), "{row}");
    }
    // The buffer makes a directory of this path, or a file pattern when it holds a `*`.
    let config = configured(&row["params"], directory.path()).expect("configured");
    let buffer_path = config.default_buffer_path().expect("a path");
    let expected = row["expect"]["buffer_path"].as_str().expect("text");
    let expected =
        expected.strip_suffix("/buffer.*.log").or(expected.strip_suffix(".log")).unwrap_or(expected);
    assert_eq!(buffer_path.replace(directory.path().to_str().expect("UTF-8"), "DIR"), expected, "{row}");
}

fn check_next_index(row: &Json) {
    let directory = tempfile::tempdir().expect("a directory");
    for name in row["input"]["existing"].as_array().expect("names") {
        std::fs::write(directory.path().join(name.as_str().expect("text")), "old").expect("written");
    }
    let (before, after) =
        row["params"]["template"].as_str().expect("text").split_once("_**").expect("a mark");
    let before = directory.path().join(before);
    let writer = FileWriter::new(false, true, Permissions::default());
    let body: writer::Body<'_> = &mut |sink| sink.write_all(b"new").map(|()| 0).map_err(WriteFault::Io);
    let before = before.to_str().expect("UTF-8").as_bytes();
    writer.write(before, after.as_bytes(), ChunkId([1; 16]), true, body).expect("written");
    let path = directory.path().join(row["expect"]["path"].as_str().expect("text"));
    assert_eq!(std::fs::read(path).expect("the next free name"), b"new", "{row}");
}

/// Splits the events into chunks as the buffer would, by the keys of the section.
async fn check_write(row: &Json) {
    let directory = tempfile::tempdir().expect("a directory");
    let element = element_of("match **", &row["params"]);
    let chunking = chunking_of(&element, &mut Diagnostics::new()).expect("valid");
    let output = output(&row["params"], directory.path());
    let tag = Tag::from(row["input"]["tag"].as_str().expect("text"));
    let mut chunks: Vec<Chunk> = Vec::new();
    for event in row["input"]["events"].as_array().expect("events") {
        let (time, record) = (time_of(&event["time"]), value_of(&event["record"]));
        let field = |key: &String| {
            let value = RecordAccessor::parse(key).expect("valid").get(&record).expect("a map").cloned();
            (key.clone(), value.unwrap_or(Value::Nil))
        };
        let metadata = Metadata {
            timekey: chunking.timekey.as_ref().map(|timekey| timekey.slot(time.seconds())),
            tag: chunking.keys.tag.then(|| tag.clone()),
            variables: chunking.keys.fields.iter().map(field).collect(),
        };
        let pair = entry(time, &record);
        let pair = if output.wants_tag_in_entries() { with_tag(&tag, &pair, 1) } else { pair.into() };
        match chunks.iter_mut().find(|chunk| chunk.metadata == metadata) {
            Some(chunk) => chunk.payload.push(pair),
            None => chunks.push(Chunk {
                id: ChunkId([chunks.len() as u8; 16]),
                metadata,
                payload: vec![pair],
                ..chunk_of(&[])
            }),
        }
    }
    for chunk in chunks {
        output.write(Arc::new(chunk)).await.unwrap_or_else(|error| panic!("{row}: {error}"));
    }
    let expected = row["expect"]["files"].as_object().expect("files");
    for (name, text) in expected {
        let found = std::fs::read_to_string(directory.path().join(name))
            .unwrap_or_else(|error| panic!("{row}: {name}: {error}"));
        assert_eq!(found, text.as_str().expect("text"), "{row}");
    }
    assert_eq!(std::fs::read_dir(directory.path()).expect("listed").count(), expected.len(), "{row}");
}

/// A file in memory whose calls fail from a given one on.
#[derive(Default)]
struct FailingFile {
    bytes: Mutex<Vec<u8>>,
    calls: Mutex<usize>,
    fail_at: usize,
}

impl FailingFile {
    fn step(&self) -> io::Result<()> {
        let mut calls = self.calls.lock().expect("one thread");
        *calls += 1;
        if *calls == self.fail_at { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl Write for FailingFile {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        // A torn write: half of it reaches the file before the disk is full.
        let result = self.step();
        let kept = if result.is_ok() { data.len() } else { data.len() / 2 };
        self.bytes.lock().expect("one thread").extend_from_slice(&data[..kept]);
        result.map(|()| data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl writer::AppendFile for FailingFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().expect("one thread").len() as u64)
    }

    fn last_byte(&self) -> io::Result<Option<u8>> {
        self.step()?;
        Ok(self.bytes.lock().expect("one thread").last().copied())
    }

    fn cut(&self, length: u64) -> io::Result<()> {
        self.bytes.lock().expect("one thread").truncate(length as usize);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.step()
    }
}

#[test]
fn a_failed_append_leaves_the_file_as_it_was() {
    // Calls: last byte, line end, two pieces, sync.
    for fail_at in 1..=6 {
        let mut file =
            FailingFile { fail_at, bytes: Mutex::new(b"torn line".to_vec()), ..FailingFile::default() };
        let body: writer::Body<'_> = &mut |sink| {
            sink.write_all(b"first\n").map_err(WriteFault::Io)?;
            sink.write_all(b"second\n").map_err(WriteFault::Io)?;
            Ok(3)
        };
        let result = writer::append_whole(&mut file, true, true, body);
        let text = String::from_utf8(file.bytes.into_inner().expect("one thread")).expect("text");
        if fail_at <= 5 {
            assert!(matches!(result, Err(WriteFault::Io(_))), "{fail_at}: {result:?}");
            assert_eq!(text, "torn line", "{fail_at}");
        } else {
            assert!(matches!(result, Ok(3)), "{result:?}");
            assert_eq!(text, "torn line\nfirst\nsecond\n", "the torn line is ended, not glued to the next");
        }
    }
}

#[tokio::test]
async fn an_event_without_text_leaves_no_file_and_is_unrecoverable() {
    let directory = tempfile::tempdir().expect("a directory");
    for append in ["true", "false"] {
        let json = serde_json::json!({"@type": "json", "json_parser": "json"});
        let params = serde_json::json!({"path": "x", "append": append, "<buffer []>": {}, "<format>": json});
        let output = output(&params, directory.path());
        let bad = Value::Map(vec![("a".into(), Value::Str(vec![0xff]))]);
        let entries = [numbered(1), entry(EventTime::Int(2), &bad)].concat();
        let result = output.write(Arc::new(chunk_of(&entries))).await;
        assert!(matches!(result, Err(WriteError::Unrecoverable(_))), "{result:?}");
        let text: String = std::fs::read_dir(directory.path())
            .expect("listed")
            .map(|file| std::fs::read_to_string(file.expect("a file").path()).expect("text"))
            .collect();
        assert_eq!(text, "", "{append}");
    }
}

#[tokio::test]
async fn replaced_bytes_are_counted() {
    let directory = tempfile::tempdir().expect("a directory");
    let params = serde_json::json!({"path": "x", "<buffer []>": {}, "<format>": {"@type": "json"}});
    let metrics = Arc::new(PluginMetrics::default());
    let context =
        OutputContext { plugin_id: "out".into(), metrics: Arc::clone(&metrics), system: Arc::default() };
    let output = configured(&params, directory.path()).expect("configured").build(context).expect("built");
    let bad = Value::Map(vec![("a".into(), Value::Str(vec![b'x', 0xff]))]);
    output.write(Arc::new(chunk_of(&entry(EventTime::Int(2), &bad)))).await.expect("written");
    assert_eq!(metrics.replaced_values.load(Ordering::Relaxed), 1);
    let text = std::fs::read_to_string(directory.path().join("x_0.log")).expect("text");
    assert_eq!(text, "{\"a\":\"x\u{fffd}\"}\n");
}

#[tokio::test]
async fn a_tag_that_leaves_the_directory_is_unrecoverable_and_a_directory_in_the_way_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let params = serde_json::json!({"path": "x/${tag}", "append": "true", "<buffer tag>": {}});
    let output = output(&params, directory.path());
    let write = async |tag: &str| {
        let metadata = Metadata { tag: Some(Tag::from(tag)), ..Metadata::default() };
        output.write(Arc::new(Chunk { metadata, ..chunk_of(&numbered(1)) })).await
    };
    assert!(matches!(write("../up").await, Err(WriteError::Unrecoverable(_))));
    assert!(matches!(write("a\0b").await, Err(WriteError::Unrecoverable(_))));
    assert!(matches!(write(&"long".repeat(100)).await, Err(WriteError::Unrecoverable(_))));
    std::fs::create_dir_all(directory.path().join("x/blocked.log")).expect("made");
    assert!(matches!(write("blocked").await, Err(WriteError::Refused(_))));
    assert!(write("fine").await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_written_at_once_stay_whole() {
    for append in ["true", "false"] {
        let directory = tempfile::tempdir().expect("a directory");
        let params = serde_json::json!({"path": "x", "append": append, "<buffer []>": {}, "<format>": {"@type": "json"}});
        let output = output(&params, directory.path());
        let tasks: Vec<_> = (0..16_u8)
            .map(|number| {
                let output = Arc::clone(&output);
                let entries = numbered(number.into()).repeat(50);
                let chunk = Chunk { id: ChunkId([number; 16]), ..chunk_of(&entries) };
                tokio::spawn(async move { output.write(Arc::new(chunk)).await })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic").expect("written");
        }
        let mut files = 0;
        let mut lines = Vec::new();
        for file in std::fs::read_dir(directory.path()).expect("listed") {
            files += 1;
            let text = std::fs::read_to_string(file.expect("a file").path()).expect("text");
            lines.extend(text.lines().map(str::to_owned));
        }
        assert_eq!(files, if append == "true" { 1 } else { 16 });
        for chunk in lines.chunks(50) {
            assert!(chunk.iter().all(|line| *line == chunk[0]), "chunks are mixed");
        }
        assert_eq!(lines.len(), 800);
    }
}
