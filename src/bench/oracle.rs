//! The oracle: every acknowledged event is a debt. It must have arrived; what was never sent must not.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::PathBuf;
use std::process::ExitCode;

use super::count::count_files;
use super::journal::Debts;
use super::tally::Tally;

/// Ranges that a message names before it says "and more".
const RANGES_SHOWN: usize = 5;

/// `tributary bench judge`
#[derive(Clone, Debug, clap::Args)]
pub struct JudgeOptions {
    /// Journals of `bench send --journal`
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    pub journal: Vec<PathBuf>,
    /// Seen files of `bench sink --seen`
    #[arg(long, num_args = 1.., value_name = "FILE", required_unless_present = "files")]
    pub seen: Vec<PathBuf>,
    /// Output files with one event a line
    #[arg(long, num_args = 1.., value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// How many arrivals of an event that had arrived before are allowed
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub max_repeats: u64,
    /// How many lines that are not events are allowed in the files
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub max_unreadable: u64,
}

/// What is allowed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bounds {
    /// Arrivals of an event that had arrived before.
    pub max_repeats: u64,
    /// Lines that are not events.
    pub max_unreadable: u64,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Acknowledged, never arrived.
    Lost {
        /// The run.
        run: u64,
        /// How many events.
        events: u64,
        /// The first ranges, `(first seq, count)`.
        ranges: Vec<(u64, u64)>,
    },
    /// Arrived, never sent.
    Invented {
        /// The run.
        run: u64,
        /// How many events.
        events: u64,
        /// The first ranges, `(first seq, count)`.
        ranges: Vec<(u64, u64)>,
    },
    /// Events of a run that has no journal.
    UnknownRun {
        /// The run.
        run: u64,
        /// How many events.
        events: u64,
    },
    /// Records that no generator made.
    Foreign {
        /// How many.
        events: u64,
    },
    /// More repeats than allowed.
    Repeated {
        /// How many.
        events: u64,
        /// How many are allowed.
        allowed: u64,
        /// Run and first ranges.
        ranges: Vec<(u64, u64)>,
    },
    /// More lines that are not events than allowed.
    Unreadable {
        /// How many.
        lines: u64,
        /// How many are allowed.
        allowed: u64,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost { run, events, ranges } => {
                write!(f, "lost: {events} events of run {run} were acknowledged and did not arrive: ")?;
                write_ranges(f, ranges)
            }
            Self::Invented { run, events, ranges } => {
                write!(f, "invented: {events} events of run {run} arrived and were never sent: ")?;
                write_ranges(f, ranges)
            }
            Self::UnknownRun { run, events } => {
                write!(f, "invented: {events} events of run {run} arrived, which has no journal")
            }
            Self::Foreign { events } => write!(f, "invented: {events} events without run and seq arrived"),
            Self::Repeated { events, allowed, ranges } => {
                write!(f, "repeated: {events} repeats, allowed are {allowed}: ")?;
                write_ranges(f, ranges)
            }
            Self::Unreadable { lines, allowed } => {
                write!(f, "unreadable: {lines} lines are not events, allowed are {allowed}")
            }
        }
    }
}

fn write_ranges(f: &mut fmt::Formatter<'_>, ranges: &[(u64, u64)]) -> fmt::Result {
    for (place, (first, count)) in ranges.iter().take(RANGES_SHOWN).enumerate() {
        let comma = if place > 0 { ", " } else { "" };
        write!(f, "{comma}seq {first} to {}", first + count - 1)?;
    }
    if ranges.len() > RANGES_SHOWN { write!(f, " and more") } else { Ok(()) }
}

/// The oracle's answer.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Events acknowledged in all journals.
    pub acknowledged: u64,
    /// Different events that arrived.
    pub arrived: u64,
    /// Arrivals of events that had arrived before.
    pub repeated: u64,
    /// What was broken; empty when all is well.
    pub violations: Vec<Violation>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { acknowledged, arrived, repeated, violations } = self;
        write!(f, "{acknowledged} events acknowledged, {arrived} arrived, {repeated} repeats")?;
        if violations.is_empty() {
            return write!(f, ": every debt is paid");
        }
        for violation in violations {
            write!(f, "\n{violation}")?;
        }
        Ok(())
    }
}

