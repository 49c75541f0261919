//! The buffer through its handle, on real directories.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::event::{EventTime, Tag, msgpack};

/// Events `[time, {"n": number}]`, each of about `size` bytes.
fn events(numbers: std::ops::Range<u64>, size: usize) -> (Bytes, usize) {
    let mut out = Vec::new();
    let count = (numbers.end - numbers.start) as usize;
    for number in numbers {
        let mut record = Vec::new();
        msgpack::write_map_header(&mut record, 2);
        msgpack::write_str(&mut record, b"n");
        msgpack::write_uint(&mut record, number);
        msgpack::write_str(&mut record, b"p");
        msgpack::write_bin(&mut record, &vec![b'x'; size.saturating_sub(20)]);
        msgpack::write_entry(&mut out, EventTime::Int(1_700_000_000), &record);
    }
    (out.into(), count)
}

fn metadata(tag: &str) -> Metadata {
    Metadata { tag: Some(Tag::from(tag)), ..Metadata::default() }
}

fn append_of(tag: &str, numbers: std::ops::Range<u64>, size: usize) -> Append {
    let (bytes, count) = events(numbers, size);
    Append {
        parts: vec![(metadata(tag), bytes, count)],
        sender_chunk: Some(Bytes::from_static(b"sender-chunk-id")),
    }
}

async fn store(handle: &BufferHandle, tag: &str, numbers: std::ops::Range<u64>) -> Result<(), AppendError> {
    handle.append(vec![append_of(tag, numbers, 50)]).await.remove(0)
}

fn numbers(chunk: &Chunk) -> Vec<u64> {
    let bytes = chunk.payload.concat();
    let mut found = Vec::new();
    let mut entries = crate::event::Entries::new(&bytes);
    while let Some((_, record, _)) = entries.next_with_pair() {
        match crate::event::Value::decode(record).unwrap().0.get(b"n") {
            Some(crate::event::Value::Int(number)) => found.push(*number as u64),
            other => panic!("no number: {other:?}"),
        }
    }
    assert!(entries.rest().is_empty(), "chunk {} does not end with an event", chunk.id);
    assert_eq!(found.len(), chunk.count);
    assert_eq!(bytes.len() as u64, chunk.size_bytes);
    found
}

fn lazy(mut config: BufferConfig) -> BufferConfig {
    config.flush.mode = FlushMode::Lazy;
    config
}

fn both(directory: &Path) -> [BufferConfig; 2] {
    [lazy(BufferConfig::memory("out")), lazy(BufferConfig::file("out", directory.join("buf")))]
}

fn chunk_files(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".tchunk"))
        .collect();
    names.sort();
    names
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("waited in vain until {what}");
}

#[tokio::test]
async fn what_is_stored_comes_out_once_and_in_order() {
    let directory = tempfile::tempdir().unwrap();
    for config in both(directory.path()) {
        let (handle, _) = open(config).unwrap();
        store(&handle, "a", 0..3).await.unwrap();
        store(&handle, "b", 10..12).await.unwrap();
        store(&handle, "a", 3..5).await.unwrap();
        assert_eq!(handle.stats().stage_length, 2);
        handle.enqueue_all();
        let (first, second) = (handle.take().await.unwrap(), handle.take().await.unwrap());
        let mut got = [numbers(&first), numbers(&second)];
        got.sort();
        assert_eq!(got, [vec![0, 1, 2, 3, 4], vec![10, 11]]);
        assert_eq!(handle.stats().queue_length, 2);
        handle.rollback(second.id);
        handle.rollback(first.id);
        // Both are back in their places.
        assert_eq!(handle.take().await.unwrap().id, first.id);
        assert_eq!(handle.take().await.unwrap().id, second.id);
        handle.commit(first.id);
        handle.commit(second.id);
        handle.close(true).await;
        assert!(handle.take().await.is_none());
        assert!(matches!(store(&handle, "a", 0..1).await, Err(AppendError::Closed)));
        assert_eq!((handle.stats().queue_bytes, handle.stats().stage_bytes), (0, 0));
    }
    assert!(chunk_files(&directory.path().join("buf")).is_empty());
}

