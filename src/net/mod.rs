//! Sockets: listening, dialling, deadlines. Knows no protocol.

pub mod budget;
pub mod dial;
pub mod heartbeat;
pub mod listener;
pub mod resolve;