/// Compares debts with arrivals.
pub fn judge(debts: &[Debts], arrived: &Tally, bounds: Bounds) -> Verdict {
    let mut violations = Vec::new();
    for owed in debts {
        let seen = arrived.run(owed.run);
        let mut lost: Vec<(u64, u64)> = Vec::new();
        for (first, count) in owed.acknowledged.ranges() {
            match seen {
                Some(run) => lost.extend(run.seen.missing(first, first + count)),
                None => lost.push((first, count)),
            }
        }
        let events = lost.iter().map(|(_, count)| count).sum();
        if events > 0 {
            lost.truncate(RANGES_SHOWN + 1);
            violations.push(Violation::Lost { run: owed.run, events, ranges: lost });
        }
        if let (Some(run), Some(sent)) = (seen, owed.sent) {
            let mut ranges: Vec<_> = run.seen.ranges().filter_map(|range| above(range, sent)).collect();
            let events = ranges.iter().map(|(_, count)| count).sum::<u64>() + run.out_of_range;
            if events > 0 {
                ranges.truncate(RANGES_SHOWN + 1);
                violations.push(Violation::Invented { run: owed.run, events, ranges });
            }
        }
    }
    for run in arrived.runs().iter().filter(|run| debts.iter().all(|owed| owed.run != run.run)) {
        violations.push(Violation::UnknownRun { run: run.run, events: run.received });
    }
    if arrived.foreign > 0 {
        violations.push(Violation::Foreign { events: arrived.foreign });
    }
    let repeated = arrived.repeated();
    if repeated > bounds.max_repeats {
        let ranges = arrived.runs().iter().flat_map(|run| run.seen_again.ranges());
        let ranges = ranges.take(RANGES_SHOWN + 1).collect();
        violations.push(Violation::Repeated { events: repeated, allowed: bounds.max_repeats, ranges });
    }
    if arrived.unreadable > bounds.max_unreadable {
        violations.push(Violation::Unreadable { lines: arrived.unreadable, allowed: bounds.max_unreadable });
    }
    let acknowledged = debts.iter().map(|owed| owed.acknowledged.len()).sum();
    Verdict { acknowledged, arrived: arrived.distinct(), repeated, violations }
}

/// The part of a range that lies at or above a number.
fn above((first, count): (u64, u64), floor: u64) -> Option<(u64, u64)> {
    let start = first.max(floor);
    (start < first + count).then(|| (start, first + count - start))
}

/// Runs `bench judge`: 0 when every debt is paid, 1 on a violation, 2 when a file cannot be read.
pub fn run(options: JudgeOptions) -> ExitCode {
    match judge_files(&options) {
        Ok(verdict) => {
            println!("{verdict}");
            ExitCode::from(u8::from(!verdict.violations.is_empty()))
        }
        Err(error) => {
            eprintln!("bench judge: {error}");
            ExitCode::from(2)
        }
    }
}