#[tokio::test]
async fn chunks_survive_a_restart_in_their_states() {
    let directory = tempfile::tempdir().unwrap();
    let config = || lazy(BufferConfig::file("out", directory.path().join("buf")));
    let (handle, _) = open(config()).unwrap();
    store(&handle, "queued", 0..3).await.unwrap();
    handle.enqueue_all();
    handle.close(false).await;
    drop(handle);
    let (handle, report) = open(config()).unwrap();
    assert_eq!((report.queued, report.staged, report.events), (1, 0, 3));
    store(&handle, "staged", 3..5).await.unwrap();
    drop(handle);
    let files = chunk_files(&directory.path().join("buf"));
    assert!(files[0].starts_with("buffer.b") && files[1].starts_with("buffer.q"), "{files:?}");
    let (handle, report) = open(config()).unwrap();
    assert_eq!((report.queued, report.staged, report.events), (1, 1, 5));
    store(&handle, "staged", 5..7).await.unwrap();
    assert_eq!(handle.stats().stage_length, 1, "goes on collecting in the same chunk");
    let first = handle.take().await.unwrap();
    assert_eq!((numbers(&first), first.metadata.clone()), (vec![0, 1, 2], metadata("queued")));
    handle.enqueue_all();
    assert_eq!(numbers(&handle.take().await.unwrap()), [3, 4, 5, 6]);
}

#[tokio::test]
async fn a_second_buffer_on_the_path_is_refused_with_the_process_number() {
    let directory = tempfile::tempdir().unwrap();
    let (_first, _) = open(BufferConfig::file("one", directory.path())).unwrap();
    let error = open(BufferConfig::file("two", directory.path())).err().unwrap().to_string();
    assert!(error.contains(&std::process::id().to_string()), "{error}");
    // Another prefix in the same directory is another buffer.
    open(BufferConfig::file("three", directory.path().join("app.*.buffer"))).unwrap();
}

#[tokio::test]
async fn chunks_of_fluentd_are_refused_by_name() {
    let fixtures = std::env::var_os("FIXTURES_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/fixtures"),
        std::path::PathBuf::from,
    );
    let mut tried = 0;
    for entry in std::fs::read_dir(fixtures.join("buffers")).unwrap() {
        let from = entry.unwrap().path();
        if !from.is_dir() {
            continue;
        }
        let directory = tempfile::tempdir().unwrap();
        let mut chunks = Vec::new();
        for file in std::fs::read_dir(&from).unwrap() {
            let file = file.unwrap();
            let name = file.file_name().into_string().unwrap();
            if !matches!(name.as_str(), "expected.jsonl" | "replay.conf") {
                std::fs::copy(file.path(), directory.path().join(&name)).unwrap();
                chunks.push(name);
            }
        }
        let path = match chunks[0].starts_with("app.") {
            true => directory.path().join("app.*.buffer"),
            false => directory.path().to_path_buf(),
        };
        let error = open(BufferConfig::file("out", path)).err().unwrap().to_string();
        chunks.sort();
        assert!(error.contains(&chunks[0]) && error.contains("takeover is not built yet"), "{error}");
        tried += 1;
    }
    assert!(tried >= 12, "only {tried} fixtures found");
}

