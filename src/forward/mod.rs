//! The forward protocol as pure functions over bytes: what in_forward reads and answers, what out_forward writes.
//!
//! Knows nothing of sockets, tasks, files or plugins. Reading: [`FrameReader`] turns bytes into [`Item`]s;
//! [`mode`] checks the entries of a message without decoding them; [`ack`] writes the answer. Writing: [`encode`].
//! Source: Fluentd's forward protocol specification v1 and `in_forward.rb`, `out_forward.rb`.

pub mod ack;
pub mod encode;
mod frame;
mod inflate;
pub mod mode;
mod options;
mod wire;

pub use frame::{
    Compressed, FrameError, FrameReader, Item, MESSAGE_SIZE_LIMIT_BYTES, Message, Mode, ReaderSettings,
};
pub use inflate::InflateError;
pub use mode::{Dropped, InvalidEntry};
pub use options::{ChunkOption, Compression, Options};

#[cfg(test)]
pub(crate) mod tests;

/// Feeds arbitrary bytes to the frame reader, whole and in pieces cut where the bytes themselves say, and checks
/// that both give the same events. The entry of the fuzz target `frame_reader`; panics are findings.
pub fn fuzz_frame_reader(data: &[u8]) {
    let Some((&seed, stream)) = data.split_first() else { return };
    let whole = replay(stream, stream.len().max(1));
    let pieces = replay(stream, usize::from(seed).max(1));
    assert_eq!(whole, pieces, "cutting the stream every {seed} bytes changes what is read");
}

/// Tag and entries.
type Run = (Vec<u8>, Vec<u8>);

/// Everything that one stream yields: events, chunk ids in order, and how it ended.
type Replay = (Vec<Run>, Vec<Vec<u8>>, Option<String>);

fn replay(stream: &[u8], piece_bytes: usize) -> Replay {
    let settings = ReaderSettings {
        message_size_limit: 1 << 20,
        decompression_size_limit: 1 << 20,
        ..ReaderSettings::default()
    };
    let mut reader = FrameReader::new(settings);
    let mut buffer = bytes::BytesMut::new();
    let now = crate::event::EventTime::Int(1);
    let mut events: Vec<Run> = Vec::new();
    let mut chunks: Vec<Vec<u8>> = Vec::new();
    let mut end = None;
    'stream: for piece in stream.chunks(piece_bytes) {
        buffer.extend_from_slice(piece);
        loop {
            let message = match reader.next(&mut buffer, now) {
                Item::Incomplete => break,
                Item::Heartbeat | Item::Odd(_) | Item::Oversize { .. } => continue,
                Item::Message(message) => Ok(message),
                Item::Compressed(compressed) => compressed.inflate(),
                Item::Fatal(error) => Err(error),
            };
            match message {
                Ok(message) => {
                    assert_eq!(message.stream.iter().count(), message.stream.count);
                    let tag = message.stream.tag.as_bytes();
                    // Runs are joined as far as one read reaches, which is not the same in both replays.
                    match events.last_mut() {
                        Some((last, entries)) if last == tag => {
                            entries.extend_from_slice(&message.stream.entries)
                        }
                        _ if message.stream.count == 0 => {}
                        _ => events.push((tag.to_vec(), message.stream.entries.to_vec())),
                    }
                    chunks.extend(message.options.chunk.map(|chunk| chunk.bytes.to_vec()));
                }
                Err(error) => {
                    end = Some(error.to_string());
                    break 'stream;
                }
            }
        }
    }
    // How many bytes a message that is too large needs is seen at different points.
    let end = end.map(|text| if text.contains("larger than") { String::from("too large") } else { text });
    (events, chunks, end)
}
