//! Ruby's `strftime` over event times.
//!
//! An own small table instead of jiff's, because Ruby is the oracle: `%L`, `%3N`, `%-d`, `%^a`, `%:z`, and codes that
//! Ruby does not know stay in the text as they are.

use std::fmt;

use super::zone::Zone;
use crate::event::EventTime;

/// Widest padding that a format may ask for (`%10N`, `%030Y`): Ruby allows more, nobody needs it, and an unbounded
/// width would let one parameter eat the memory.
const MAX_WIDTH: usize = 1024;

pub(super) const SECONDS_PER_DAY: i64 = 86_400;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A moment broken into calendar fields in one zone.
#[derive(Clone, Debug, Default)]
pub struct BrokenTime {
    unix_seconds: i64,
    nanoseconds: u32,
    year: i64,
    month: u32,
    day: u32,
    hour: u32,
    minute: u32,
    second: u32,
    /// 0 is Sunday.
    weekday: u32,
    /// 1 is 1 January.
    day_of_year: u32,
    offset_seconds: i64,
    abbreviation: String,
    utc: bool,
}

impl BrokenTime {
    /// The fields of a moment in a zone.
    pub fn new(time: EventTime, zone: &Zone) -> Self {
        let mut broken = Self::default();
        broken.set(time, zone);
        broken
    }

    /// As `new`, keeping the allocation of the abbreviation.
    pub fn set(&mut self, time: EventTime, zone: &Zone) {
        let unix_seconds = time.seconds();
        let offset = zone.offset_at(unix_seconds, &mut self.abbreviation);
        let local = unix_seconds.saturating_add(offset);
        let days = local.div_euclid(SECONDS_PER_DAY);
        let of_day = u32::try_from(local.rem_euclid(SECONDS_PER_DAY)).unwrap_or(0);
        let (year, month, day) = civil_from_days(days);
        self.unix_seconds = unix_seconds;
        self.nanoseconds = time.nanoseconds().min(999_999_999);
        (self.year, self.month, self.day) = (year, month, day);
        (self.hour, self.minute, self.second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        // 1970-01-01 was a Thursday.
        self.weekday = u32::try_from((days.rem_euclid(7) + 4) % 7).unwrap_or(0);
        self.day_of_year = u32::try_from(days - days_from_civil(year, 1, 1) + 1).unwrap_or(1);
        self.offset_seconds = offset;
        self.utc = matches!(zone, Zone::Utc);
    }

    /// Another moment of the same second.
    pub fn set_nanoseconds(&mut self, nanoseconds: u32) {
        self.nanoseconds = nanoseconds.min(999_999_999);
    }

    /// Week of the year, 00..53, weeks beginning on the given weekday (0 Sunday, 1 Monday).
    fn week_of_year(&self, first_weekday: u32) -> u32 {
        let since_first = (self.weekday + 7 - first_weekday) % 7;
        (self.day_of_year + 6 - since_first) / 7
    }

    /// ISO 8601 week-based year and week.
    fn iso_week(&self) -> (i64, u32) {
        let iso_weekday = if self.weekday == 0 { 7 } else { self.weekday };
        let week = (self.day_of_year + 9 - iso_weekday) / 7;
        if week == 0 {
            return (self.year - 1, iso_weeks_in(self.year - 1));
        }
        if week == 53 && iso_weeks_in(self.year) == 52 { (self.year + 1, 1) } else { (self.year, week) }
    }

    fn hour12(&self) -> u32 {
        match self.hour % 12 {
            0 => 12,
            hour => hour,
        }
    }
}

/// 52 or 53: a year has 53 ISO weeks when it begins on a Thursday, or on a Wednesday and is a leap year.
fn iso_weeks_in(year: i64) -> u32 {
    let first = (days_from_civil(year, 1, 1).rem_euclid(7) + 4) % 7;
    let leap = days_from_civil(year + 1, 1, 1) - days_from_civil(year, 1, 1) == 366;
    if first == 4 || (first == 3 && leap) { 53 } else { 52 }
}

/// Proleptic Gregorian date of a day number (0 is 1970-01-01); years of 400-year eras that begin on 1 March, so that
/// the leap day is the last of its year.
fn civil_from_days(days: i64) -> (i64, u32, u32) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, u32::try_from(month).unwrap_or(1), u32::try_from(day).unwrap_or(1))
}