#[tokio::test]
async fn a_part_over_the_limit_is_cut_and_a_record_over_it_refused_as_a_whole() {
    let directory = tempfile::tempdir().unwrap();
    for mut config in both(directory.path()) {
        config.chunk_limit_bytes = 1000;
        let (handle, _) = open(config).unwrap();
        handle.append(vec![append_of("a", 0..50, 100)]).await.remove(0).unwrap();
        let (good, count) = events(50..52, 100);
        let (large, _) = events(52..53, 1100);
        let parts = vec![(metadata("a"), good, count), (metadata("b"), large, 1)];
        let refused = handle.append(vec![Append { parts, sender_chunk: None }]).await.remove(0);
        assert!(matches!(refused, Err(AppendError::RecordTooLarge { limit_bytes: 1000, .. })), "{refused:?}");
        handle.close(true).await;
        let mut all = Vec::new();
        while let Some(chunk) = handle.take().await {
            assert!(chunk.size_bytes <= 1000);
            all.extend(numbers(&chunk));
            handle.commit(chunk.id);
        }
        assert_eq!(all, (0..50).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn chunk_limit_records_holds() {
    let mut config = lazy(BufferConfig::memory("out"));
    config.chunk_limit_records = Some(10);
    let (handle, _) = open(config).unwrap();
    store(&handle, "a", 0..25).await.unwrap();
    handle.close(true).await;
    let mut counts = Vec::new();
    while let Some(chunk) = handle.take().await {
        counts.push(chunk.count);
        handle.commit(chunk.id);
    }
    assert_eq!(counts, [10, 10, 5]);
}

#[tokio::test]
async fn total_limit_is_passed_by_one_arrival_at_most() {
    let directory = tempfile::tempdir().unwrap();
    for mut config in both(directory.path()) {
        config.total_limit_bytes = 1000;
        let (handle, _) = open(config).unwrap();
        let mut stored = 0;
        while handle.append(vec![append_of("a", 0..1, 300)]).await.remove(0).is_ok() {
            stored += 1;
        }
        let stats = handle.stats();
        assert!((1000..1300).contains(&stats.stage_bytes), "{stats:?}");
        assert_eq!(stored, 4);
        handle.enqueue_all();
        let chunk = handle.take().await.unwrap();
        assert!(matches!(store(&handle, "a", 0..1).await, Err(AppendError::Overflow)), "taken chunks count");
        handle.commit(chunk.id);
        store(&handle, "a", 0..1).await.unwrap();
    }
}

#[tokio::test]
async fn block_waits_for_space_and_no_longer_than_its_limit() {
    let mut config = lazy(BufferConfig::memory("out"));
    config.total_limit_bytes = 50;
    config.overflow_action = OverflowAction::Block;
    let (handle, _) = open(config.clone()).unwrap();
    store(&handle, "a", 0..2).await.unwrap();
    handle.enqueue_all();
    let waiting = tokio::spawn({
        let handle = handle.clone();
        async move { store(&handle, "a", 2..3).await }
    });
    let chunk = handle.take().await.unwrap();
    assert!(!waiting.is_finished());
    handle.commit(chunk.id);
    waiting.await.unwrap().unwrap();
    drop(handle);
    config.block_limit = Duration::from_millis(50);
    let (handle, _) = open(config).unwrap();
    store(&handle, "a", 0..2).await.unwrap();
    assert!(matches!(store(&handle, "a", 2..3).await, Err(AppendError::Overflow)));
}

#[tokio::test]
async fn drop_oldest_chunk_makes_room_and_counts() {
    let directory = tempfile::tempdir().unwrap();
    for mut config in both(directory.path()) {
        config.total_limit_bytes = 500;
        config.overflow_action = OverflowAction::DropOldestChunk;
        let (handle, _) = open(config).unwrap();
        for at in 0..10 {
            store(&handle, "a", at * 10..at * 10 + 5).await.unwrap();
            handle.enqueue_all();
            until("it is queued", || handle.stats().stage_length == 0).await;
        }
        let dropped = handle.stats().dropped_chunks;
        assert!(dropped >= 5, "{dropped}");
        assert_eq!(numbers(&handle.take().await.unwrap())[0], dropped * 10, "the oldest are gone");
    }
}

#[tokio::test]
async fn chunks_set_aside_are_plain_events_in_the_backup_directory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("buf");
    let (handle, _) = open(lazy(BufferConfig::file("out", &path))).unwrap();
    store(&handle, "a", 0..3).await.unwrap();
    handle.enqueue_all();
    let chunk = handle.take().await.unwrap();
    handle.set_aside(chunk.id, "refused".into());
    handle.close(false).await;
    assert!(chunk_files(&path).is_empty());
    let backup = std::fs::read(path.join(format!("buffer.backup/{}.log", chunk.id))).unwrap();
    assert_eq!(backup, chunk.payload.concat());
    let about = std::fs::read_to_string(path.join(format!("buffer.backup/{}.txt", chunk.id))).unwrap();
    assert!(about.contains("reason: refused\ntag: a\n"), "{about}");
    assert!(about.contains("\nentries: [time, record]\n"), "{about}");
}

#[tokio::test]
async fn a_failed_backup_keeps_the_chunk_queued() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = lazy(BufferConfig::memory("out"));
    std::fs::write(directory.path().join("file"), "").unwrap();
    config.backup.directory = Some(directory.path().join("file/backup"));
    let (handle, _) = open(config).unwrap();
    store(&handle, "a", 0..3).await.unwrap();
    handle.enqueue_all();
    let chunk = handle.take().await.unwrap();
    handle.set_aside(chunk.id, "refused".into());
    assert_eq!(handle.take().await.unwrap().id, chunk.id);
}

#[tokio::test]
async fn the_backup_directory_stays_below_its_cap() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = lazy(BufferConfig::memory("out"));
    config.backup.directory = Some(directory.path().to_path_buf());
    config.backup.limit_bytes = 2000;
    let (handle, _) = open(config).unwrap();
    for at in 0..10 {
        store(&handle, "a", at * 10..at * 10 + 10).await.unwrap();
        handle.enqueue_all();
        let chunk = handle.take().await.unwrap();
        handle.set_aside(chunk.id, "refused".into());
        until("it is set aside", || handle.stats().queue_length == 0).await;
        let total: u64 =
            std::fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
        // The text beside the last backup may stand above the cap.
        assert!(total <= 2000 + 200, "{total}");
    }
}

