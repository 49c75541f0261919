//! Start-up: what becomes of each file in the buffer's directory. Never fails because of one bad file.
//!
//! | found | becomes |
//! | --- | --- |
//! | chunk file, good head, events, no seal, name `b`, no damage | staged, goes on collecting; queued instead if it is full by today's limits or a newer staged chunk has the same metadata |
//! | the same with a seal, or with name `q` | queued: what was handed out under an id never grows. Its name becomes `q` before anybody may take it |
//! | good head, events, and damage (torn tail included) | queued with what is readable; the damaged bytes are copied to `PREFIX.damaged/ID.damage`, named and counted |
//! | good head, no events, no damage, or only zeros | deleted: nothing in it was ever confirmed |
//! | good head, no events, damage | damaged bytes copied aside, file deleted |
//! | no good head (both copies damaged), not only zeros | whole file moved to `PREFIX.damaged/`, named and counted |
//! | newer version of the format | left alone, named |
//! | file that cannot be read (I/O error) | left alone, named |
//! | id in the name is not the id in the file | left alone, named |
//! | `b` and `q` file of one id | the `q` file counts, the `b` file is moved aside |
//! | good head that names the other form of entries | the buffer refuses to open (`open.rs`) |
//! | chunk or meta file of Fluentd | the buffer refuses to open (`open.rs`) |
//! | anything else | left alone, named; with a prefix path only if its name begins with the prefix |
//!
//! Before all that, journals are replayed (`journal.rs`): frames that a chunk file lacks are put back, files synced, journals
//! deleted.
//!
//! A sealed file is taken on the word of its seal: its frames are read and checked when it is taken, not at start-up, so
//! that a start with 64 GiB of chunks takes seconds.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::chunk::{Queued, QueuedFile};
use super::engine::{Now, Staged};
use super::files::FileStore;
use super::format::{self, Head, Preface, SEAL_BYTES, Scan, Totals};
use super::limits::{ChunkLimits, Size};
use super::metadata::StageKey;
use super::places::{Name, Places, State};
use super::reader::Reader;
use super::storage::{Entry, Storage};
use super::{ChunkId, RecoveryReport};

/// A sealed file is opened with one read of this size, which holds preface and head of all but odd chunks.
const FIRST_READ_BYTES: u64 = 64 << 10;

/// What start-up found.
#[derive(Default)]
pub(super) struct Recovered {
    pub(super) staged: Vec<Staged>,
    /// Oldest first.
    pub(super) queued: Vec<Queued>,
    pub(super) report: RecoveryReport,
}

/// What a chunk file is.
enum Verdict {
    /// Of a version that this program does not know.
    Newer(u16),
    /// Id in the file differs from the name's.
    Foreign,
    /// Without events and damage.
    Empty,
    /// No good head: nobody knows tag and keys.
    Headless,
    /// Readable, wholly or in part.
    Chunk(Found),
}

struct Found {
    head: Head,
    totals: Totals,
    end: u64,
    sealed: bool,
    damaged_bytes: u64,
}

/// Reads the directory. `entries` are its files as listed after the replay of journals, in any order.
pub(super) fn recover(
    files: &mut FileStore,
    mut entries: Vec<Entry>,
    limits: &ChunkLimits,
    now: Now,
) -> Recovered {
    let reader = Reader::new(files.storage.clone(), files.places.clone());
    let mut recovered = Recovered::default();
    // A set order: the same directory always gives the same result.
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    let mut chunks: HashMap<ChunkId, State> = HashMap::new();
    let mut found = Vec::new();
    for entry in &entries {
        match files.places.read_name(&entry.name) {
            Name::Chunk(state, id) if !entry.is_dir => {
                // `b` sorts before `q`: the later one wins.
                if chunks.insert(id, state).is_some() {
                    found.retain(|(other, _, _)| *other != id);
                    let name = files.places.chunk(State::Staged, id);
                    let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    move_aside(&reader, &name, &mut recovered.report);
                }
                found.push((id, state, entry));
            }
            Name::Ours | Name::OtherPrefix | Name::Journal(_) => {}
            Name::Chunk(..) | Name::Unknown | Name::Fluentd => {
                recovered.report.unknown_files.push(entry.name.clone());
            }
        }
    }
    for (id, state, entry) in found {
        match inspect(&reader, id, state, entry.len) {
            Ok(verdict) => recovered.sort_in(&reader, id, state, entry, verdict, limits, now),
            Err(error) => {
                tracing::error!(path = %entry.name, error = %error, "cannot read a chunk file, it is left alone");
                recovered.report.damaged_files.push(entry.name.clone());
            }
        }
    }
    recovered.settle();
    recovered.rename_queued(files);
    recovered
}

