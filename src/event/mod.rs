//! The traveller: a tag and a run of `[time, record]` pairs that stay msgpack bytes until somebody looks inside.
//!
//! Knows nothing of sockets, files, configuration or plugins.

mod accessor;
mod stream;
mod tag;
mod tagged;
mod time;

pub mod msgpack;
pub mod value;

pub use accessor::{AccessorError, NotAContainer, RecordAccessor};
pub use stream::{Entries, EventStream};
pub use tag::Tag;
pub use tagged::{ChunkEntries, with_tag};
pub use time::EventTime;
pub use value::Value;