#[tokio::test]
async fn a_dropped_take_puts_its_chunk_back_and_takers_share() {
    let (handle, _) = open(lazy(BufferConfig::memory("out"))).unwrap();
    let abandoned = tokio::spawn({
        let handle = handle.clone();
        async move { handle.take().await }
    });
    tokio::task::yield_now().await;
    abandoned.abort();
    let _ = abandoned.await;
    let takers: Vec<_> = (0..4)
        .map(|_| {
            let handle = handle.clone();
            tokio::spawn(async move {
                let mut got = 0;
                while let Some(chunk) = handle.take().await {
                    got += chunk.count;
                    handle.commit(chunk.id);
                }
                got
            })
        })
        .collect();
    for at in 0..100 {
        store(&handle, &format!("t{at}"), 0..3).await.unwrap();
        handle.enqueue_all();
    }
    handle.close(true).await;
    let mut total = 0;
    for taker in takers {
        total += taker.await.unwrap();
    }
    assert_eq!(total, 300);
}

#[tokio::test]
async fn interval_and_immediate_modes_queue_by_themselves() {
    let mut config = BufferConfig::memory("out");
    config.flush.interval = Duration::from_millis(20);
    let (handle, _) = open(config.clone()).unwrap();
    store(&handle, "a", 0..3).await.unwrap();
    assert_eq!(numbers(&handle.take().await.unwrap()), [0, 1, 2]);
    config.flush.mode = FlushMode::Immediate;
    let (handle, _) = open(config).unwrap();
    store(&handle, "a", 0..3).await.unwrap();
    store(&handle, "a", 3..4).await.unwrap();
    assert_eq!(numbers(&handle.take().await.unwrap()), [0, 1, 2]);
    assert_eq!(numbers(&handle.take().await.unwrap()), [3]);
}

#[tokio::test]
async fn waiting_chunks_get_their_queued_name_and_fast_ones_never_need_it() {
    let directory = tempfile::tempdir().unwrap();
    let (handle, _) = open(lazy(BufferConfig::file("out", directory.path()))).unwrap();
    store(&handle, "a", 0..3).await.unwrap();
    handle.enqueue_all();
    let chunk = handle.take().await.unwrap();
    assert!(chunk_files(directory.path())[0].starts_with("buffer.b"));
    handle.rollback(chunk.id);
    until("the chunk is renamed", || chunk_files(directory.path())[0].starts_with("buffer.q")).await;
    let chunk = handle.take().await.unwrap();
    handle.commit(chunk.id);
    until("the chunk is deleted", || chunk_files(directory.path()).is_empty()).await;
}