fn judge_files(options: &JudgeOptions) -> io::Result<Verdict> {
    let named = |path: &PathBuf, error: io::Error| {
        io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    };
    let mut debts = Vec::new();
    for path in &options.journal {
        debts.push(Debts::load(path).map_err(|error| named(path, error))?);
    }
    let mut arrived = count_files(&options.files)?;
    for path in &options.seen {
        let seen = File::open(path).and_then(|file| Tally::load(BufReader::new(file)));
        arrived.merge(&seen.map_err(|error| named(path, error))?);
    }
    let bounds = Bounds { max_repeats: options.max_repeats, max_unreadable: options.max_unreadable };
    Ok(judge(&debts, &arrived, bounds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::Mark;
    use crate::bench::tally::SEQ_LIMIT;

    fn owed(run: u64, acknowledged: std::ops::Range<u64>, sent: u64) -> Debts {
        let mut debts = Debts { run, sent: Some(sent), ..Debts::default() };
        acknowledged.for_each(|seq| _ = debts.acknowledged.insert(seq));
        debts
    }

    fn arrived(run: u64, numbers: impl IntoIterator<Item = u64>) -> Tally {
        let mut tally = Tally::default();
        numbers.into_iter().for_each(|seq| tally.count(Mark { run, seq, sent_ns: 0 }));
        tally
    }

    fn violations(tally: &Tally) -> Vec<Violation> {
        // 0 to 99 acknowledged, 100 to 109 sent without an answer: those may arrive or not.
        judge(&[owed(1, 0..100, 110)], tally, Bounds::default()).violations
    }

    #[test]
    fn a_paid_debt_passes_whether_or_not_the_unanswered_ones_arrived() {
        assert_eq!(violations(&arrived(1, 0..100)), []);
        assert_eq!(violations(&arrived(1, 0..110)), []);
    }

    #[test]
    fn each_single_lost_event_is_found() {
        for gone in 0..100 {
            let found = violations(&arrived(1, (0..110).filter(|seq| *seq != gone)));
            assert_eq!(found, [Violation::Lost { run: 1, events: 1, ranges: vec![(gone, 1)] }]);
        }
        let nothing = violations(&Tally::default());
        assert_eq!(nothing, [Violation::Lost { run: 1, events: 100, ranges: vec![(0, 100)] }]);
    }

    #[test]
    fn each_single_repeat_is_found_and_the_bound_is_exact() {
        for twice in 0..110 {
            let tally = arrived(1, (0..110).chain([twice]));
            let repeated = Violation::Repeated { events: 1, allowed: 0, ranges: vec![(twice, 1)] };
            assert_eq!(violations(&tally), [repeated]);
            let bounds = Bounds { max_repeats: 1, ..Bounds::default() };
            assert_eq!(judge(&[owed(1, 0..100, 110)], &tally, bounds).violations, []);
        }
    }

    #[test]
    fn each_invented_event_is_found() {
        for invented in [110, 111, 5_000] {
            let found = violations(&arrived(1, (0..110).chain([invented])));
            assert_eq!(found, [Violation::Invented { run: 1, events: 1, ranges: vec![(invented, 1)] }]);
        }
        let huge = violations(&arrived(1, (0..110).chain([SEQ_LIMIT])));
        assert_eq!(huge, [Violation::Invented { run: 1, events: 1, ranges: vec![] }]);
        let mut other_run = arrived(1, 0..110);
        other_run.count(Mark { run: 2, seq: 0, sent_ns: 0 });
        assert_eq!(violations(&other_run), [Violation::UnknownRun { run: 2, events: 1 }]);
        let mut foreign = arrived(1, 0..110);
        foreign.foreign = 1;
        assert_eq!(violations(&foreign), [Violation::Foreign { events: 1 }]);
        let mut torn = arrived(1, 0..110);
        torn.unreadable = 1;
        assert_eq!(violations(&torn), [Violation::Unreadable { lines: 1, allowed: 0 }]);
    }

    #[test]
    fn the_text_says_what_where_and_how_many() {
        let verdict = judge(&[owed(1, 0..100, 110)], &arrived(1, (0..110).step_by(2)), Bounds::default());
        assert_eq!(
            verdict.to_string(),
            "100 events acknowledged, 55 arrived, 0 repeats\n\
             lost: 50 events of run 1 were acknowledged and did not arrive: seq 1 to 1, seq 3 to 3, seq 5 to 5, \
             seq 7 to 7, seq 9 to 9 and more"
        );
        let well = judge(&[owed(1, 0..100, 110)], &arrived(1, 0..100), Bounds::default());
        assert_eq!(well.to_string(), "100 events acknowledged, 100 arrived, 0 repeats: every debt is paid");
    }
}
