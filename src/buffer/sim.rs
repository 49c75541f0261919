//! A simulated disk for tests: what was written and what is on stable storage are kept apart, for file contents, lengths
//! and directory entries separately.
//!
//! It can crash before any call and inside any write. After a power failure, [`Disk::survivors`] gives the states that a
//! kernel may leave: each unsynced directory entry made or lost by itself (a rename is one step), each unsynced write
//! dropped, kept, torn at a byte, or replaced by zeros or garbage with the length already grown.

use std::any::Any;
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use super::storage::{Entry, LockError, PathKind, Storage, StorageFile};

/// Up to so many combinations of surviving parts are all tried; of more, so many are drawn.
const COMBINATIONS_LIMIT: usize = 48;
/// Up to so many unsynced bytes, a tear is tried at every byte; of more, at so many drawn ones.
const TEARS_LIMIT: usize = 24;

#[derive(Clone, Debug)]
enum ContentStep {
    Write { offset: usize, bytes: Vec<u8> },
    Truncate(usize),
}

impl ContentStep {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Write { offset, bytes } => {
                let end = offset + bytes.len();
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[*offset..end].copy_from_slice(bytes);
            }
            Self::Truncate(len) => content.resize(*len, 0),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Inode {
    synced: Vec<u8>,
    cached: Vec<u8>,
    unsynced: Vec<ContentStep>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    Directory,
    File(usize),
}

#[derive(Clone, Debug)]
enum NameStep {
    Add(PathBuf, Node),
    Rename(PathBuf, PathBuf, Node),
    Remove(PathBuf),
}

impl NameStep {
    fn apply(&self, names: &mut BTreeMap<PathBuf, Node>) {
        match self {
            Self::Add(path, node) => {
                names.insert(path.clone(), *node);
            }
            Self::Rename(from, to, node) => {
                names.remove(from);
                names.insert(to.clone(), *node);
            }
            Self::Remove(path) => {
                names.remove(path);
            }
        }
    }

    fn concerns(&self, directory: &Path) -> bool {
        match self {
            Self::Add(path, _) | Self::Remove(path) => path.parent() == Some(directory),
            Self::Rename(from, to, _) => [from, to].iter().any(|path| path.parent() == Some(directory)),
        }
    }
}

/// Where the process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CrashPoint {
    /// Before the call with this number (from 1).
    Before(u64),
    /// Inside the write with this number, after so many per mille of its bytes.
    Inside(u64, u32),
}

/// One call, as a fault injector sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Create,
    Open,
    Write,
    Sync,
    SyncDirectory,
    Truncate,
    Rename,
    Unlink,
    Read,
    List,
    CreateDirectory,
}

type Fault = Box<dyn FnMut(Call, &Path) -> Option<io::ErrorKind> + Send>;

/// The state of the disk.
#[derive(Default)]
pub(super) struct Disk {
    inodes: Vec<Inode>,
    names: BTreeMap<PathBuf, Node>,
    synced_names: BTreeMap<PathBuf, Node>,
    unsynced_names: Vec<NameStep>,
    /// Calls so far.
    pub(super) calls: u64,
    /// Where to crash.
    pub(super) crash: Option<CrashPoint>,
    /// The process is dead: every call fails.
    pub(super) crashed: bool,
    /// Lets chosen calls fail.
    pub(super) fault: Option<Fault>,
}

impl Clone for Disk {
    fn clone(&self) -> Self {
        Self {
            inodes: self.inodes.clone(),
            names: self.names.clone(),
            synced_names: self.synced_names.clone(),
            unsynced_names: self.unsynced_names.clone(),
            calls: 0,
            crash: None,
            crashed: false,
            fault: None,
        }
    }
}

impl Disk {
    /// An empty disk with one directory.
    pub(super) fn with_directory(path: &str) -> Self {
        let mut disk = Self::default();
        for directory in Path::new(path).ancestors() {
            disk.names.insert(directory.to_path_buf(), Node::Directory);
        }
        disk.synced_names = disk.names.clone();
        disk
    }

