//! The exhaustive crash test: a workload runs on the simulated disk and dies before every call and inside every write;
//! from each state that may be left (process killed, or power lost with unsynced data dropped, torn or kept in any
//! combination) the buffer is opened, used again, perhaps killed again, and drained.
//!
//! Invariants: every confirmed event is delivered; nothing is delivered that was never sent; no event twice from one chunk
//! file; what was handed out under a chunk id never grows.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;

use super::engine::{Engine, Enqueue, Now, Outcome};
use super::mutation::{self, Mutation};
use super::open::open_engine;
use super::queue::Taken;
use super::sim::{CrashPoint, Disk, SimStorage};
use super::*;
use crate::event::{Entries, EventTime, Tag, Value, msgpack};

const DIRECTORY: &str = "/var/buffer";

/// One step of a workload.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// One arrival for each tag, in one round.
    Append(&'static [&'static str]),
    /// One arrival with a part for each tag.
    AppendAcross(&'static [&'static str]),
    EnqueueAll,
    /// Takes the oldest chunk and keeps it.
    Take,
    /// The oldest taken chunk was delivered.
    Commit,
    /// The oldest taken chunk was not.
    Rollback,
    /// Waiting chunks get their queued names.
    Rename,
    /// The journal in use is retired.
    Retire,
    /// Takes and delivers everything.
    Drain,
}

/// What senders and receivers know; it outlives crashes.
#[derive(Clone, Default)]
pub(super) struct Oracle {
    pub(super) sent: u64,
    pub(super) confirmed: BTreeSet<u64>,
    pub(super) delivered: BTreeSet<u64>,
    /// First content handed out under an id.
    pub(super) handed: HashMap<ChunkId, Vec<u64>>,
}

pub(super) fn event(number: u64) -> Vec<u8> {
    let mut record = Vec::new();
    msgpack::write_map_header(&mut record, 1);
    msgpack::write_str(&mut record, b"n");
    msgpack::write_uint(&mut record, number);
    let mut entry = Vec::new();
    msgpack::write_entry(&mut entry, EventTime::Int(1), &record);
    entry
}

pub(super) struct World {
    pub(super) storage: SimStorage,
    pub(super) engine: Engine,
    taken: Vec<(ChunkId, Vec<u64>)>,
    steps: u64,
}

thread_local! {
    /// Rounds with more files than this are journaled; above what the workload reaches by default.
    static JOURNAL_ABOVE_FILES: std::cell::Cell<usize> = const { std::cell::Cell::new(usize::MAX) };
}

/// Opens an engine; journals as the test says.
fn open_sim(config: BufferConfig, storage: &SimStorage) -> Result<Engine, OpenError> {
    let (mut engine, _) = open_engine(config, std::sync::Arc::new(storage.clone()), now(0))?;
    if let Some(files) = &mut engine.files {
        files.journal_above_files = JOURNAL_ABOVE_FILES.get();
    }
    Ok(engine)
}

pub(super) fn config() -> BufferConfig {
    let mut config = BufferConfig::file("out", DIRECTORY);
    config.flush.mode = FlushMode::Lazy;
    config.queued_chunks_limit = None;
    config
}

fn now(steps: u64) -> Now {
    let since = Duration::from_secs(1_700_000_000) + Duration::from_millis(steps);
    Now { wall: UNIX_EPOCH + since, monotonic: Duration::from_millis(steps) }
}

impl World {
    /// `None`: crashed while opening.
    pub(super) fn open(
        disk: Disk,
        config: BufferConfig,
        crash: Option<CrashPoint>,
    ) -> Result<Option<Self>, String> {
        let storage = SimStorage::new(disk);
        storage.disk().crash = crash;
        match open_sim(config, &storage) {
            Ok(engine) => Ok(Some(Self { storage, engine, taken: Vec::new(), steps: 0 })),
            Err(_) if storage.disk().crashed => Ok(None),
            Err(error) => Err(format!("does not open: {error}")),
        }
    }