#[tokio::test]
async fn open_files_do_not_grow_with_chunks() {
    let directory = tempfile::tempdir().unwrap();
    let open_files = || {
        std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter(|entry| {
                let target = std::fs::read_link(entry.as_ref().unwrap().path()).unwrap_or_default();
                target.starts_with(directory.path())
            })
            .count()
    };
    let mut config = lazy(BufferConfig::file("out", directory.path()));
    if let BufferKind::File(file) = &mut config.kind {
        file.fsync = Fsync::Off;
    }
    let (handle, _) = open(config).unwrap();
    for round in 0..2 {
        let appends = (0..300).map(|at| append_of(&format!("t{at}"), round..round + 1, 50)).collect();
        assert!(handle.append(appends).await.iter().all(Result::is_ok));
    }
    assert!(open_files() <= 70, "{}", open_files());
    handle.enqueue_all();
    for _ in 0..300 {
        assert_eq!(numbers(&handle.take().await.unwrap()), [0, 1]);
    }
}

/// Resident bytes of this process.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[tokio::test(flavor = "multi_thread")]
async fn appended_bytes_do_not_stay_in_memory() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = lazy(BufferConfig::file("out", directory.path()));
    if let BufferKind::File(file) = &mut config.kind {
        file.fsync = Fsync::Off;
    }
    let (handle, _) = open(config).unwrap();
    let (bytes, count) = events(0..1000, 252);
    let before = resident_bytes();
    let started = std::time::Instant::now();
    let cpu = || {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let fields: Vec<u64> =
            stat.rsplit(") ").next().unwrap().split(' ').map(|field| field.parse().unwrap_or(0)).collect();
        fields[11] + fields[12]
    };
    let cpu_before = cpu();
    for _ in 0..1000 {
        // As from a socket: each part is memory of its own.
        let part = Bytes::copy_from_slice(&bytes);
        let append = Append { parts: vec![(metadata("a"), part, count)], sender_chunk: None };
        handle.append(vec![append]).await.remove(0).unwrap();
    }
    let grown = resident_bytes().saturating_sub(before);
    println!(
        "{} events of {} bytes in {:?}, {} ms of CPU in the process; grown by {grown} bytes",
        1000 * count,
        bytes.len() / count,
        started.elapsed(),
        (cpu() - cpu_before) * 10
    );
    assert_eq!(handle.stats().stage_bytes, 1000 * bytes.len() as u64 % FILE_CHUNK_LIMIT_BYTES);
    // 12 MiB may be kept, 16 MiB be on their way; the rest is for the tests that run beside this one.
    assert!(grown < 128 << 20, "{} MiB appended, {} MiB more resident", bytes.len() / 1000, grown >> 20);
}

#[tokio::test]
async fn many_chunks_in_a_round_are_safe_in_the_journal_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (path, copy) = (directory.path().join("buf"), directory.path().join("copy"));
    let (handle, _) = open(lazy(BufferConfig::file("out", &path))).unwrap();
    for round in 0..2 {
        let appends = (0..20).map(|at| append_of(&format!("t{at:02}"), round..round + 1, 50)).collect();
        assert!(handle.append(appends).await.iter().all(Result::is_ok));
    }
    // What a power failure may leave: the journal, and of the chunk files nothing.
    std::fs::create_dir(&copy).unwrap();
    std::fs::copy(
        path.join("buffer.0000000000000000.tjournal"),
        copy.join("buffer.0000000000000000.tjournal"),
    )
    .unwrap();
    let (after, report) = open(lazy(BufferConfig::file("out", &copy))).unwrap();
    assert_eq!((report.staged, report.events), (20, 40));
    assert!(!copy.join("buffer.0000000000000000.tjournal").exists());
    after.enqueue_all();
    for _ in 0..20 {
        assert_eq!(numbers(&after.take().await.unwrap()), [0, 1]);
    }
    drop(handle);
    assert!(!path.join("buffer.0000000000000000.tjournal").exists(), "a clean end needs no journal");
    let (_, report) = open(lazy(BufferConfig::file("out", &path))).unwrap();
    assert_eq!((report.staged, report.events, report.replayed_frames), (20, 40, 0));
}
