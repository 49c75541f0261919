//! Bytes into files so that no torn file is ever taken for a whole one. Blocking; called on the blocking pool.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::AccessFlags;

use crate::buffer::ChunkId;
use crate::formatter::FormatError;
use crate::output::WriteError;

/// Permission bits of new files and directories (before the umask).
#[derive(Clone, Copy, Debug)]
pub struct Permissions {
    /// Of files.
    pub file: u32,
    /// Of directories.
    pub directory: u32,
}

impl Default for Permissions {
    /// Fluentd's defaults.
    fn default() -> Self {
        Self { file: 0o644, directory: 0o755 }
    }
}

/// Appends to different files go on side by side; those to one file wait for each other. A fixed number of locks, shared
/// by hash, so that the number of paths costs no memory.
const APPEND_LOCKS: usize = 16;

/// How long an append waits for another process (or another output of ours) that appends to the same file.
const FILE_LOCK_WAIT: Duration = Duration::from_secs(5);
/// How often it looks meanwhile.
const FILE_LOCK_POLL: Duration = Duration::from_millis(10);

/// Why a chunk was not written. Nothing of it is left in a visible file.
#[derive(Debug, thiserror::Error)]
pub enum WriteFault {
    /// An event has no text.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The file system refused.
    #[error("{0}")]
    Io(io::Error),
    /// The same, with the path.
    #[error("cannot write {path}: {source}")]
    At {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// Somebody else holds the file.
    #[error("{0} is locked by another process")]
    Locked(String),
}

impl WriteFault {
    fn at(self, path: &Path) -> Self {
        match self {
            Self::Io(source) => Self::At { path: path.display().to_string(), source },
            other => other,
        }
    }

    /// What it means for the chunk.
    pub fn into_write_error(self) -> WriteError {
        let text = self.to_string();
        let (Self::Io(error) | Self::At { source: error, .. }) = self else {
            return match self {
                Self::Format(_) => WriteError::Unrecoverable(text),
                _ => WriteError::Unwell(text),
            };
        };
        match error.kind() {
            // A name made of this chunk's own tag or field: it stays as it is however often it is tried.
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename => WriteError::Unrecoverable(text),
            // Another file is in the way of this name, not of others.
            io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory => WriteError::Refused(text),
            _ => WriteError::Unwell(text),
        }
    }
}

/// A file that can take an append back. A trait so that a test can make every call fail.
pub(super) trait AppendFile: Write {
    /// Its length.
    fn length(&self) -> io::Result<u64>;
    /// Its last byte, if it has one.
    fn last_byte(&self) -> io::Result<Option<u8>>;
    /// Cuts it.
    fn cut(&self, length: u64) -> io::Result<()>;
    /// Brings it to stable storage.
    fn sync(&self) -> io::Result<()>;
}

impl AppendFile for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn last_byte(&self) -> io::Result<Option<u8>> {
        let Some(at) = self.length()?.checked_sub(1) else { return Ok(None) };
        let mut byte = [0];
        self.read_exact_at(&mut byte, at)?;
        Ok(Some(byte[0]))
    }