    fn append(&mut self, oracle: &mut Oracle, appends: Vec<Vec<&str>>) {
        let mut numbers = Vec::new();
        let appends = appends
            .into_iter()
            .map(|tags| {
                let mut parts = Vec::new();
                let mut of_this = Vec::new();
                for tag in tags {
                    let (first, second) = (oracle.sent, oracle.sent + 1);
                    oracle.sent += 2;
                    of_this.extend([first, second]);
                    let bytes = [event(first), event(second)].concat();
                    let metadata = Metadata { tag: Some(Tag::from(tag)), ..Metadata::default() };
                    parts.push((metadata, Bytes::from(bytes), 2));
                }
                numbers.push(of_this);
                Append { parts, sender_chunk: Some(Bytes::from_static(b"id")) }
            })
            .collect();
        let outcomes = self.engine.round(appends, Enqueue::Touched, now(self.steps));
        for (numbers, outcome) in numbers.into_iter().zip(outcomes) {
            if matches!(outcome, Outcome::Stored) {
                oracle.confirmed.extend(numbers);
            }
        }
    }

    fn take(&mut self, oracle: &mut Oracle) -> Result<bool, String> {
        let Taken::Chunk(id) = self.engine.queue.take() else { return Ok(false) };
        let (kept, renamed) = {
            let mut state = self.engine.queue.lock();
            let chunk = state.taken.get_mut(&id).ok_or("taken chunk is not listed")?;
            (chunk.kept.as_mut().map(super::chunk::Kept::parts), chunk.file.is_some_and(|file| file.renamed))
        };
        let payload = match (kept, self.engine.reader()) {
            (Some(payload), _) => payload,
            (None, Some(reader)) => match reader.read(id, renamed, 0, None) {
                Ok(content) => content.payload,
                Err(_) if self.storage.disk().crashed => return Ok(false),
                Err(error) => return Err(format!("chunk {id} cannot be read: {error}")),
            },
            (None, None) => return Err("no reader".into()),
        };
        let numbers = self.check_content(oracle, id, &payload.concat())?;
        self.taken.push((id, numbers));
        Ok(true)
    }

    fn check_content(&self, oracle: &mut Oracle, id: ChunkId, bytes: &[u8]) -> Result<Vec<u64>, String> {
        let mut numbers = Vec::new();
        let mut entries = Entries::new(bytes);
        while let Some((_, record, pair)) = entries.next_with_pair() {
            let value = Value::decode(record).map_err(|_| "record cannot be decoded")?.0;
            let number = match value.get(b"n") {
                Some(Value::Int(number)) if *number >= 0 => *number as u64,
                other => return Err(format!("a record that nobody sent: {other:?}")),
            };
            if number >= oracle.sent || pair != event(number) {
                return Err(format!("event {number} was never sent like this"));
            }
            if numbers.contains(&number) {
                return Err(format!("event {number} comes twice from chunk {id}"));
            }
            numbers.push(number);
        }
        if !entries.rest().is_empty() {
            return Err(format!("chunk {id} holds bytes that are no event"));
        }
        let first = oracle.handed.entry(id).or_insert_with(|| numbers.clone());
        if numbers.iter().any(|number| !first.contains(number)) {
            return Err(format!("chunk {id} was handed out as {first:?} and has grown to {numbers:?}"));
        }
        Ok(numbers)
    }

    fn commit(&mut self, oracle: &mut Oracle) {
        if !self.taken.is_empty() {
            let (id, numbers) = self.taken.remove(0);
            oracle.delivered.extend(numbers);
            self.engine.commit(id);
        }
    }

