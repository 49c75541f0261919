//! Sockets: listening, dialling, deadlines. Knows no protocol.

pub mod budget;
pub mod heartbeat;
pub mod listener;
