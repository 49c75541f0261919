//! Time zones as configurations name them. jiff supplies the offset of a zone at a moment.

use super::strftime::SECONDS_PER_DAY;

/// A time zone: of texts and of time slots.
#[derive(Clone, Debug)]
pub enum Zone {
    /// UTC; `%Z` prints `UTC`, ISO 8601 prints `Z`.
    Utc,
    /// A fixed distance east of UTC in seconds; `%Z` prints nothing, as in Ruby.
    Fixed(i32),
    /// A zone of the system's database, or the process's own zone.
    Named(jiff::tz::TimeZone),
}

/// The text of `timezone` names no zone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unsupported timezone '{0}': expected '+HH:MM', '+HHMM', '+HH', or a name such as 'Asia/Tokyo'")]
pub struct UnknownZone(pub String);

impl Zone {
    /// The zone of the process: `TZ`, else `/etc/localtime`.
    pub fn local() -> Self {
        #[cfg(test)]
        if let Some(zone) = tests::local_zone_of_this_test() {
            return zone;
        }
        Self::Named(jiff::tz::TimeZone::system())
    }

    /// Reads `timezone` or `timekey_zone`: `+HH:MM`, `+HHMM`, `+HH`, `Region/City`, `Region/Sub/City`. Abbreviations such
    /// as `JST` are refused, as Fluentd does, because they are ambiguous.
    pub fn parse(text: &str) -> Result<Self, UnknownZone> {
        let unknown = || UnknownZone(text.to_owned());
        if let Some(offset) = numeric_offset(text) {
            return Ok(Self::Fixed(offset));
        }
        if !(1..=2).contains(&text.matches('/').count()) || text.split('/').any(str::is_empty) {
            return Err(unknown());
        }
        jiff::tz::TimeZone::get(text).map(Self::Named).map_err(|_| unknown())
    }

    /// Seconds east of UTC at that moment, and the abbreviation when the zone has one.
    pub(super) fn offset_at(&self, unix_seconds: i64, abbreviation: &mut String) -> i64 {
        abbreviation.clear();
        match self {
            Self::Utc => abbreviation.push_str("UTC"),
            Self::Fixed(_) => {}
            Self::Named(zone) => {
                let info = zone.to_offset_info(moment(unix_seconds));
                abbreviation.push_str(info.abbreviation());
                return i64::from(info.offset().seconds());
            }
        }
        self.offset_seconds(unix_seconds)
    }

    /// Seconds east of UTC at a moment.
    pub fn offset_seconds(&self, unix_seconds: i64) -> i64 {
        match self {
            Self::Utc => 0,
            Self::Fixed(seconds) => i64::from(*seconds),
            Self::Named(zone) => i64::from(zone.to_offset(moment(unix_seconds)).seconds()),
        }
    }
}

/// jiff covers the years -9999 to 9999; outside, the offset at the border is as good as any.
fn moment(unix_seconds: i64) -> jiff::Timestamp {
    let clamped = unix_seconds.clamp(
        jiff::Timestamp::MIN.as_second().saturating_add(SECONDS_PER_DAY),
        jiff::Timestamp::MAX.as_second().saturating_sub(SECONDS_PER_DAY),
    );
    jiff::Timestamp::from_second(clamped).unwrap_or_default()
}

/// `+HH:MM`, `+HHMM` or `+HH` in seconds.
fn numeric_offset(text: &str) -> Option<i32> {
    let (sign, rest) = match text.as_bytes() {
        [b'+', rest @ ..] => (1, rest),
        [b'-', rest @ ..] => (-1, rest),
        _ => return None,
    };
    let number = |tens: u8, ones: u8| {
        (tens.is_ascii_digit() && ones.is_ascii_digit())
            .then(|| i32::from(tens - b'0') * 10 + i32::from(ones - b'0'))
    };
    let (hours, minutes) = match *rest {
        [a, b] => (number(a, b)?, 0),
        [a, b, c, d] | [a, b, b':', c, d] => (number(a, b)?, number(c, d)?),
        _ => return None,
    };
    (hours <= 23 && minutes <= 59).then_some(sign * (hours * 3600 + minutes * 60))
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::RefCell;

    use super::*;

    thread_local! {
        static LOCAL_ZONE: RefCell<Option<Zone>> = const { RefCell::new(None) };
    }

    pub(super) fn local_zone_of_this_test() -> Option<Zone> {
        LOCAL_ZONE.with(|zone| zone.borrow().clone())
    }

    /// Stands in for the variable `TZ`, which a test cannot set without touching its neighbours.
    pub(crate) fn with_local_zone<T>(name: &str, run: impl FnOnce() -> T) -> T {
        let zone = Zone::Named(jiff::tz::TimeZone::get(name).expect("a zone of the system's database"));
        LOCAL_ZONE.with(|cell| *cell.borrow_mut() = Some(zone));
        let result = run();
        LOCAL_ZONE.with(|cell| *cell.borrow_mut() = None);
        result
    }
}