    /// `false`: crashed.
    pub(super) fn run(&mut self, oracle: &mut Oracle, script: &[Step]) -> Result<bool, String> {
        for step in script {
            self.steps += 1;
            match step {
                Step::Append(tags) => self.append(oracle, tags.iter().map(|tag| vec![*tag]).collect()),
                Step::AppendAcross(tags) => self.append(oracle, vec![tags.to_vec()]),
                Step::EnqueueAll => {
                    self.engine.round(Vec::new(), Enqueue::All, now(self.steps));
                }
                Step::Take => {
                    self.take(oracle)?;
                }
                Step::Commit => self.commit(oracle),
                Step::Rollback => {
                    if !self.taken.is_empty() {
                        let (id, _) = self.taken.remove(0);
                        self.engine.queue.put_back(id);
                    }
                }
                Step::Rename => self.engine.rename_waiting(),
                Step::Retire => self.engine.retire_journals(true),
                Step::Drain => {
                    while self.take(oracle)? {}
                    while !self.taken.is_empty() {
                        self.commit(oracle);
                    }
                }
            }
            if self.storage.disk().crashed {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// What happens after a crash: the same tags again, then everything goes out.
const AFTERWARDS: &[Step] = &[Step::Append(&["a", "b"]), Step::EnqueueAll, Step::Drain];

/// The workload: create, append, seal, rename, deliver straight from the stage, roll back, purge.
pub(super) const WORKLOAD: &[Step] = &[
    Step::Append(&["a"]),
    Step::Append(&["a", "b"]),
    Step::EnqueueAll,
    Step::Take,
    Step::Append(&["a"]),
    Step::Commit,
    Step::Rename,
    Step::AppendAcross(&["a", "c", "d"]),
    Step::Append(&["a", "a", "b"]),
    Step::EnqueueAll,
    Step::Take,
    Step::Take,
    Step::Append(&["a", "c"]),
    Step::Rollback,
    Step::Rename,
    Step::Commit,
    Step::Take,
    Step::AppendAcross(&["b", "c"]),
    Step::Commit,
    Step::EnqueueAll,
    Step::Drain,
    Step::Append(&["d"]),
];

/// Rounds with many files and few, in turn, so that frames of a chunk stand partly in the journal and partly not.
const JOURNALED: &[Step] = &[
    Step::Append(&["a", "b"]),
    Step::Append(&["a"]),
    Step::Append(&["a", "b", "c"]),
    Step::EnqueueAll,
    Step::Take,
    Step::Commit,
    Step::Append(&["c", "b"]),
    Step::Retire,
    Step::Append(&["c"]),
    Step::AppendAcross(&["a", "b"]),
    Step::EnqueueAll,
    Step::Rename,
    Step::Take,
    Step::Append(&["a", "c"]),
    Step::Commit,
    Step::Take,
    Step::Rollback,
];

#[derive(Debug, Default)]
struct Explored {
    crash_points: u64,
    states: u64,
    nested_states: u64,
}

/// Opens what is left, goes on, drains, judges.
fn judge(disk: &Disk, oracle: &Oracle, config: &BufferConfig) -> Result<(), String> {
    let mut oracle = oracle.clone();
    let mut world =
        World::open(disk.clone(), config.clone(), None)?.ok_or("crashed without a crash point")?;
    world.run(&mut oracle, AFTERWARDS)?;
    match oracle.confirmed.difference(&oracle.delivered).next() {
        Some(lost) => Err(format!("event {lost} was confirmed and is lost")),
        None => Ok(()),
    }
}

/// Kills the start-up and what follows it at a few drawn points, then judges.
fn judge_nested(
    disk: &Disk,
    oracle: &Oracle,
    (config, power): (&BufferConfig, bool),
    random: &mut fastrand::Rng,
    explored: &mut Explored,
) -> Result<(), String> {
    let mut whole =
        World::open(disk.clone(), config.clone(), None)?.ok_or("crashed without a crash point")?;
    whole.run(&mut oracle.clone(), AFTERWARDS)?;
    let calls = whole.storage.disk().calls;
    let at = random.u64(1..=calls);
    let crash =
        if random.bool() { CrashPoint::Before(at) } else { CrashPoint::Inside(at, random.u32(0..1000)) };
    let mut oracle = oracle.clone();
    let storage = {
        let storage = SimStorage::new(disk.clone());
        storage.disk().crash = Some(crash);
        if let Ok(engine) = open_sim(config.clone(), &storage) {
            let mut world = World { storage: storage.clone(), engine, taken: Vec::new(), steps: 0 };
            world.run(&mut oracle, AFTERWARDS)?;
        }
        storage
    };
    let left = storage.disk().clone();
    let mut survivors = if power { left.survivors(random) } else { Vec::new() };
    random.shuffle(&mut survivors);
    survivors.truncate(2);
    survivors.push(left);
    for disk in survivors {
        explored.nested_states += 1;
        judge(&disk, &oracle, config)
            .map_err(|error| format!("{error}; second crash {crash:?}; files {:?}", names(&disk)))?;
    }
    Ok(())
}

fn names(disk: &Disk) -> Vec<String> {
    disk.files().iter().map(|(path, content)| format!("{} ({})", path.display(), content.len())).collect()
}

/// Runs the script once for each crash point and judges every state that may be left.
fn explore(config: &BufferConfig, script: &[Step], power: bool, seed: u64) -> Result<Explored, String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut explored = Explored::default();
    // A second crash is tried from every third state here, from every state with CRASH_LONG set.
    let nested_each = if std::env::var_os("CRASH_LONG").is_some() { 1 } else { 3 };
    let empty = || Disk::with_directory("/var");
    let run = |crash| -> Result<(Disk, Oracle, u64), String> {
        // Chunk ids are drawn from the thread's generator: the same ones in each run.
        fastrand::seed(seed);
        let mut oracle = Oracle::default();
        let storage = SimStorage::new(empty());
        storage.disk().crash = crash;
        if let Ok(engine) = open_sim(config.clone(), &storage) {
            let mut world = World { storage: storage.clone(), engine, taken: Vec::new(), steps: 0 };
            world.run(&mut oracle, script)?;
        }
        let disk = storage.disk();
        let calls = disk.calls;
        Ok((disk.clone(), oracle, calls))
    };
    let calls = run(None)?.2;
    let inside = [1, 250, 500, 750, 999];
    for at in 1..=calls + 1 {
        let points = std::iter::once(CrashPoint::Before(at))
            .chain(inside.into_iter().map(|per_mille| CrashPoint::Inside(at, per_mille)));
        for (number, crash) in points.enumerate() {
            let (disk, oracle, _) = run(Some(crash))?;
            if number > 0 && !disk_was_torn(&run, crash)? {
                continue;
            }
            explored.crash_points += 1;
            let mut states = if power { disk.survivors(&mut random) } else { Vec::new() };
            states.push(disk);
            for disk in states {
                explored.states += 1;
                let told = |error| format!("{error}; crash {crash:?}; files {:?}", names(&disk));
                judge(&disk, &oracle, config).map_err(told)?;
                if explored.states.is_multiple_of(nested_each) {
                    judge_nested(&disk, &oracle, (config, power), &mut random, &mut explored)
                        .map_err(told)?;
                }
            }
        }
    }
    Ok(explored)
}

/// Whether the crash point lies inside a write: other calls are whole or absent, which `Before` covers.
fn disk_was_torn(
    run: &dyn Fn(Option<CrashPoint>) -> Result<(Disk, Oracle, u64), String>,
    crash: CrashPoint,
) -> Result<bool, String> {
    let CrashPoint::Inside(at, _) = crash else { return Ok(true) };
    Ok(run(Some(crash))?.2 == at)
}

fn seed() -> u64 {
    let seed = std::env::var("CRASH_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| fastrand::u64(..));
    println!("seed {seed} (CRASH_SEED={seed} repeats this run)");
    seed
}

#[test]
fn every_crash_state_keeps_every_confirmed_event() {
    let explored = explore(&config(), WORKLOAD, true, seed()).unwrap();
    println!("{explored:?}");
    assert!(explored.states > 2_000, "{explored:?}");
}

#[test]
fn every_crash_state_with_journals_keeps_every_confirmed_event() {
    JOURNAL_ABOVE_FILES.set(1);
    let explored = explore(&config(), JOURNALED, true, seed()).unwrap();
    println!("{explored:?}");
    assert!(explored.states > 2_000, "{explored:?}");
}

#[test]
fn a_killed_process_loses_nothing_whatever_fsync_says() {
    for fsync in [Fsync::Off, Fsync::Interval(Duration::from_secs(1))] {
        let mut config = config();
        if let BufferKind::File(file) = &mut config.kind {
            file.fsync = fsync;
        }
        println!("{fsync:?} {:?}", explore(&config, WORKLOAD, false, seed()).unwrap());
    }
}

#[test]
fn without_a_safety_measure_the_crash_test_fails() {
    for (measure, expected) in [
        (Mutation::NoSeal, "has grown"),
        (Mutation::NoCrc, ""),
        (Mutation::NoDirectorySync, "confirmed and is lost"),
    ] {
        mutation::set(Some(measure));
        let result = explore(&config(), WORKLOAD, true, seed());
        mutation::set(None);
        let error = result.err().unwrap_or_else(|| panic!("nothing noticed {measure:?}"));
        println!("{measure:?}: {error}");
        assert!(error.contains(expected), "{measure:?}: {error}");
    }
}

#[test]
fn the_workload_itself_delivers_everything() {
    let mut oracle = Oracle::default();
    let mut world = World::open(Disk::with_directory("/var"), config(), None).unwrap().unwrap();
    assert!(world.run(&mut oracle, WORKLOAD).unwrap());
    assert_eq!(oracle.confirmed.len() as u64, oracle.sent);
    world.run(&mut oracle, AFTERWARDS).unwrap();
    assert_eq!(oracle.delivered, oracle.confirmed);
    assert!(world.storage.disk().files().iter().all(|(path, _)| !path.starts_with(Path::new("/x"))));
}