/// The head of a chunk file of this version; `None` if there is no good one.
pub(super) fn read_head(
    storage: &dyn Storage,
    places: &Places,
    state: State,
    id: ChunkId,
) -> io::Result<Option<Head>> {
    let path = places.chunk(state, id);
    let first = storage.read(&path, 0, FIRST_READ_BYTES)?;
    if let Preface::Newer(_) = format::read_preface(&first) {
        return Ok(None);
    }
    let head = format::scan(id, &first).head;
    if head.is_some() || (first.len() as u64) < FIRST_READ_BYTES {
        return Ok(head);
    }
    // A head above 64 KiB, or damage: recovery reads such a file as a whole, too.
    Ok(format::scan(id, &storage.read(&path, 0, u64::MAX)?).head)
}

fn inspect(reader: &Reader, id: ChunkId, state: State, len: u64) -> io::Result<Verdict> {
    let path = reader.places.chunk(state, id);
    let first = reader.storage.read(&path, 0, FIRST_READ_BYTES)?;
    match format::read_preface(&first) {
        Preface::Newer(version) => return Ok(Verdict::Newer(version)),
        Preface::Good(other) if other != id => return Ok(Verdict::Foreign),
        Preface::Good(_) | Preface::Damaged => {}
    }
    if len > FIRST_READ_BYTES {
        let tail = reader.storage.read(&path, len - SEAL_BYTES as u64, SEAL_BYTES as u64)?;
        let head = format::scan(id, &first).head;
        if let (Some(totals), Some(head)) = (format::decode_seal_at_end(&tail, id, len), head) {
            return Ok(Verdict::Chunk(Found { head, totals, end: len, sealed: true, damaged_bytes: 0 }));
        }
    }
    let file = if len <= FIRST_READ_BYTES { first } else { reader.storage.read(&path, 0, u64::MAX)? };
    let scan = format::scan(id, &file);
    let damaged_bytes = scan.damaged.iter().map(|range| range.len() as u64).sum();
    let only_zeros = scan.damaged.iter().flat_map(|range| &file[range.clone()]).all(|byte| *byte == 0);
    let Scan { head, frames, seal, end, damaged, .. } = &scan;
    if frames.is_empty() && only_zeros {
        return Ok(Verdict::Empty);
    }
    let Some(head) = head.clone() else { return Ok(Verdict::Headless) };
    if damaged_bytes > 0 {
        reader.set_damage_aside(id, &file, damaged)?;
    }
    let sealed = seal.is_some();
    Ok(Verdict::Chunk(Found { head, totals: scan.totals(), end: *end as u64, sealed, damaged_bytes }))
}

fn move_aside(reader: &Reader, name: &str, report: &mut RecoveryReport) {
    match reader.set_file_aside(name) {
        Ok(to) => tracing::error!("found broken chunk file, it is moved to {}", to.display()),
        Err(error) => {
            tracing::error!(path = name, error = %error, "cannot move a broken chunk file aside, it is left alone");
        }
    }
    report.damaged_files.push(name.to_owned());
}