/// The inverse of [`civil_from_days`].
fn days_from_civil(year: i64, month: u32, day: u32) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted_month = i64::from((month + 9) % 12);
    let day_of_year = (153 * shifted_month + 2) / 5 + i64::from(day) - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Padding {
    Default,
    None,
    Zero,
    Blank,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Directive {
    code: u8,
    padding: Padding,
    upper: bool,
    swap_case: bool,
    colons: u8,
    width: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    Literal(String),
    Directive(Directive),
}

/// A `strftime` format, read once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeFormat {
    items: Vec<Item>,
    subsecond: bool,
    unknown: bool,
}

impl TimeFormat {
    /// Reads a format. Nothing is an error: what Ruby does not know stays as literal text.
    pub fn parse(format: &str) -> Self {
        let mut items = Vec::new();
        let mut unknown = false;
        let mut rest = format;
        while let Some(start) = rest.find('%') {
            let (literal, from_percent) = rest.split_at(start);
            push_literal(&mut items, literal);
            match parse_directive(from_percent.as_bytes()) {
                Some((directive, length)) => {
                    match expansion(directive.code) {
                        Some(expanded) if directive.width.is_none() && !directive.upper => {
                            items.extend(Self::parse(expanded).items)
                        }
                        _ => items.push(Item::Directive(directive)),
                    }
                    rest = from_percent.get(length..).unwrap_or("");
                }
                None => {
                    unknown = true;
                    push_literal(&mut items, "%");
                    rest = from_percent.get(1..).unwrap_or("");
                }
            }
        }
        push_literal(&mut items, rest);
        let subsecond =
            items.iter().any(|item| matches!(item, Item::Directive(d) if matches!(d.code, b'N' | b'L')));
        Self { items, subsecond, unknown }
    }

    /// True when two moments of one second may print differently.
    pub fn has_subsecond(&self) -> bool {
        self.subsecond
    }

    /// True when some `%` begins no code, so that it stays in the text.
    pub fn has_unknown_codes(&self) -> bool {
        self.unknown
    }

    /// True when the text has any time code.
    pub fn has_codes(&self) -> bool {
        self.items.iter().any(|item| matches!(item, Item::Directive(d) if d.code != b'%'))
    }

    /// Appends the text of a moment.
    pub fn format(&self, time: &BrokenTime, out: &mut Vec<u8>) {
        for item in &self.items {
            match item {
                Item::Literal(text) => out.extend_from_slice(text.as_bytes()),
                Item::Directive(directive) => write_directive(directive, time, out),
            }
        }
    }

    /// The text of a moment in a zone, for places off the event path.
    pub fn text(&self, time: EventTime, zone: &Zone) -> String {
        let mut out = Vec::new();
        self.format(&BrokenTime::new(time, zone), &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }
}

fn push_literal(items: &mut Vec<Item>, text: &str) {
    match items.last_mut() {
        _ if text.is_empty() => {}
        Some(Item::Literal(last)) => last.push_str(text),
        _ => items.push(Item::Literal(text.to_owned())),
    }
}

/// Codes that stand for other codes.
fn expansion(code: u8) -> Option<&'static str> {
    Some(match code {
        b'c' => "%a %b %e %H:%M:%S %Y",
        b'D' | b'x' => "%m/%d/%y",
        b'F' => "%Y-%m-%d",
        b'T' | b'X' => "%H:%M:%S",
        b'R' => "%H:%M",
        b'r' => "%I:%M:%S %p",
        b'v' => "%e-%^b-%Y",
        b'+' => "%a %b %e %H:%M:%S %Z %Y",
        _ => return None,
    })
}

