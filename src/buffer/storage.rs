//! The one file that calls the file system for a buffer.
//!
//! `Storage` is narrow on purpose: `sim.rs` implements it with written and synced state kept apart, so that a crash can
//! be tried before, inside and after every call. Nothing here retries or decides.

use std::any::Any;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, IoSlice, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// File name, without the directory. Names that are not UTF-8 are shown with replacement characters: never ours.
    pub(super) name: String,
    /// Whether it is a directory.
    pub(super) is_dir: bool,
    /// File size in bytes.
    pub(super) len: u64,
}

/// What a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathKind {
    /// Nothing there.
    Absent,
    /// A directory.
    Directory,
    /// Anything else.
    File,
}

/// The lock is held by another process (its number as text, if it wrote one).
#[derive(Debug)]
pub(super) enum LockError {
    /// Held, by this process number.
    Held(String),
    /// Could not be tried.
    Io(io::Error),
}

/// File-system calls of a buffer.
pub(super) trait Storage: Send + Sync {
    /// What stands at the path.
    fn kind(&self, path: &Path) -> io::Result<PathKind>;
    /// Makes one directory; its parent must exist.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Entries of a directory, in no order.
    fn list(&self, directory: &Path) -> io::Result<Vec<Entry>>;
    /// Brings the entries of a directory (creations, renames, unlinks) to stable storage.
    fn sync_dir(&self, directory: &Path) -> io::Result<()>;
    /// Creates a file that must not exist.
    fn create_new(&self, path: &Path) -> io::Result<Box<dyn StorageFile>>;
    /// Opens an existing file for writing.
    fn open(&self, path: &Path) -> io::Result<Box<dyn StorageFile>>;
    /// Appends up to `len` bytes from `offset` to `into`; fewer only at the end of the file.
    fn read_into(&self, path: &Path, offset: u64, len: u64, into: &mut Vec<u8>) -> io::Result<()>;
    /// The same as a value of its own.
    fn read(&self, path: &Path, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.read_into(path, offset, len, &mut bytes)?;
        Ok(bytes)
    }
    /// Renames within a directory or between two.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn unlink(&self, path: &Path) -> io::Result<()>;
    /// Takes the lock file (created if absent) until the value is dropped, and writes our process number into it.
    fn lock(&self, path: &Path) -> Result<Box<dyn Any + Send>, LockError>;
}

/// An open file.
pub(super) trait StorageFile: Send {
    /// Writes all slices, one after the other, from `offset` on. After an error any part may have been written.
    fn write_at(&mut self, slices: &mut [IoSlice<'_>], offset: u64) -> io::Result<()>;
    /// Brings content and length to stable storage. After an error the kernel may have dropped what was not.
    fn sync_data(&mut self) -> io::Result<()>;
    /// Cuts the file to `len` bytes.
    fn truncate(&mut self, len: u64) -> io::Result<()>;
}

/// The real disk.
#[derive(Clone, Debug)]
pub(super) struct DiskStorage {
    /// Permission bits of new files, before the umask.
    pub(super) file_permission: u32,
    /// Permission bits of new directories, before the umask.
    pub(super) dir_permission: u32,
}

impl Storage for DiskStorage {
    fn kind(&self, path: &Path) -> io::Result<PathKind> {
        match std::fs::metadata(path) {
            Ok(found) if found.is_dir() => Ok(PathKind::Directory),
            Ok(_) => Ok(PathKind::File),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(PathKind::Absent),
            Err(error) => Err(error),
        }
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().mode(self.dir_permission).create(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            // An entry that vanishes between the two calls is none.
            let Ok(found) = entry.metadata() else { continue };
            entries.push(Entry {
                name: entry.file_name().to_string_lossy().into_owned(),
                is_dir: found.is_dir(),
                len: found.len(),
            });
        }
        Ok(entries)
    }

    fn sync_dir(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }

    fn create_new(&self, path: &Path) -> io::Result<Box<dyn StorageFile>> {
        let file = OpenOptions::new().write(true).create_new(true).mode(self.file_permission).open(path)?;
        Ok(Box::new(DiskFile { file, position: 0 }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn StorageFile>> {
        let file = OpenOptions::new().write(true).open(path)?;
        Ok(Box::new(DiskFile { file, position: 0 }))
    }

    fn read_into(&self, path: &Path, offset: u64, len: u64, into: &mut Vec<u8>) -> io::Result<()> {
        let mut file = File::open(path)?;
        let available = file.metadata()?.len().saturating_sub(offset).min(len);
        if offset > 0 {
            file.seek(SeekFrom::Start(offset))?;
        }
        // Exactly as large as needed, and not filled with zeros before.
        into.reserve_exact(usize::try_from(available).map_err(io::Error::other)?);
        file.take(available).read_to_end(into)?;
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn Any + Send>, LockError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(self.file_permission);
        let file = options.open(path).map_err(LockError::Io)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut locked) => {
                // The number is only for the message of a second process; the lock itself is what counts.
                let _ = locked.set_len(0);
                let _ = locked.rewind();
                let _ = writeln!(&mut *locked, "{}", std::process::id());
                Ok(Box::new(locked))
            }
            Err((mut file, nix::errno::Errno::EWOULDBLOCK)) => {
                let mut text = String::new();
                let _ = Read::by_ref(&mut file).take(32).read_to_string(&mut text);
                let pid = text.trim();
                Err(LockError::Held(if pid.is_empty() { "unknown".to_owned() } else { pid.to_owned() }))
            }
            Err((_, errno)) => Err(LockError::Io(errno.into())),
        }
    }
}

/// An open file of the real disk.
struct DiskFile {
    file: File,
    /// Where the descriptor's cursor stands, so that appends in a row need no seek.
    position: u64,
}

/// Most slices in one call (the kernel's IOV_MAX).
const SLICES_PER_WRITE: usize = 1024;

impl StorageFile for DiskFile {
    fn write_at(&mut self, slices: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        if self.position != offset {
            self.position = self.file.seek(SeekFrom::Start(offset))?;
        }
        let mut rest = slices;
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let now = rest.len().min(SLICES_PER_WRITE);
            match self.file.write_vectored(&rest[..now]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.position += count as u64;
                    IoSlice::advance_slices(&mut rest, count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn sync_data(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
}

/// Makes `path` and what is missing above it, each entry on stable storage before the next is used.
pub(super) fn create_directories(storage: &dyn Storage, path: &Path) -> io::Result<()> {
    let mut missing: Vec<PathBuf> = Vec::new();
    let mut at = path;
    while storage.kind(at)? == PathKind::Absent {
        missing.push(at.to_path_buf());
        match at.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => at = parent,
            _ => break,
        }
    }
    // The lowest directory that exists may have been made by a process that died before it synced the parent.
    match sync_parent(storage, at) {
        // A directory that we may not read was not made by us.
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error),
        _ => {}
    }
    for directory in missing.into_iter().rev() {
        match storage.create_dir(&directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        sync_parent(storage, &directory)?;
    }
    Ok(())
}

/// Brings the entry of `path` itself to stable storage.
fn sync_parent(storage: &dyn Storage, path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => storage.sync_dir(Path::new(".")),
        Some(parent) => storage.sync_dir(parent),
        None => Ok(()),
    }
}
