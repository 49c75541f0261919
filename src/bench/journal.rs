//! The generator's account: which events were acknowledged and when.
//!
//! Text, append-only, one line per acknowledged message, written when the ack has been read:
//!
//! ```text
//! tributary journal 1 run 42
//! 0 1000 1700000000123456789 1700000000125456789
//! end sent 1000
//! ```
//!
//! first seq, count, wall clock at sending and at the ack (nanoseconds). `end sent N`: no number of N or more was
//! ever sent; a journal without that line is of a generator that was killed, and then no number counts as invented.

use std::fs::File;
use std::io::{self, BufRead, BufWriter, Write};
use std::path::Path;

use super::tally::{Bitmap, SEQ_LIMIT};

/// Writes a journal.
#[derive(Debug)]
pub struct JournalWriter {
    file: BufWriter<File>,
}

impl JournalWriter {
    /// Creates the file, replacing an old one.
    pub fn create(path: &Path, run: u64) -> io::Result<Self> {
        let mut file = BufWriter::new(File::create(path)?);
        writeln!(file, "tributary journal 1 run {run}")?;
        file.flush()?;
        Ok(Self { file })
    }

    /// Notes an acknowledged message. In the file after [`JournalWriter::flush`].
    pub fn acknowledged(&mut self, first: u64, count: u32, sent_ns: u64, acked_ns: u64) -> io::Result<()> {
        writeln!(self.file, "{first} {count} {sent_ns} {acked_ns}")
    }

    /// Hands everything to the kernel: survives the end of this process, not that of the machine.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    /// Closes the account: events `0 .. sent` went out at least once.
    pub fn finish(&mut self, sent: u64) -> io::Result<()> {
        writeln!(self.file, "end sent {sent}")?;
        self.file.flush()
    }
}

/// What a run's forwarder owes.
#[derive(Clone, Debug, Default)]
pub struct Debts {
    /// The run.
    pub run: u64,
    /// Numbers acknowledged.
    pub acknowledged: Bitmap,
    /// Events sent, when the journal was closed.
    pub sent: Option<u64>,
}

impl Debts {
    /// Reads a journal. A last line without its end (the generator was killed while writing) is left out.
    pub fn load(path: &Path) -> io::Result<Self> {
        Self::read(io::BufReader::new(File::open(path)?))
    }

    fn read(mut input: impl BufRead) -> io::Result<Self> {
        let (mut debts, mut line, mut number) = (None::<Self>, String::new(), 0_u64);
        while input.read_line(&mut line)? > 0 {
            number += 1;
            let bad = || {
                let text = format!("line {number} is not a line of a journal: {line:?}");
                io::Error::new(io::ErrorKind::InvalidData, text)
            };
            let Some(whole) = line.strip_suffix('\n') else { break };
            if let Some(run) = whole.strip_prefix("tributary journal 1 run ") {
                let run = run.parse().map_err(|_| bad())?;
                debts = Some(Self { run, ..Self::default() });
            } else if let Some(sent) = whole.strip_prefix("end sent ") {
                debts.as_mut().ok_or_else(bad)?.sent = Some(sent.parse().map_err(|_| bad())?);
            } else {
                let mut words = whole.split(' ').map(str::parse::<u64>);
                let (Some(Ok(first)), Some(Ok(count))) = (words.next(), words.next()) else {
                    return Err(bad());
                };
                let end = first.checked_add(count).filter(|end| *end <= SEQ_LIMIT).ok_or_else(bad)?;
                let debts = debts.as_mut().ok_or_else(bad)?;
                (first..end).for_each(|seq| _ = debts.acknowledged.insert(seq));
            }
            line.clear();
        }
        debts.ok_or_else(|| {
            io::Error::new(io::ErrorKind::UnexpectedEof, "no first line \"tributary journal 1 run R\"")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().expect("temporary directory");
        let path = folder.path().join("journal");
        let mut journal = JournalWriter::create(&path, 42).expect("create");
        journal.acknowledged(0, 10, 1, 2).expect("write");
        journal.acknowledged(30, 5, 1, 2).expect("write");
        journal.flush().expect("flush");
        let open = Debts::load(&path).expect("load");
        assert_eq!((open.run, open.sent), (42, None));
        journal.finish(40).expect("finish");
        let closed = Debts::load(&path).expect("load");
        assert_eq!(closed.sent, Some(40));
        assert_eq!(closed.acknowledged.ranges().collect::<Vec<_>>(), [(0, 10), (30, 5)]);
    }

    #[test]
    fn a_torn_last_line_is_left_out_and_nonsense_is_refused() {
        let read = |text: &str| Debts::read(text.as_bytes());
        let torn = read("tributary journal 1 run 1\n0 10 1 2\n10 1").expect("readable");
        assert_eq!(torn.acknowledged.len(), 10);
        assert!(read("tributary journal 1 run 1\n0 ten 1 2\n").is_err());
        assert!(read("0 10 1 2\n").is_err());
        assert!(read("").is_err());
    }
}