/// Reads `%`, flags, width, colons, code; gives the directive and its length in bytes, or nothing when Ruby would
/// print the text unchanged.
fn parse_directive(text: &[u8]) -> Option<(Directive, usize)> {
    let mut directive = Directive {
        code: 0,
        padding: Padding::Default,
        upper: false,
        swap_case: false,
        colons: 0,
        width: None,
    };
    let mut position = 1;
    loop {
        let byte = *text.get(position)?;
        position += 1;
        match byte {
            b'-' if directive.width.is_none() => directive.padding = Padding::None,
            b'_' if directive.width.is_none() => directive.padding = Padding::Blank,
            b'0' if directive.width.is_none() => directive.padding = Padding::Zero,
            b'^' if directive.width.is_none() => directive.upper = true,
            b'#' if directive.width.is_none() => directive.swap_case = true,
            b'0'..=b'9' => {
                let width = directive.width.unwrap_or(0) * 10 + usize::from(byte - b'0');
                if width > MAX_WIDTH {
                    return None;
                }
                directive.width = Some(width);
            }
            b':' if directive.colons < 3 => directive.colons += 1,
            b'E' | b'O' => {}
            code => {
                if directive.colons > 0 && code != b'z' {
                    return None;
                }
                directive.code = code;
                return b"YCyGgmBbhdejHkIlMSLNzZAauwUVWpPsnt%cDxFTXRrv+"
                    .contains(&code)
                    .then_some((directive, position));
            }
        }
    }
}

fn write_directive(directive: &Directive, time: &BrokenTime, out: &mut Vec<u8>) {
    let mut number = |value: i64, width: usize, blank: bool| {
        write_number(directive, value, width, blank, out);
    };
    match directive.code {
        b'Y' => number(time.year, if time.year < 0 { 5 } else { 4 }, false),
        b'C' => number(time.year.div_euclid(100), 2, false),
        b'y' => number(time.year.rem_euclid(100), 2, false),
        b'G' => number(time.iso_week().0, 4, false),
        b'g' => number(time.iso_week().0.rem_euclid(100), 2, false),
        b'm' => number(time.month.into(), 2, false),
        b'd' => number(time.day.into(), 2, false),
        b'e' => number(time.day.into(), 2, true),
        b'j' => number(time.day_of_year.into(), 3, false),
        b'H' => number(time.hour.into(), 2, false),
        b'k' => number(time.hour.into(), 2, true),
        b'I' => number(time.hour12().into(), 2, false),
        b'l' => number(time.hour12().into(), 2, true),
        b'M' => number(time.minute.into(), 2, false),
        b'S' => number(time.second.into(), 2, false),
        b'u' => number(if time.weekday == 0 { 7 } else { time.weekday.into() }, 1, false),
        b'w' => number(time.weekday.into(), 1, false),
        b'U' => number(time.week_of_year(0).into(), 2, false),
        b'W' => number(time.week_of_year(1).into(), 2, false),
        b'V' => number(time.iso_week().1.into(), 2, false),
        b's' => number(time.unix_seconds, 1, false),
        b'L' => write_fraction(time.nanoseconds, directive.width.unwrap_or(3), out),
        b'N' => write_fraction(time.nanoseconds, directive.width.unwrap_or(9), out),
        b'z' => write_offset(directive, time.offset_seconds, out),
        code => write_text(directive, code, time, out),
    }
}

fn write_number(directive: &Directive, value: i64, width: usize, blank: bool, out: &mut Vec<u8>) {
    let fill = match directive.padding {
        Padding::None => None,
        Padding::Zero => Some(b'0'),
        Padding::Blank => Some(b' '),
        Padding::Default => Some(if blank { b' ' } else { b'0' }),
    };
    let width = directive.width.unwrap_or(width);
    let mut buffer = [0_u8; 20];
    let mut start = buffer.len();
    let mut magnitude = value.unsigned_abs();
    loop {
        start -= 1;
        // `% 10` fits u8.
        buffer[start] = b'0' + (magnitude % 10) as u8;
        magnitude /= 10;
        if magnitude == 0 {
            break;
        }
    }
    let digits = &buffer[start..];
    let length = digits.len() + usize::from(value < 0);
    let missing = width.saturating_sub(length);
    if fill == Some(b' ') {
        out.extend(std::iter::repeat_n(b' ', missing));
    }
    if value < 0 {
        out.push(b'-');
    }
    if fill == Some(b'0') {
        out.extend(std::iter::repeat_n(b'0', missing));
    }
    out.extend_from_slice(digits);
}

/// The first `width` digits of the fraction, cut, not rounded; zeros beyond nanoseconds.
fn write_fraction(nanoseconds: u32, width: usize, out: &mut Vec<u8>) {
    let mut divisor = 100_000_000;
    for _ in 0..width {
        let digit = nanoseconds.checked_div(divisor).map_or(0, |quotient| quotient % 10);
        out.push(b'0' + digit as u8);
        divisor /= 10;
    }
}

