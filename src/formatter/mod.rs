//! Records as text.

pub mod json;
pub mod ruby_text;
pub mod time_format;
pub mod token;
