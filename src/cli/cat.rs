//! `tributary cat TAG`: records from standard input, sent to in_forward. The options are those of fluent-cat.
//!
//! ```text
//! echo '{"message":"hello"}' | tributary cat app.test
//! ```
//!
//! Each record goes out as soon as its line is read, as `[tag, [[time, record]]]` without acks (as fluent-cat does).

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value as Json;

use crate::event::msgpack::{self, Head, Stop};
use crate::event::{EventTime, Value};

/// First wait before a connection is tried again; doubles.
const RETRY_WAIT: Duration = Duration::from_millis(500);
/// Limit of a write and of the wait for the peer's close at the end.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(10);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest record on standard input: a stream without line ends must not fill the memory.
const RECORD_LIMIT_BYTES: usize = 64 << 20;
/// Records kept for sending again when the connection breaks under them.
const UNSENT_LIMIT_BYTES: usize = 256 << 10;

/// How standard input is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum CatFormat {
    /// One JSON object a line
    Json,
    /// msgpack maps (or `[time, map]`, the time ignored) back to back
    Msgpack,
    /// Lines, each put under the message key
    None,
}

/// `tributary cat`
#[derive(Clone, Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct CatOptions {
    /// Tag of the events
    #[arg(value_name = "TAG")]
    pub tag: String,
    /// Port of in_forward
    #[arg(short, long, default_value_t = 24224)]
    pub port: u16,
    /// Host of in_forward
    #[arg(short = 'h', long, default_value = "127.0.0.1")]
    pub host: String,
    /// Send to a Unix socket instead
    #[arg(short, long)]
    pub unix: bool,
    /// Path of the Unix socket
    #[arg(short, long, default_value = "/var/run/fluent/fluent.sock", value_name = "PATH")]
    pub socket: PathBuf,
    /// Format of standard input
    #[arg(short, long, value_enum, default_value = "json")]
    pub format: CatFormat,
    /// Same as --format json
    #[arg(long, conflicts_with_all = ["msgpack", "none"])]
    pub json: bool,
    /// Same as --format msgpack
    #[arg(long, conflicts_with = "none")]
    pub msgpack: bool,
    /// Same as --format none
    #[arg(long)]
    pub none: bool,
    /// Key for lines of format none
    #[arg(long, default_value = "message", value_name = "KEY")]
    pub message_key: String,
    /// Send whole seconds instead of EventTime
    #[arg(long)]
    pub time_as_integer: bool,
    /// Tries to connect before giving up
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub retry_limit: u32,
    /// Time of all events, as 2026-01-31T12:00:00Z or "2026-01-31 12:00:00 +0900" [default: now]
    #[arg(long, value_name = "TIME")]
    pub event_time: Option<String>,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,
}

