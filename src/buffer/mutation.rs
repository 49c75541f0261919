//! Switches that take one safety measure out, so that the crash test can show that it would notice. Always off outside
//! tests.

/// One safety measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::enum_variant_names, reason = "each says what is missing")]
pub(super) enum Mutation {
    /// Payload CRCs are not checked.
    NoCrc,
    /// No seal frame is written.
    NoSeal,
    /// Directories are not synced.
    NoDirectorySync,
}

/// Whether the measure is taken out in this thread.
#[cfg(test)]
pub(super) fn active(mutation: Mutation) -> bool {
    ACTIVE.with(|active| active.get() == Some(mutation))
}

/// Whether the measure is taken out.
#[cfg(not(test))]
pub(super) const fn active(_mutation: Mutation) -> bool {
    false
}

#[cfg(test)]
thread_local! {
    static ACTIVE: std::cell::Cell<Option<Mutation>> = const { std::cell::Cell::new(None) };
}

/// Takes a measure out (or puts all back) in this thread.
#[cfg(test)]
#[allow(dead_code, reason = "the crash test uses it")]
pub(super) fn set(mutation: Option<Mutation>) {
    ACTIVE.with(|active| active.set(mutation));
}