fn write_offset(directive: &Directive, offset: i64, out: &mut Vec<u8>) {
    let magnitude = offset.unsigned_abs();
    let (hours, minutes, seconds) = (magnitude / 3600, magnitude / 60 % 60, magnitude % 60);
    let rest = match directive.colons {
        0 => format!("{minutes:02}"),
        1 => format!(":{minutes:02}"),
        2 => format!(":{minutes:02}:{seconds:02}"),
        _ if seconds > 0 => format!(":{minutes:02}:{seconds:02}"),
        _ if minutes > 0 => format!(":{minutes:02}"),
        _ => String::new(),
    };
    let sign = if offset < 0 { '-' } else { '+' };
    // The width counts the whole text; zeros go between the sign and the hours.
    let hour_width = directive.width.unwrap_or(0).saturating_sub(1 + rest.len());
    let text = match directive.padding {
        Padding::None => format!("{sign}{hours}{rest}"),
        Padding::Blank => {
            format!("{:>width$}{rest}", format!("{sign}{hours}"), width = hour_width.max(2) + 1)
        }
        _ => format!("{sign}{hours:0width$}{rest}", width = hour_width.max(2)),
    };
    out.extend_from_slice(text.as_bytes());
}

fn write_text(directive: &Directive, code: u8, time: &BrokenTime, out: &mut Vec<u8>) {
    let weekday = WEEKDAYS.get(time.weekday as usize).copied().unwrap_or("");
    let month = MONTHS.get((time.month as usize).wrapping_sub(1)).copied().unwrap_or("");
    let afternoon = time.hour >= 12;
    let mut text = match code {
        b'A' => weekday.to_owned(),
        b'a' => weekday.get(..3).unwrap_or("").to_owned(),
        b'B' => month.to_owned(),
        b'b' | b'h' => month.get(..3).unwrap_or("").to_owned(),
        b'p' => if afternoon { "PM" } else { "AM" }.to_owned(),
        b'P' => if afternoon { "pm" } else { "am" }.to_owned(),
        b'Z' => time.abbreviation.clone(),
        b'n' => "\n".to_owned(),
        b't' => "\t".to_owned(),
        b'%' => "%".to_owned(),
        _ => {
            let mut expanded = Vec::new();
            TimeFormat::parse(expansion(code).unwrap_or("")).format(time, &mut expanded);
            String::from_utf8_lossy(&expanded).into_owned()
        }
    };
    if directive.swap_case && matches!(code, b'p' | b'Z') {
        text.make_ascii_lowercase();
    } else if directive.upper || directive.swap_case {
        text.make_ascii_uppercase();
    }
    let missing = directive.width.unwrap_or(0).saturating_sub(text.len());
    let fill = if directive.padding == Padding::Zero { b'0' } else { b' ' };
    if directive.padding != Padding::None {
        out.extend(std::iter::repeat_n(fill, missing));
    }
    out.extend_from_slice(text.as_bytes());
}

/// Appends ISO 8601 without fraction, `2020-01-02T03:04:05+00:00`; the zone UTC (not merely offset 0) prints `Z`.
pub fn write_iso8601(time: &BrokenTime, out: &mut Vec<u8>) {
    let plain = Directive {
        code: 0,
        padding: Padding::Default,
        upper: false,
        swap_case: false,
        colons: 1,
        width: None,
    };
    let mut field = |value: i64, width: usize, after: Option<u8>| {
        write_number(&plain, value, width, false, out);
        out.extend(after);
    };
    field(time.year, 4, Some(b'-'));
    field(time.month.into(), 2, Some(b'-'));
    field(time.day.into(), 2, Some(b'T'));
    field(time.hour.into(), 2, Some(b':'));
    field(time.minute.into(), 2, Some(b':'));
    field(time.second.into(), 2, None);
    if time.utc {
        out.push(b'Z');
    } else {
        write_offset(&plain, time.offset_seconds, out);
    }
}