    fn cut(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// Writes the text of a chunk to the given sink; what it answers comes back from [`FileWriter::write`].
pub type Body<'a> = &'a mut dyn FnMut(&mut dyn Write) -> Result<u64, WriteFault>;

/// Writes chunks to files.
pub struct FileWriter {
    append: bool,
    sync: bool,
    permissions: Permissions,
    append_locks: [Mutex<()>; APPEND_LOCKS],
    hasher: RandomState,
}

impl FileWriter {
    /// `sync`: a chunk counts as written only when it is on stable storage.
    pub fn new(append: bool, sync: bool, permissions: Permissions) -> Self {
        Self { append, sync, permissions, append_locks: Default::default(), hasher: RandomState::new() }
    }

    /// Writes one chunk to the file named by the two halves of its path.
    pub fn write(
        &self,
        before: &[u8],
        after: &[u8],
        chunk: ChunkId,
        lines: bool,
        body: Body<'_>,
    ) -> Result<u64, WriteFault> {
        let path = |index: Option<u64>| {
            let index = index.map(|index| format!("_{index}")).unwrap_or_default();
            PathBuf::from(OsStr::from_bytes(&[before, index.as_bytes(), after].concat()))
        };
        let first = path((!self.append).then_some(0));
        let result = match first.parent() {
            Some(directory) => self.make_directories(directory),
            None => Ok(()),
        };
        let result = result.map_err(WriteFault::Io).and_then(|()| {
            if self.append {
                self.append_to(&first, lines, body)
            } else {
                self.write_new(&first, chunk, &|index| path(Some(index)), body)
            }
        });
        result.map_err(|fault| fault.at(&first))
    }

    /// Makes what is missing of a directory and, when syncing, makes sure that it stays.
    fn make_directories(&self, directory: &Path) -> io::Result<()> {
        let missing: Vec<&Path> =
            directory.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        DirBuilder::new().recursive(true).mode(self.permissions.directory).create(directory)?;
        for made in missing {
            self.sync_directory_of(made)?;
        }
        Ok(())
    }

    /// A new name is safe only once its directory is synced.
    fn sync_directory_of(&self, path: &Path) -> io::Result<()> {
        if !self.sync {
            return Ok(());
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(parent)?.sync_all()
    }

    fn append_to(&self, path: &Path, lines: bool, body: Body<'_>) -> Result<u64, WriteFault> {
        let lock = self.append_locks.get(self.lock_index(path)).map(Mutex::lock);
        let _guard = lock.map(|guard| guard.unwrap_or_else(PoisonError::into_inner));
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(self.permissions.file);
        let mut file = lock_file(options.open(path).map_err(WriteFault::Io)?, path)?;
        let is_new = file.length().map_err(WriteFault::Io)? == 0;
        let answer = append_whole(&mut *file, lines, self.sync, body)?;
        if is_new {
            self.sync_directory_of(path).map_err(WriteFault::Io)?;
        }
        Ok(answer)
    }

    fn lock_index(&self, path: &Path) -> usize {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(path.as_os_str().as_bytes());
        (hasher.finish() % APPEND_LOCKS as u64) as usize
    }

    /// Writes beside, then claims the lowest free index.
    fn write_new(
        &self,
        first: &Path,
        chunk: ChunkId,
        path: &dyn Fn(u64) -> PathBuf,
        body: Body<'_>,
    ) -> Result<u64, WriteFault> {
        // Named by the chunk alone: the next attempt after a crash finds and overwrites it.
        let beside = first.with_file_name(format!(".{chunk}.tributary-tmp"));
        let result = self.write_beside(&beside, body).and_then(|answer| {
            self.claim(&beside, path).map_err(WriteFault::Io)?;
            Ok(answer)
        });
        // After a hard link this takes away the second name, after a fault the remains.
        let _ = std::fs::remove_file(&beside);
        result
    }

    fn write_beside(&self, beside: &Path, body: Body<'_>) -> Result<u64, WriteFault> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(self.permissions.file);
        let mut file = options.open(beside).map_err(WriteFault::Io)?;
        let answer = body(&mut file)?;
        if self.sync {
            file.sync_all().map_err(WriteFault::Io)?;
        }
        Ok(answer)
    }

    /// Gives a written file the first free name. A hard link never replaces a file; where the file system has none, an
    /// empty file reserves the name and is replaced.
    fn claim(&self, beside: &Path, path: &dyn Fn(u64) -> PathBuf) -> io::Result<()> {
        for index in 0.. {
            let target = path(index);
            if target.symlink_metadata().is_ok() {
                continue;
            }
            match std::fs::hard_link(beside, &target) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) if has_no_links(&error) => {
                    match OpenOptions::new().write(true).create_new(true).open(&target) {
                        Ok(_) => std::fs::rename(beside, &target)?,
                        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                        Err(error) => return Err(error),
                    }
                }
                Err(error) => return Err(error),
            }
            return self.sync_directory_of(&target);
        }
        Err(io::Error::other("no free index"))
    }
}

/// True for what file systems without hard links answer (FAT, some network and FUSE ones).
fn has_no_links(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| {
        matches!(Errno::from_raw(code), Errno::EPERM | Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EMLINK)
    })
}

fn lock_file(file: File, path: &Path) -> Result<Flock<File>, WriteFault> {
    let deadline = Instant::now() + FILE_LOCK_WAIT;
    let mut file = file;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => return Ok(locked),
            Err((_, Errno::EWOULDBLOCK)) if Instant::now() >= deadline => {
                return Err(WriteFault::Locked(path.display().to_string()));
            }
            Err((unlocked, Errno::EWOULDBLOCK)) => file = unlocked,
            Err((_, error)) => return Err(WriteFault::Io(error.into())),
        }
        std::thread::sleep(FILE_LOCK_POLL);
    }
}

/// Appends all that the body writes, or nothing: after a fault the file is as long as before.
pub(super) fn append_whole(
    file: &mut impl AppendFile,
    lines: bool,
    sync: bool,
    body: Body<'_>,
) -> Result<u64, WriteFault> {
    let length_before = file.length().map_err(WriteFault::Io)?;
    let result = append_unguarded(file, lines, sync, body);
    if result.is_err() {
        // If even this fails the torn line is ended by the next append.
        let _ = file.cut(length_before);
    }
    result
}

fn append_unguarded(
    file: &mut impl AppendFile,
    lines: bool,
    sync: bool,
    body: Body<'_>,
) -> Result<u64, WriteFault> {
    // A process that died inside a write left a line without end; what follows must not be glued to it.
    if lines && file.last_byte().map_err(WriteFault::Io)?.is_some_and(|byte| byte != b'\n') {
        file.write_all(b"\n").map_err(WriteFault::Io)?;
    }
    let answer = body(file)?;
    if sync {
        file.sync().map_err(WriteFault::Io)?;
    }
    Ok(answer)
}

/// Checks that files can be made where a path template points to, as far as it is free of placeholders.
pub fn check_writable(template: &str) -> Result<(), String> {
    let fixed = template.find(['$', '%']).map_or(template, |at| &template[..at]);
    let directory = fixed.rfind('/').map_or(Path::new("."), |at| Path::new(&fixed[..=at]));
    let existing = directory.ancestors().find(|path| path.as_os_str().is_empty() || path.exists());
    let existing = existing.filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
    nix::unistd::access(existing, AccessFlags::W_OK | AccessFlags::X_OK).map_err(|error| {
        format!(
            "out_file: `{template}` is not writable: no permission to make files in {}: {error}",
            existing.display()
        )
    })
}
