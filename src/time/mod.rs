//! Moments as text and in zones, as Ruby does it: shared by everything that prints a time or cuts time slots. Pure.

mod strftime;
mod zone;

pub use strftime::{BrokenTime, TimeFormat, write_iso8601};
#[cfg(test)]
pub(crate) use zone::tests::with_local_zone;
pub use zone::{UnknownZone, Zone};