/// Why cat ends with 1.
#[derive(Debug, thiserror::Error)]
pub enum CatError {
    /// Not a record.
    #[error("input must be a map, one a line, got: {0}")]
    NotAMap(String),
    /// Not JSON.
    #[error("line is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// Not msgpack.
    #[error("input is not msgpack: {0}")]
    Msgpack(#[from] Stop),
    /// Larger than the limit.
    #[error("a record is longer than {RECORD_LIMIT_BYTES} bytes")]
    TooLong,
    /// Not a time.
    #[error("cannot read the event time {0:?}, expected for example 2026-01-31T12:00:00Z")]
    EventTime(String),
    /// Standard input failed.
    #[error("reading standard input: {0}")]
    Input(io::Error),
    /// The records could not be sent.
    #[error("sending to {target}: {error}")]
    Send {
        /// Where.
        target: String,
        /// Why.
        error: io::Error,
    },
}

/// Runs `cat` over standard input: 0 when everything was sent.
pub fn run(options: CatOptions) -> ExitCode {
    match cat(&options, io::stdin().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tributary cat: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Sends every record of the input.
pub fn cat(options: &CatOptions, input: impl Read) -> Result<(), CatError> {
    let input = BufReader::new(input);
    let fixed_time = options.event_time.as_deref().map(parse_event_time).transpose()?;
    let mut sender = Sender { options, fixed_time, socket: None, unsent: Vec::new(), unsent_bytes: 0 };
    let read = match options {
        CatOptions { msgpack: true, .. } => read_msgpack(input, &mut sender),
        CatOptions { none: true, .. } => read_lines(input, &mut sender, CatFormat::None),
        CatOptions { json: true, .. } => read_lines(input, &mut sender, CatFormat::Json),
        CatOptions { format: CatFormat::Msgpack, .. } => read_msgpack(input, &mut sender),
        CatOptions { format, .. } => read_lines(input, &mut sender, *format),
    };
    // What was good before a bad line is sent all the same.
    let sent = if matches!(read, Err(CatError::Send { .. })) { Ok(()) } else { sender.flush() };
    if sent.is_err() || matches!(read, Err(CatError::Send { .. })) {
        sender.print_unsent();
    }
    sender.close();
    read.and(sent)
}

fn read_lines(
    mut input: BufReader<impl Read>,
    sender: &mut Sender<'_>,
    format: CatFormat,
) -> Result<(), CatError> {
    let mut line = Vec::new();
    loop {
        line.clear();
        let limit = RECORD_LIMIT_BYTES as u64 + 1;
        if (&mut input).take(limit).read_until(b'\n', &mut line).map_err(CatError::Input)? == 0 {
            return Ok(());
        }
        if line.len() > RECORD_LIMIT_BYTES {
            return Err(CatError::TooLong);
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        let mut record = Vec::new();
        if format == CatFormat::None {
            msgpack::write_map_header(&mut record, 1);
            msgpack::write_str(&mut record, sender.options.message_key.as_bytes());
            msgpack::write_str(&mut record, text);
        } else if text.trim_ascii().is_empty() {
            continue;
        } else {
            match serde_json::from_slice(text)? {
                map @ Json::Object(_) => Value::from_json(&map).encode(&mut record),
                _ => return Err(CatError::NotAMap(String::from_utf8_lossy(text).into_owned())),
            }
        }
        sender.add(&record)?;
        // Lines that are already here travel together; somebody who types sees each line arrive.
        if !input.buffer().contains(&b'\n') {
            sender.flush()?;
        }
    }
}

fn read_msgpack(mut input: BufReader<impl Read>, sender: &mut Sender<'_>) -> Result<(), CatError> {
    let mut bytes = Vec::new();
    loop {
        let more = input.fill_buf().map_err(CatError::Input)?;
        let count = more.len();
        bytes.extend_from_slice(more);
        input.consume(count);
        let mut used = 0;
        while used < bytes.len() {
            match msgpack_record(&bytes[used..]) {
                Ok((record, length)) => {
                    sender.add(record)?;
                    used += length;
                }
                Err(CatError::Msgpack(Stop::Incomplete { .. })) if count > 0 => break,
                Err(error) => return Err(error),
            }
        }
        bytes.drain(..used);
        sender.flush()?;
        match (count, bytes.len()) {
            (0, _) => return Ok(()),
            (_, RECORD_LIMIT_BYTES..) => return Err(CatError::TooLong),
            _ => {}
        }
    }
}

/// The first record of the bytes and the bytes used: a map, or the map of `[time, map]`.
fn msgpack_record(bytes: &[u8]) -> Result<(&[u8], usize), CatError> {
    let start = match msgpack::head(bytes, 0)? {
        (Head::Map(_), _) => 0,
        (Head::Array(2), inside) => msgpack::skip(bytes, inside)?,
        (other, _) => return Err(CatError::NotAMap(format!("{other:?}"))),
    };
    if !matches!(msgpack::head(bytes, start)?, (Head::Map(_), _)) {
        return Err(CatError::NotAMap("an array without a map".into()));
    }
    let end = msgpack::skip(bytes, start)?;
    Ok((bytes.get(start..end).unwrap_or_default(), end))
}

/// A time as Fluentd's `--event-time` takes it; without a zone it is local.
fn parse_event_time(text: &str) -> Result<(u32, u32), CatError> {
    let parsed = text
        .parse::<jiff::Timestamp>()
        .ok()
        .or_else(|| jiff::fmt::strtime::parse("%Y-%m-%d %H:%M:%S%.f %z", text).ok()?.to_timestamp().ok())
        .or_else(|| {
            let local = text.parse::<jiff::civil::DateTime>().ok()?;
            jiff::tz::TimeZone::system().to_timestamp(local).ok()
        });
    let bad = || CatError::EventTime(text.into());
    let time = parsed.ok_or_else(bad)?;
    let seconds = u32::try_from(time.as_second()).map_err(|_| bad())?;
    Ok((seconds, u32::try_from(time.subsec_nanosecond()).map_err(|_| bad())?))
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.write_all(bytes),
            Self::Unix(stream) => stream.write_all(bytes),
        }
    }

    /// Ends our side and waits until the peer has read everything and closes: a reset would lose what is on the way.
    fn close(self) -> io::Result<()> {
        let mut rest = Vec::new();
        match self {
            Self::Tcp(mut stream) => {
                stream.shutdown(Shutdown::Write)?;
                stream.set_read_timeout(Some(CLOSE_TIMEOUT))?;
                (&mut stream).take(4_096).read_to_end(&mut rest)?;
            }
            Self::Unix(mut stream) => {
                stream.shutdown(Shutdown::Write)?;
                stream.set_read_timeout(Some(CLOSE_TIMEOUT))?;
                (&mut stream).take(4_096).read_to_end(&mut rest)?;
            }
        }
        Ok(())
    }
}

/// Messages on their way.
struct Sender<'a> {
    options: &'a CatOptions,
    fixed_time: Option<(u32, u32)>,
    socket: Option<Socket>,
    /// `(seconds, record)`, as they are printed when they cannot be sent, with their message.
    unsent: Vec<(u32, Vec<u8>, Vec<u8>)>,
    unsent_bytes: usize,
}

impl Sender<'_> {
    fn add(&mut self, record: &[u8]) -> Result<(), CatError> {
        let (seconds, nanoseconds) = self.fixed_time.unwrap_or_else(now);
        let time = match self.options.time_as_integer {
            true => EventTime::Int(seconds.into()),
            false => EventTime::Ext { seconds, nanoseconds },
        };
        let mut message = Vec::new();
        msgpack::write_array_header(&mut message, 2);
        msgpack::write_str(&mut message, self.options.tag.as_bytes());
        msgpack::write_array_header(&mut message, 1);
        msgpack::write_entry(&mut message, time, record);
        self.unsent_bytes += message.len();
        self.unsent.push((seconds, record.to_vec(), message));
        if self.unsent_bytes >= UNSENT_LIMIT_BYTES { self.flush() } else { Ok(()) }
    }

