//! Sockets: listening, dialling, deadlines. Knows no protocol.

pub mod dial;
pub mod resolve;
