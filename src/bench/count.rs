//! `tributary bench count`: the events of output files, counted as the sink counts them.
//!
//! Takes JSON lines and out_file's `time<TAB>tag<TAB>{json}`, plain or gzip. A line is read only as far as its three
//! numbers, so a million lines take a second.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::record::Mark;
use super::tally::Tally;

/// Longest line; a longer one counts as unreadable in pieces instead of filling the memory.
const LINE_LIMIT_BYTES: usize = 1 << 20;
const READ_BYTES: usize = 1 << 18;

/// `tributary bench count`
#[derive(Clone, Debug, clap::Args)]
pub struct CountOptions {
    /// Files with one event a line; `.gz` content is recognised
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// How many different events there should be
    #[arg(long, value_name = "N")]
    pub expect: Option<u64>,
    /// Write the seen set here, for `bench judge --seen`
    #[arg(long, value_name = "FILE")]
    pub seen: Option<PathBuf>,
}

/// Runs `bench count`: prints the summary; 1 when events are lost or lines unreadable, 2 when a file cannot be read.
pub fn run(options: CountOptions) -> ExitCode {
    let result = count_files(&options.files).and_then(|tally| {
        if let Some(path) = &options.seen {
            let mut text = Vec::new();
            tally.save(&mut text)?;
            super::status::replace_file(path, &text)?;
        }
        Ok(tally)
    });
    match result {
        Ok(tally) => {
            println!("{}", tally.summary(options.expect));
            ExitCode::from(u8::from(tally.lost(options.expect) > 0 || tally.unreadable > 0))
        }
        Err(error) => {
            eprintln!("bench count: {error}");
            ExitCode::from(2)
        }
    }
}

/// Counts the events of all files. An error names its file.
pub fn count_files(paths: &[PathBuf]) -> io::Result<Tally> {
    let mut tally = Tally::default();
    for path in paths {
        count_file(path, &mut tally)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    }
    Ok(tally)
}

fn count_file(path: &Path, tally: &mut Tally) -> io::Result<()> {
    let mut file = BufReader::with_capacity(READ_BYTES, File::open(path)?);
    if file.fill_buf()?.starts_with(&[0x1f, 0x8b]) {
        let inflated = flate2::bufread::MultiGzDecoder::new(file);
        return count_lines(BufReader::with_capacity(READ_BYTES, inflated), tally);
    }
    count_lines(file, tally)
}

fn count_lines(mut input: impl BufRead, tally: &mut Tally) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        if input.by_ref().take(LINE_LIMIT_BYTES as u64).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        match read_line(&line) {
            Line::Event(mark) => tally.count(mark),
            Line::Foreign => tally.foreign += 1,
            Line::Unreadable => tally.unreadable += 1,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Line {
    Event(Mark),
    Foreign,
    Unreadable,
}

/// The numbers of one line. It must be one whole JSON object, perhaps behind out_file's time and tag; else it is torn.
fn read_line(line: &[u8]) -> Line {
    let Some(whole) = line.strip_suffix(b"\n").filter(|whole| is_one_object(json_part(whole))) else {
        return Line::Unreadable;
    };
    let number = |key: &[u8]| number_after(whole, key);
    match (number(b"\"run\":"), number(b"\"seq\":")) {
        (Some(run), Some(seq)) => {
            Line::Event(Mark { run, seq, sent_ns: number(b"\"sent_ns\":").unwrap_or(0) })
        }
        _ => Line::Foreign,
    }
}

/// Whether braces and quotes close exactly at the end: two lines of which one is torn never do.
fn is_one_object(json: &[u8]) -> bool {
    let (mut depth, mut in_text, mut escaped) = (0_u32, false, false);
    for (at, byte) in json.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'{' if !in_text => depth += 1,
            b'}' if !in_text => match depth {
                1 => return at + 1 == json.len(),
                0 => return false,
                _ => depth -= 1,
            },
            _ => {}
        }
    }
    false
}

/// The record behind out_file's time and tag.
fn json_part(line: &[u8]) -> &[u8] {
    let start = line.iter().position(|byte| *byte == b'{').unwrap_or(0);
    line.get(start..).unwrap_or(&[])
}

/// The number behind the last appearance of a key, which is where the generator puts its fields.
fn number_after(line: &[u8], key: &[u8]) -> Option<u64> {
    let at = line.windows(key.len()).rposition(|part| part == key)?;
    // `\"seq\":` inside a text is not a key.
    if at > 0 && line.get(at - 1) == Some(&b'\\') {
        return None;
    }
    let digits = line.get(at + key.len()..)?.trim_ascii_start();
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    std::str::from_utf8(digits.get(..end)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn reads_json_lines_and_out_file_lines() {
        let event = Line::Event(Mark { run: 7, seq: 42, sent_ns: 9 });
        assert_eq!(read_line(b"{\"path\":\"/\",\"run\":7,\"seq\":42,\"sent_ns\":9}\n"), event);
        assert_eq!(read_line(b"{\"run\": 7, \"seq\": 42, \"sent_ns\": 9}\n"), event);
        assert_eq!(
            read_line(b"2023-11-14T22:13:20+00:00\tapp\t{\"run\":7,\"seq\":42,\"sent_ns\":9}\n"),
            event
        );
        assert_eq!(read_line(b"{\"message\":\"x\"}\n"), Line::Foreign);
        assert_eq!(read_line(b"{\"m\":\"\\\"run\\\":1,\\\"seq\\\":2\"}\n"), Line::Foreign);
    }

    #[test]
    fn torn_lines_are_unreadable() {
        assert_eq!(read_line(b"{\"run\":7,\"seq\":42,\"sent_ns\":9}"), Line::Unreadable);
        assert_eq!(read_line(b"{\"run\":7,\"seq\":4\n"), Line::Unreadable);
        assert_eq!(read_line(b"\n"), Line::Unreadable);
        assert_eq!(read_line(b"{\"run\":7,\"se{\"x\":7}\n"), Line::Unreadable);
        // A torn line with a whole one behind it, as an append after a crash may leave it.
        assert_eq!(
            read_line(b"{\"run\":7,\"seq\":4{\"run\":7,\"seq\":43,\"sent_ns\":9}\n"),
            Line::Unreadable
        );
        let torn_in_text = b"{\"path\":\"/sho{\"path\":\"/\",\"run\":7,\"seq\":43,\"sent_ns\":9}\n";
        assert_eq!(read_line(torn_in_text), Line::Unreadable);
    }

    #[test]
    fn counts_plain_and_gzip_files_together() {
        let folder = tempfile::tempdir().expect("temporary directory");
        let lines = |numbers: std::ops::Range<u64>| -> String {
            numbers.map(|seq| format!("{{\"run\":7,\"seq\":{seq},\"sent_ns\":9}}\n")).collect()
        };
        let (plain, packed) = (folder.path().join("a.log"), folder.path().join("b.log.gz"));
        std::fs::write(&plain, lines(0..50)).expect("write");
        let file = File::create(&packed).expect("create");
        let mut gzip = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
        gzip.write_all(lines(49..99).as_bytes()).and_then(|()| gzip.finish().map(|_| ())).expect("write");
        let tally = count_files(&[plain, packed]).expect("count");
        assert_eq!((tally.received(), tally.repeated(), tally.lost(Some(100))), (100, 1, 1));
        assert!(count_files(&[folder.path().join("none")]).is_err());
    }
}