    /// Writes everything out, connecting again as often as `--retry-limit` allows.
    fn flush(&mut self) -> Result<(), CatError> {
        let bytes: Vec<u8> = self.unsent.iter().flat_map(|(_, _, message)| message.iter().copied()).collect();
        if bytes.is_empty() {
            return Ok(());
        }
        let (mut tries, mut wait) = (0, RETRY_WAIT);
        loop {
            match self.write(&bytes) {
                Ok(()) => {
                    self.unsent.clear();
                    self.unsent_bytes = 0;
                    return Ok(());
                }
                Err(error) => {
                    self.socket = None;
                    tries += 1;
                    if tries >= self.options.retry_limit.max(1) {
                        return Err(CatError::Send { target: self.target(), error });
                    }
                    eprintln!(
                        "tributary cat: {}: {error}, next try in {} ms",
                        self.target(),
                        wait.as_millis()
                    );
                    std::thread::sleep(wait);
                    wait *= 2;
                }
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => self.connect()?,
        };
        self.socket.insert(socket).write_all(bytes)
    }

    fn connect(&self) -> io::Result<Socket> {
        if self.options.unix {
            let stream = UnixStream::connect(&self.options.socket)?;
            stream.set_write_timeout(Some(SOCKET_TIMEOUT))?;
            return Ok(Socket::Unix(stream));
        }
        let stream = TcpStream::connect((self.options.host.as_str(), self.options.port))?;
        stream.set_write_timeout(Some(SOCKET_TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Socket::Tcp(stream))
    }

    fn target(&self) -> String {
        match self.options.unix {
            true => self.options.socket.display().to_string(),
            false => format!("{}:{}", self.options.host, self.options.port),
        }
    }

    /// As fluent-cat: `!TIME:JSON`, so that a caller can save them.
    fn print_unsent(&self) {
        for (seconds, record, _) in &self.unsent {
            eprintln!("!{seconds}:{}", as_json(record));
        }
    }

    fn close(&mut self) {
        // An error here says only that the peer did not close in time; the bytes were given to the kernel.
        let _ = self.socket.take().map(Socket::close);
    }
}

/// Seconds and nanoseconds since 1970; 0 when the clock stands before that.
fn now() -> (u32, u32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (u32::try_from(since.as_secs()).unwrap_or(u32::MAX), since.subsec_nanos())
}

/// A record as JSON for messages to people.
fn as_json(record: &[u8]) -> Json {
    Value::decode(record).map_or(Json::Null, |(value, _)| value.to_json())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::net::TcpListener;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: CatOptions,
    }

    fn options(arguments: &[&str]) -> CatOptions {
        Line::parse_from([&["cat"], arguments].concat()).options
    }

    /// What arrives at a listener, and how cat ended.
    fn received(arguments: &[&str], input: &[u8]) -> (Vec<u8>, Result<(), CatError>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port().to_string();
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.read_to_end(&mut bytes).expect("bytes");
            bytes
        });
        let arguments = [arguments, &["-p", &port, "--event-time", "2023-11-14T22:13:20.5Z"]].concat();
        let result = cat(&options(&arguments), input);
        (reader.join().expect("reader"), result)
    }

    #[test]
    fn sends_each_line_as_fluent_cat_does() {
        let (bytes, result) = received(&["app.web"], b"{\"a\":1,\"b\":[null,true,-2,1.5]}\n\n{\"c\":\"x\"}");
        result.expect("sent");
        let head = b"\x92\xa7app.web\x91\x92\xd7\x00\x65\x53\xf1\x00\x1d\xcd\x65\x00";
        let mut expected = head.to_vec();
        expected.extend(b"\x82\xa1a\x01\xa1b\x94\xc0\xc3\xfe\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00");
        expected.extend(head);
        expected.extend(b"\x81\xa1c\xa1x");
        assert_eq!(bytes, expected);
    }

    #[test]
    fn sends_plain_lines_and_whole_seconds() {
        let arguments = ["--none", "--message-key", "m", "--time-as-integer", "t"];
        let (bytes, result) = received(&arguments, b"one\r\n");
        result.expect("sent");
        assert_eq!(bytes, b"\x92\xa1t\x91\x92\xce\x65\x53\xf1\x00\x81\xa1m\xa3one");
    }

    #[test]
    fn sends_msgpack_maps_and_ignores_their_times() {
        let input = b"\x81\xa1a\x01\x92\xd7\x00\x00\x00\x00\x01\x00\x00\x00\x01\x81\xa1a\x02";
        let (bytes, result) = received(&["-f", "msgpack", "--time-as-integer", "t"], input);
        result.expect("sent");
        let head = b"\x92\xa1t\x91\x92\xce\x65\x53\xf1\x00".as_slice();
        assert_eq!(bytes, [head, b"\x81\xa1a\x01", head, b"\x81\xa1a\x02"].concat());
    }

    #[test]
    fn a_bad_line_is_an_error_and_the_good_ones_before_it_are_sent() {
        for (bad, text) in [("[1]", "input must be a map, one a line, got: [1]"), ("{", "line is not JSON: ")]
        {
            let (bytes, result) = received(&["t"], format!("{{\"a\":1}}\n{bad}\n").as_bytes());
            assert!(bytes.ends_with(b"\x81\xa1a\x01"));
            let error = result.expect_err("bad line").to_string();
            assert!(error.starts_with(text), "{error}");
        }
    }

    #[test]
    fn nobody_listening_is_an_error() {
        let closed =
            TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
        let options = options(&["-p", &closed.port().to_string(), "--retry-limit", "1", "t"]);
        assert!(matches!(cat(&options, &b"{\"a\":1}\n"[..]), Err(CatError::Send { .. })));
    }

    #[test]
    fn event_times_as_fluentd_takes_them() {
        assert_eq!(parse_event_time("2023-11-14T22:13:20Z").ok(), Some((1_700_000_000, 0)));
        assert_eq!(parse_event_time("2023-11-15 07:13:20 +0900").ok(), Some((1_700_000_000, 0)));
        assert!(parse_event_time("yesterday").is_err());
        assert!(parse_event_time("1900-01-01T00:00:00Z").is_err());
    }

    #[test]
    fn h_is_the_host_as_in_fluent_cat() {
        assert_eq!(options(&["-h", "log.example", "t"]).host, "log.example");
    }

    #[test]
    fn unsent_records_are_shown_as_json() {
        assert_eq!(as_json(b"\x82\xa1a\x01\xa1b\x92\xa1x\xc0").to_string(), r#"{"a":1,"b":["x",null]}"#);
    }
}