    fn step(&mut self, call: Call, path: &Path) -> io::Result<()> {
        if self.crashed {
            return Err(io::Error::other("crashed"));
        }
        self.calls += 1;
        if self.crash == Some(CrashPoint::Before(self.calls)) {
            self.crashed = true;
            return Err(io::Error::other("crashed"));
        }
        match self.fault.as_mut().and_then(|fault| fault(call, path)) {
            Some(kind) => Err(kind.into()),
            None => Ok(()),
        }
    }

    fn name(&mut self, step: NameStep) {
        step.apply(&mut self.names);
        self.unsynced_names.push(step);
    }

    fn inode(&self, path: &Path) -> io::Result<usize> {
        match self.names.get(path) {
            Some(Node::File(inode)) => Ok(*inode),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Files with their content, as a reader sees them.
    pub(super) fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let content = |node: &Node| match node {
            Node::File(inode) => Some(self.inodes[*inode].cached.clone()),
            Node::Directory => None,
        };
        self.names.iter().filter_map(|(path, node)| Some((path.clone(), content(node)?))).collect()
    }

    /// Puts a whole, synced file there.
    pub(super) fn put(&mut self, path: &Path, content: &[u8]) {
        let inode = Inode { synced: content.to_vec(), cached: content.to_vec(), unsynced: Vec::new() };
        self.inodes.push(inode);
        let node = Node::File(self.inodes.len() - 1);
        self.names.insert(path.to_path_buf(), node);
        self.synced_names.insert(path.to_path_buf(), node);
    }

    /// Files with content that a power failure may lose.
    fn unsynced_inodes(&self) -> Vec<usize> {
        (0..self.inodes.len()).filter(|inode| !self.inodes[*inode].unsynced.is_empty()).collect()
    }

    /// States after a power failure: everything lost, everything kept, and combinations between, all of them when they are
    /// few, drawn ones else.
    pub(super) fn survivors(&self, random: &mut fastrand::Rng) -> Vec<Disk> {
        let inodes = self.unsynced_inodes();
        let contents: Vec<Vec<Vec<u8>>> =
            inodes.iter().map(|inode| content_survivors(&self.inodes[*inode], random)).collect();
        let name_choices = 1_usize.checked_shl(self.unsynced_names.len() as u32).unwrap_or(usize::MAX);
        let combinations =
            contents.iter().fold(name_choices, |product, options| product.saturating_mul(options.len()));
        let mut disks = Vec::new();
        if combinations <= COMBINATIONS_LIMIT {
            for number in 0..combinations {
                let (names, mut rest) = (number % name_choices, number / name_choices);
                let picks = contents.iter().map(|options| {
                    let pick = rest % options.len();
                    rest /= options.len();
                    pick
                });
                let picks: Vec<usize> = picks.collect();
                disks.push(self.survivor(names, &inodes, &contents, &picks));
            }
            return disks;
        }
        for drawn in 0..COMBINATIONS_LIMIT {
            // The corners (names all lost or kept, contents all lost or kept) are always among them.
            let names = match drawn % 4 {
                0 => 0,
                1 => name_choices - 1,
                _ => random.usize(0..name_choices),
            };
            let pick = |options: &Vec<Vec<u8>>| match drawn {
                0 | 1 => 0,
                4 | 5 => 1,
                _ => random.usize(0..options.len()),
            };
            let picks: Vec<usize> = contents.iter().map(pick).collect();
            disks.push(self.survivor(names, &inodes, &contents, &picks));
        }
        disks
    }

    fn survivor(&self, names: usize, inodes: &[usize], contents: &[Vec<Vec<u8>>], picks: &[usize]) -> Disk {
        let mut disk = Disk { inodes: self.inodes.clone(), ..Disk::default() };
        disk.names = self.synced_names.clone();
        for (at, step) in self.unsynced_names.iter().enumerate() {
            if at >= usize::BITS as usize || names >> at & 1 == 1 {
                step.apply(&mut disk.names);
            }
        }
        // What lies below a directory that was lost is lost.
        let all = disk.names.clone();
        let directory = |path: &Path| all.get(path) == Some(&Node::Directory);
        disk.names.retain(|path, _| path.ancestors().skip(1).all(directory));
        for ((inode, options), pick) in inodes.iter().zip(contents).zip(picks) {
            disk.inodes[*inode].cached = options[*pick].clone();
        }
        for inode in &mut disk.inodes {
            if inode.unsynced.is_empty() {
                // Differs only after a failed sync.
                inode.cached = inode.synced.clone();
            }
            inode.synced = inode.cached.clone();
            inode.unsynced.clear();
        }
        disk.synced_names = disk.names.clone();
        disk
    }
}

/// What may be left of a file: first nothing of the unsynced steps, second all of them, then mixtures.
fn content_survivors(inode: &Inode, random: &mut fastrand::Rng) -> Vec<Vec<u8>> {
    let replay = |kept: &dyn Fn(usize) -> bool| {
        let mut content = inode.synced.clone();
        for (at, step) in inode.unsynced.iter().enumerate() {
            if kept(at) {
                step.apply(&mut content);
            }
        }
        content
    };
    let full = replay(&|_| true);
    let mut options = vec![inode.synced.clone(), full.clone()];
    // One step lost, or one step kept alone.
    if inode.unsynced.len() > 1 {
        for at in 0..inode.unsynced.len() {
            options.push(replay(&|other| other != at));
            options.push(replay(&|other| other == at));
        }
    }
    // The length has grown, the bytes have not come: zeros, or whatever the blocks held.
    let mut zeros = inode.synced.clone();
    zeros.resize(full.len(), 0);
    let mut garbage = zeros.clone();
    let kept = inode.synced.len().min(garbage.len());
    garbage[kept..].iter_mut().for_each(|byte| *byte = random.u8(..));
    options.push(zeros.clone());
    options.push(garbage.clone());
    // Torn at a byte: before it the new bytes, after it nothing, zeros or garbage.
    let differ = full.iter().zip(&zeros).position(|(new, old)| new != old).unwrap_or(kept);
    let unsynced = full.len().saturating_sub(differ);
    let tears: Vec<usize> = match unsynced {
        0 => Vec::new(),
        1..=TEARS_LIMIT => (1..unsynced).collect(),
        _ => (0..TEARS_LIMIT).map(|_| random.usize(1..unsynced)).collect(),
    };
    for (number, tear) in tears.into_iter().enumerate() {
        let mut torn = full[..differ + tear].to_vec();
        match number % 3 {
            0 => {}
            1 => torn.extend_from_slice(&zeros[differ + tear..]),
            _ => torn.extend_from_slice(&garbage[differ + tear..]),
        }
        options.push(torn);
    }
    // A hole: the end has come, the beginning has not.
    if unsynced > 1 {
        let mut hole = full.clone();
        let end = differ + random.usize(1..unsynced);
        hole[differ..end].copy_from_slice(&zeros[differ..end]);
        options.push(hole);
    }
    options
}

/// The disk as a [`Storage`].
#[derive(Clone)]
pub(super) struct SimStorage(pub(super) Arc<Mutex<Disk>>);

impl SimStorage {
    pub(super) fn new(disk: Disk) -> Self {
        Self(Arc::new(Mutex::new(disk)))
    }

