//! tributary: a Fluentd-compatible log forwarder.
//!
//! The modules stand in the order in which an event passes them; docs/ARCHITECTURE.md is the map.
#![forbid(unsafe_code)]

pub mod event; // the traveller: time, tag, records as bytes

// The blank lines keep rustfmt from sorting the stations.

pub mod input; // station 1: sockets and generators become batches of events

pub mod router; // station 2: label and tag decide the way

pub mod filter; // station 3: events changed or dropped, no I/O

pub mod buffer; // station 4: chunks on disk or in memory

pub mod output; // station 5: chunks leave; flush, retry, destinations

pub mod bench; // the judges: generator, counting sink, oracle
pub mod cli; // command line, exit codes, life cycle
pub mod config; // Fluentd's language; knows no plugin
pub mod formatter; // records as text
pub mod forward; // the wire protocol as pure functions over bytes
pub mod net; // sockets: listen, dial, deadlines
pub mod pipeline; // configuration becomes running parts
pub mod process; // the process itself: daemon, ids, limits, signals
pub mod regexp; // regular expressions with Ruby's meaning
pub mod telemetry; // our own log and metrics
pub mod time; // zones and strftime, as Ruby has them