impl Recovered {
    #[expect(clippy::too_many_arguments, reason = "one call site; a struct would only repeat the names")]
    fn sort_in(
        &mut self,
        reader: &Reader,
        id: ChunkId,
        state: State,
        entry: &Entry,
        verdict: Verdict,
        limits: &ChunkLimits,
        now: Now,
    ) {
        let report = &mut self.report;
        match verdict {
            Verdict::Newer(version) => {
                tracing::error!(
                    path = %reader.places.directory.join(&entry.name).display(),
                    version,
                    known_version = format::VERSION,
                    "chunk file of a newer version is left alone, start the newer tributary to deliver it"
                );
                report.newer_files.push(entry.name.clone());
            }
            Verdict::Foreign => report.unknown_files.push(entry.name.clone()),
            Verdict::Headless => {
                report.damaged_bytes += entry.len;
                move_aside(reader, &entry.name, report);
            }
            Verdict::Empty => remove_empty(reader, id, state),
            Verdict::Chunk(found) => {
                if found.damaged_bytes > 0 {
                    tracing::error!(
                        path = %reader.places.directory.join(&entry.name).display(),
                        damaged_bytes = found.damaged_bytes,
                        readable_events = found.totals.events,
                        side_files = %reader.places.damaged().display(),
                        "found broken chunk file, its readable part is delivered, the rest is set aside"
                    );
                    report.damaged_bytes += found.damaged_bytes;
                    report.damaged_files.push(entry.name.clone());
                }
                if found.totals.events == 0 {
                    return remove_empty(reader, id, state);
                }
                self.add(id, state, found, limits, now);
            }
        }
    }

    fn add(&mut self, id: ChunkId, state: State, found: Found, limits: &ChunkLimits, now: Now) {
        let size = Size { bytes: found.totals.bytes, events: found.totals.events };
        let collects =
            state == State::Staged && !found.sealed && found.damaged_bytes == 0 && !limits.full(size);
        let Head { metadata, created_at, .. } = found.head;
        if collects {
            self.staged.push(Staged {
                id,
                key: StageKey::new(&metadata),
                metadata: Arc::new(metadata),
                created_at,
                created_monotonic: now.monotonic,
                age: now.wall.duration_since(created_at).unwrap_or(Duration::ZERO),
                stored: found.totals,
                end: found.end,
                // Its first bytes are not in memory, so the later ones need not be.
                kept: None,
                pending: Vec::new(),
                pending_size: Size::default(),
                written: None,
            });
        } else {
            self.queued.push(Queued {
                id,
                metadata: Arc::new(metadata),
                created_at,
                totals: found.totals,
                kept: None,
                file: Some(QueuedFile { renamed: state == State::Queued }),
                order: 0,
            });
        }
    }

    /// Chunks that are queued get their queued name before anybody may take them (`open.rs` syncs the directory): a seal
    /// that was read may never have reached the disk, and damage may be gone after the next crash; either way the chunk
    /// would collect again under an id that has been handed out.
    fn rename_queued(&mut self, files: &mut FileStore) {
        for queued in &mut self.queued {
            if queued.file.is_some_and(|file| file.renamed) {
                continue;
            }
            match files.rename_to_queued(queued.id) {
                Ok(()) => queued.file = Some(QueuedFile { renamed: true }),
                Err(error) => {
                    tracing::warn!(chunk_id = %queued.id, error = %error, "cannot rename a chunk to its queued name");
                }
            }
        }
    }

    /// One staged chunk per metadata, the newest; queue in order of creation.
    fn settle(&mut self) {
        self.staged.sort_by_key(|staged| (staged.created_at, staged.id));
        let mut newest: HashMap<StageKey, ChunkId> = HashMap::new();
        for staged in &self.staged {
            newest.insert(staged.key.clone(), staged.id);
        }
        for staged in std::mem::take(&mut self.staged) {
            if newest.get(&staged.key) == Some(&staged.id) {
                self.staged.push(staged);
            } else {
                self.queued.push(super::engine::queued(staged, true));
            }
        }
        self.queued.sort_by_key(|queued| (queued.created_at, queued.id));
        self.report.staged = self.staged.len();
        self.report.queued = self.queued.len();
        let totals = self
            .staged
            .iter()
            .map(|staged| staged.stored)
            .chain(self.queued.iter().map(|queued| queued.totals));
        for totals in totals {
            self.report.events += totals.events;
            self.report.bytes += totals.bytes;
        }
    }
}

fn remove_empty(reader: &Reader, id: ChunkId, state: State) {
    let path = reader.places.chunk(state, id);
    if let Err(error) = reader.storage.unlink(&path) {
        tracing::warn!(path = %path.display(), error = %error, "cannot delete an empty chunk file");
    }
}