    pub(super) fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Storage for SimStorage {
    fn kind(&self, path: &Path) -> io::Result<PathKind> {
        Ok(match self.disk().names.get(path) {
            None => PathKind::Absent,
            Some(Node::Directory) => PathKind::Directory,
            Some(Node::File(_)) => PathKind::File,
        })
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.step(Call::CreateDirectory, path)?;
        if disk.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        disk.name(NameStep::Add(path.to_path_buf(), Node::Directory));
        Ok(())
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<Entry>> {
        let mut disk = self.disk();
        disk.step(Call::List, directory)?;
        if disk.names.get(directory) != Some(&Node::Directory) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let inside = disk.names.iter().filter(|(path, _)| path.parent() == Some(directory));
        let entry = |(path, node): (&PathBuf, &Node)| Entry {
            name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            is_dir: *node == Node::Directory,
            len: match node {
                Node::File(inode) => disk.inodes[*inode].cached.len() as u64,
                Node::Directory => 0,
            },
        };
        Ok(inside.map(entry).collect())
    }

    fn sync_dir(&self, directory: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.step(Call::SyncDirectory, directory)?;
        for step in std::mem::take(&mut disk.unsynced_names) {
            if step.concerns(directory) {
                step.apply(&mut disk.synced_names);
            } else {
                disk.unsynced_names.push(step);
            }
        }
        Ok(())
    }

    fn create_new(&self, path: &Path) -> io::Result<Box<dyn StorageFile>> {
        let mut disk = self.disk();
        disk.step(Call::Create, path)?;
        if disk.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if path.parent().is_none_or(|parent| disk.names.get(parent) != Some(&Node::Directory)) {
            return Err(io::ErrorKind::NotFound.into());
        }
        disk.inodes.push(Inode::default());
        let inode = disk.inodes.len() - 1;
        disk.name(NameStep::Add(path.to_path_buf(), Node::File(inode)));
        Ok(Box::new(SimFile { disk: Arc::clone(&self.0), inode, path: path.to_path_buf() }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn StorageFile>> {
        let mut disk = self.disk();
        disk.step(Call::Open, path)?;
        let inode = disk.inode(path)?;
        Ok(Box::new(SimFile { disk: Arc::clone(&self.0), inode, path: path.to_path_buf() }))
    }

    fn read_into(&self, path: &Path, offset: u64, len: u64, into: &mut Vec<u8>) -> io::Result<()> {
        let mut disk = self.disk();
        disk.step(Call::Read, path)?;
        let content = &disk.inodes[disk.inode(path)?].cached;
        let start = content.len().min(offset as usize);
        let end = content.len().min(start.saturating_add(len as usize));
        into.extend_from_slice(&content[start..end]);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.step(Call::Rename, from)?;
        let node = *disk.names.get(from).ok_or(io::ErrorKind::NotFound)?;
        disk.name(NameStep::Rename(from.to_path_buf(), to.to_path_buf(), node));
        Ok(())
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.step(Call::Unlink, path)?;
        disk.inode(path)?;
        disk.name(NameStep::Remove(path.to_path_buf()));
        Ok(())
    }

    fn lock(&self, _path: &Path) -> Result<Box<dyn Any + Send>, LockError> {
        Ok(Box::new(()))
    }
}

struct SimFile {
    disk: Arc<Mutex<Disk>>,
    inode: usize,
    path: PathBuf,
}

impl SimFile {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl StorageFile for SimFile {
    fn write_at(&mut self, slices: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut disk = self.disk();
        let stepped = disk.step(Call::Write, &self.path);
        let mut bytes = slices.iter().flat_map(|slice| slice.to_vec()).collect::<Vec<u8>>();
        let mut result = stepped;
        if result.is_err() {
            if disk.crashed {
                return result;
            }
            // A write that fails has usually written something: half of it here.
            bytes.truncate(bytes.len() / 2);
        }
        if let Some(CrashPoint::Inside(call, per_mille)) = disk.crash
            && call == disk.calls
        {
            bytes.truncate(bytes.len() * per_mille as usize / 1000);
            disk.crashed = true;
            result = Err(io::Error::other("crashed"));
        }
        let step = ContentStep::Write { offset: offset as usize, bytes };
        let inode = &mut disk.inodes[self.inode];
        step.apply(&mut inode.cached);
        inode.unsynced.push(step);
        result
    }

    fn sync_data(&mut self) -> io::Result<()> {
        let mut disk = self.disk();
        let stepped = disk.step(Call::Sync, &self.path);
        if disk.crashed {
            return stepped;
        }
        let inode = &mut disk.inodes[self.inode];
        // After a failed sync the pages count as clean: readers see them, the disk never will.
        for step in std::mem::take(&mut inode.unsynced) {
            if stepped.is_ok() {
                step.apply(&mut inode.synced);
            }
        }
        stepped
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        let mut disk = self.disk();
        disk.step(Call::Truncate, &self.path)?;
        let step = ContentStep::Truncate(len as usize);
        let inode = &mut disk.inodes[self.inode];
        step.apply(&mut inode.cached);
        inode.unsynced.push(step);
        Ok(())
    }
}