impl fmt::Display for TimeFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for item in &self.items {
            match item {
                Item::Literal(text) => f.write_str(text)?,
                Item::Directive(directive) => write!(f, "%{}", char::from(directive.code))?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: EventTime = EventTime::Ext { seconds: 1_577_934_245, nanoseconds: 123_456_789 };

    fn text(format: &str, time: EventTime, zone: &str) -> String {
        TimeFormat::parse(format).text(time, &Zone::parse(zone).expect(zone))
    }

    #[test]
    fn codes_print_as_rubys() {
        for (format, expected) in [
            ("%Y-%m-%d %H:%M:%S.%N %z", "2020-01-02 03:04:05.123456789 +0000"),
            ("%L|%3N|%6N|%12N|%1L", "123|123|123456|123456789000|1"),
            ("%-d %_d %e %03d %-m/%-d/%-H", "2  2  2 002 1/2/3"),
            ("%a %A %^a %^B %b %h %#p %p %P", "Thu Thursday THU JANUARY Jan Jan am AM am"),
            ("%j %U %W %V %G %g %u %w %C %y", "002 00 00 01 2020 20 4 4 20 20"),
            ("%I %l %k %R %T %D %F %x %X", "03  3  3 03:04 03:04:05 01/02/20 2020-01-02 01/02/20 03:04:05"),
            ("%c|%r|%v|%n%t%%", "Thu Jan  2 03:04:05 2020|03:04:05 AM| 2-JAN-2020|\n\t%"),
            ("%s %:z %::z %z", "1577934245 +00:00 +00:00:00 +0000"),
            ("%10Y|%-y|%_5m|%010s|%10a|%^10a", "0000002020|20|    1|1577934245|       Thu|       THU"),
            ("%Q %! 100% %", "%Q %! 100% %"),
            ("é%Yé", "é2020é"),
        ] {
            assert_eq!(text(format, SAMPLE, "+00:00"), expected, "{format}");
        }
    }

    #[test]
    fn zones_shift_and_name() {
        assert_eq!(text("%F %T %z %Z", SAMPLE, "Asia/Tokyo"), "2020-01-02 12:04:05 +0900 JST");
        assert_eq!(text("%F %T %z", SAMPLE, "America/New_York"), "2020-01-01 22:04:05 -0500");
        assert_eq!(text("%T %:z", SAMPLE, "-0330"), "23:34:05 -03:30");
        assert_eq!(text("%H", SAMPLE, "+05"), "08");
        for bad in ["JST", "UTC", "Asia/Nowhere", "+24:00", "+1", "", "a//b", "+09:60", "../etc/passwd"] {
            assert!(Zone::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn weeks_around_new_year() {
        // Ruby: Time.utc(2021,1,3).strftime("%G-%V %U %W"), and so on.
        for (unix, expected) in [
            (1_609_632_000, "2020-53 01 00"), // Sunday 2021-01-03
            (1_609_718_400, "2021-01 01 01"), // Monday 2021-01-04
            (1_230_681_600, "2009-01 52 52"), // Wednesday 2008-12-31
            (1_483_228_800, "2016-52 01 00"), // Sunday 2017-01-01
        ] {
            assert_eq!(text("%G-%V %U %W", EventTime::Int(unix), "+00:00"), expected, "{unix}");
        }
    }

    #[test]
    fn any_time_prints_without_panic_and_dates_round_trip() {
        for unix in [i64::MIN, i64::MIN + 1, -1, 0, i64::from(u32::MAX), i64::MAX] {
            let _ = text("%c %G %V %U %W %j %s %N %L %z", EventTime::Int(unix), "Asia/Tokyo");
        }
        for days in (-800_000..800_000).step_by(37) {
            let (year, month, day) = civil_from_days(days);
            assert_eq!(days_from_civil(year, month, day), days);
        }
        assert_eq!(civil_from_days(11_016), (2000, 2, 29));
    }

    #[test]
    fn iso8601_marks_utc() {
        let iso = |zone: &Zone| {
            let mut out = Vec::new();
            write_iso8601(&BrokenTime::new(SAMPLE, zone), &mut out);
            String::from_utf8(out).expect("ASCII")
        };
        assert_eq!(iso(&Zone::Utc), "2020-01-02T03:04:05Z");
        assert_eq!(iso(&Zone::Fixed(0)), "2020-01-02T03:04:05+00:00");
        assert_eq!(iso(&Zone::Fixed(-19_800)), "2020-01-01T21:34:05-05:30");
    }
}
