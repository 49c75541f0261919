//! What arrived: per run one bit for each event, and counts of repeats, gaps and latencies.

use std::io::{self, BufRead, Write};

use serde_json::json;

use super::histogram::{Histogram, ns_to_ms};
use super::record::Mark;
use super::wire::Sighting;

/// Runs that one sink tells apart; events of further runs count as foreign. Enough for a scenario with many senders.
pub const RUN_LIMIT: usize = 256;
/// Largest sequence number that is kept (8 MiB of bits a run); higher ones are counted, and judged as invented.
pub const SEQ_LIMIT: u64 = 1 << 26;
/// Pauses between arrivals that are reported, longest first.
const GAPS_REPORTED: usize = 10;

/// A set of sequence numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bitmap {
    words: Vec<u64>,
}

impl Bitmap {
    /// Adds a number below [`SEQ_LIMIT`]; true when it was not there.
    pub fn insert(&mut self, seq: u64) -> bool {
        let (word, bit) = ((seq / 64) as usize, 1_u64 << (seq % 64));
        if word >= self.words.len() {
            self.words.resize((word + 1).next_power_of_two(), 0);
        }
        let new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        new
    }

    /// Whether the number is there.
    pub fn contains(&self, seq: u64) -> bool {
        let word = usize::try_from(seq / 64).ok().and_then(|word| self.words.get(word));
        word.is_some_and(|word| word & (1 << (seq % 64)) != 0)
    }

    /// How many numbers are in it.
    pub fn len(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Nothing in it.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// The largest number plus one; 0 when empty.
    pub fn end(&self) -> u64 {
        match self.words.iter().rposition(|word| *word != 0) {
            Some(at) => at as u64 * 64 + 64 - u64::from(self.words[at].leading_zeros()),
            None => 0,
        }
    }

    /// Runs of consecutive numbers, `(first, count)`, in order.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges_where(0, self.end(), true)
    }

    /// Runs of consecutive numbers of `first .. end` that are not in it.
    pub fn missing(&self, first: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges_where(first, end, false)
    }

    fn ranges_where(&self, first: u64, end: u64, wanted: bool) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut at = first;
        std::iter::from_fn(move || {
            let start = self.next_where(at, end, wanted)?;
            let stop = self.next_where(start, end, !wanted).unwrap_or(end);
            at = stop;
            Some((start, stop - start))
        })
    }

    /// The first number from `at` on, below `end`, whose presence is as wanted.
    fn next_where(&self, mut at: u64, end: u64, wanted: bool) -> Option<u64> {
        while at < end {
            let word = self.words.get((at / 64) as usize).copied().unwrap_or(0);
            let candidates = if wanted { word } else { !word } >> (at % 64);
            if candidates != 0 {
                let found = at + u64::from(candidates.trailing_zeros());
                return (found < end).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

/// What arrived of one run.
#[derive(Clone, Debug, Default)]
pub struct RunTally {
    /// The run.
    pub run: u64,
    /// Events, repeats included.
    pub received: u64,
    /// Arrivals of a number that had arrived before.
    pub repeated: u64,
    /// Numbers seen.
    pub seen: Bitmap,
    /// Numbers seen more than once.
    pub seen_again: Bitmap,
    /// Events with a number of [`SEQ_LIMIT`] or more, and the largest such.
    pub out_of_range: u64,
}

/// A pause between two arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// How long nothing arrived.
    pub length_ns: u64,
    /// Wall clock at the end of it, nanoseconds since 1970.
    pub ended_ns: u64,
}

/// Everything that arrived.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    runs: Vec<RunTally>,
    /// Records without run and seq, or of more runs than [`RUN_LIMIT`].
    pub foreign: u64,
    /// Events whose record is not byte for byte as it was made (other encoding, changed fields).
    pub re_encoded: u64,
    /// Events whose time is not the time sent.
    pub time_changed: u64,
    /// Lines of a file that are not an event (torn, not JSON).
    pub unreadable: u64,
    /// From sending to counting.
    pub latency: Histogram,
    gaps: Vec<Gap>,
    last_arrival_ns: Option<u64>,
}

impl Tally {
    /// The runs seen, in order of their first event.
    pub fn runs(&self) -> &[RunTally] {
        &self.runs
    }

    /// What arrived of a run.
    pub fn run(&self, run: u64) -> Option<&RunTally> {
        self.runs.iter().find(|tally| tally.run == run)
    }

    /// Counts events that arrived together at the given wall-clock time.
    pub fn arrive(&mut self, sightings: &[Sighting], now_ns: u64) {
        if sightings.is_empty() {
            return;
        }
        self.note_gap(now_ns);
        for sighting in sightings {
            match *sighting {
                Sighting::Foreign => self.foreign += 1,
                Sighting::Ours { mark, untouched, time_kept } => {
                    self.re_encoded += u64::from(!untouched);
                    self.time_changed += u64::from(!time_kept && mark.sent_ns > 0);
                    if mark.sent_ns > 0 {
                        self.latency.add(now_ns.saturating_sub(mark.sent_ns), 1);
                    }
                    self.count(mark);
                }
            }
        }
    }

    /// Counts one event without looking at clocks.
    pub fn count(&mut self, mark: Mark) {
        let Some(tally) = self.run_mut(mark.run) else {
            self.foreign += 1;
            return;
        };
        tally.received += 1;
        if mark.seq >= SEQ_LIMIT {
            tally.out_of_range += 1;
        } else if !tally.seen.insert(mark.seq) {
            tally.repeated += 1;
            tally.seen_again.insert(mark.seq);
        }
    }

    /// The tally of a run, made when new; None beyond [`RUN_LIMIT`].
    fn run_mut(&mut self, run: u64) -> Option<&mut RunTally> {
        let place = match self.runs.iter().position(|tally| tally.run == run) {
            Some(place) => place,
            None if self.runs.len() < RUN_LIMIT => {
                self.runs.push(RunTally { run, ..RunTally::default() });
                self.runs.len() - 1
            }
            None => return None,
        };
        self.runs.get_mut(place)
    }

    fn note_gap(&mut self, now_ns: u64) {
        if let Some(last) = self.last_arrival_ns.replace(now_ns) {
            let gap = Gap { length_ns: now_ns.saturating_sub(last), ended_ns: now_ns };
            let place = self.gaps.partition_point(|known| known.length_ns >= gap.length_ns);
            if place < GAPS_REPORTED {
                self.gaps.insert(place, gap);
                self.gaps.truncate(GAPS_REPORTED);
            }
        }
    }

    /// The longest pauses, longest first.
    pub fn gaps(&self) -> &[Gap] {
        &self.gaps
    }

    /// Wall clock of the last arrival.
    pub fn last_arrival_ns(&self) -> Option<u64> {
        self.last_arrival_ns
    }

    /// Events of all runs, repeats included.
    pub fn received(&self) -> u64 {
        self.runs.iter().map(|run| run.received).sum()
    }

    /// Different events of all runs.
    pub fn distinct(&self) -> u64 {
        self.runs.iter().map(|run| run.received - run.repeated - run.out_of_range).sum()
    }

    /// Repeats of all runs.
    pub fn repeated(&self) -> u64 {
        self.runs.iter().map(|run| run.repeated).sum()
    }

    /// Holes below each run's largest number; with `expect`, what is missing of that many events in all.
    pub fn lost(&self, expect: Option<u64>) -> u64 {
        match expect {
            Some(expect) => expect.saturating_sub(self.distinct()),
            None => self.runs.iter().map(|run| run.seen.end() - run.seen.len()).sum(),
        }
    }

    /// The summary as JSON.
    pub fn summary(&self, expect: Option<u64>) -> serde_json::Value {
        let runs: Vec<_> = self
            .runs
            .iter()
            .map(|run| {
                json!({
                    "run": run.run,
                    "received": run.received,
                    "distinct": run.seen.len(),
                    "repeated": run.repeated,
                    "lost": run.seen.end() - run.seen.len(),
                    "end": run.seen.end(),
                    "out_of_range": run.out_of_range,
                })
            })
            .collect();
        let gaps: Vec<_> = self.gaps.iter().map(gap_json).collect();
        json!({
            "received": self.received(),
            "distinct": self.distinct(),
            "repeated": self.repeated(),
            "lost": self.lost(expect),
            "foreign": self.foreign,
            "re_encoded": self.re_encoded,
            "time_changed": self.time_changed,
            "unreadable": self.unreadable,
            "longest_gap_ms": self.gaps.first().map_or(0.0, |gap| ns_to_ms(gap.length_ns)),
            "gaps": gaps,
            "latency_ms": self.latency.summary_ms(),
            "runs": runs,
        })
    }

    /// Adds what another tally saw; an event seen by both is a repeat. Gaps and latencies are not merged.
    pub fn merge(&mut self, other: &Self) {
        for theirs in &other.runs {
            let Some(mine) = self.run_mut(theirs.run) else {
                self.foreign += theirs.received;
                continue;
            };
            mine.received += theirs.received;
            mine.repeated += theirs.repeated;
            mine.out_of_range += theirs.out_of_range;
            for (first, count) in theirs.seen.ranges() {
                for seq in first..first + count {
                    if !mine.seen.insert(seq) {
                        mine.repeated += 1;
                        mine.seen_again.insert(seq);
                    }
                }
            }
            for (first, count) in theirs.seen_again.ranges() {
                (first..first + count).for_each(|seq| _ = mine.seen_again.insert(seq));
            }
        }
        self.foreign += other.foreign;
        self.re_encoded += other.re_encoded;
        self.time_changed += other.time_changed;
        self.unreadable += other.unreadable;
    }

    /// Writes the seen sets as text, for `bench judge`; see [`Tally::load`].
    pub fn save(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "tributary seen 1")?;
        writeln!(out, "foreign {} unreadable {}", self.foreign, self.unreadable)?;
        for run in &self.runs {
            writeln!(
                out,
                "run {} received {} repeated {} out_of_range {}",
                run.run, run.received, run.repeated, run.out_of_range
            )?;
            for (first, count) in run.seen.ranges() {
                writeln!(out, "seen {first} {count}")?;
            }
            for (first, count) in run.seen_again.ranges() {
                writeln!(out, "again {first} {count}")?;
            }
        }
        writeln!(out, "end")
    }

    /// Reads what [`Tally::save`] wrote. A file without its last line is refused.
    pub fn load(input: impl BufRead) -> io::Result<Self> {
        let mut tally = Self::default();
        let mut complete = false;
        for line in input.lines() {
            let line = line?;
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
            let bad =
                || io::Error::new(io::ErrorKind::InvalidData, format!("not a line of a seen file: {line:?}"));
            match words[0] {
                "tributary" if line == "tributary seen 1" => {}
                "foreign" => {
                    tally.foreign = number(1).ok_or_else(bad)?;
                    tally.unreadable = number(3).ok_or_else(bad)?;
                }
                "run" => tally.runs.push(RunTally {
                    run: number(1).ok_or_else(bad)?,
                    received: number(3).ok_or_else(bad)?,
                    repeated: number(5).ok_or_else(bad)?,
                    out_of_range: number(7).ok_or_else(bad)?,
                    ..RunTally::default()
                }),
                kind @ ("seen" | "again") => {
                    let (first, count) = number(1).zip(number(2)).ok_or_else(bad)?;
                    let end = first.checked_add(count).filter(|end| *end <= SEQ_LIMIT).ok_or_else(bad)?;
                    let run = tally.runs.last_mut().ok_or_else(bad)?;
                    let set = if kind == "seen" { &mut run.seen } else { &mut run.seen_again };
                    (first..end).for_each(|seq| _ = set.insert(seq));
                }
                "end" => complete = true,
                _ => return Err(bad()),
            }
        }
        match complete {
            true => Ok(tally),
            false => {
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the seen file has no last line \"end\""))
            }
        }
    }
}

fn gap_json(gap: &Gap) -> serde_json::Value {
    json!({"ms": ns_to_ms(gap.length_ns), "ended_unix_ms": gap.ended_ns / 1_000_000})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(run: u64, numbers: impl IntoIterator<Item = u64>) -> Tally {
        let mut tally = Tally::default();
        numbers.into_iter().for_each(|seq| tally.count(Mark { run, seq, sent_ns: 0 }));
        tally
    }

    #[test]
    fn counts_lost_and_repeated() {
        let tally =
            tally(1, (0..200).filter(|seq| *seq != 63 && *seq != 64 && *seq != 150).chain([5, 5, 199]));
        assert_eq!((tally.received(), tally.distinct(), tally.repeated()), (200, 197, 3));
        assert_eq!((tally.lost(None), tally.lost(Some(1_000))), (3, 803));
        let run = tally.run(1).expect("run 1");
        assert_eq!(run.seen.missing(0, 210).collect::<Vec<_>>(), [(63, 2), (150, 1), (200, 10)]);
        assert_eq!(run.seen.ranges().collect::<Vec<_>>(), [(0, 63), (65, 85), (151, 49)]);
        assert_eq!(run.seen_again.ranges().collect::<Vec<_>>(), [(5, 1), (199, 1)]);
    }

    #[test]
    fn numbers_beyond_the_limit_are_counted_and_take_no_memory() {
        let tally = tally(1, [0, SEQ_LIMIT, u64::MAX]);
        assert_eq!((tally.received(), tally.distinct()), (3, 1));
        assert_eq!(tally.run(1).map(|run| run.out_of_range), Some(2));
    }

    #[test]
    fn runs_are_bounded() {
        let mut tally = Tally::default();
        for run in 0..RUN_LIMIT as u64 + 5 {
            tally.count(Mark { run, seq: 0, sent_ns: 0 });
        }
        assert_eq!((tally.runs().len(), tally.foreign), (RUN_LIMIT, 5));
    }

    #[test]
    fn saved_and_loaded_is_the_same_and_a_cut_file_is_refused() {
        let mut before = tally(9, (0..1_000).filter(|seq| seq % 7 != 3).chain(5..30));
        before.count(Mark { run: 10, seq: 3, sent_ns: 0 });
        before.foreign = 4;
        let mut text = Vec::new();
        before.save(&mut text).expect("to memory");
        let after = Tally::load(&text[..]).expect("load");
        assert_eq!(after.summary(None)["runs"], before.summary(None)["runs"]);
        assert_eq!(after.run(9).map(|run| &run.seen_again), before.run(9).map(|run| &run.seen_again));
        assert_eq!(after.foreign, 4);
        assert!(Tally::load(&text[..text.len() - 4]).is_err());
    }

    #[test]
    fn gaps_are_kept_longest_first() {
        let mut tally = Tally::default();
        let event = [Sighting::Foreign];
        for now in [0, 10, 15, 100, 101, 130] {
            tally.arrive(&event, now * 1_000_000);
        }
        let gaps: Vec<_> = tally.gaps().iter().map(|gap| gap.length_ns / 1_000_000).collect();
        assert_eq!(gaps, [85, 29, 10, 5, 1]);
        assert_eq!(tally.gaps()[0].ended_ns, 100_000_000);
    }

    #[test]
    fn an_event_in_two_tallies_is_a_repeat() {
        let mut both = tally(1, 0..10);
        both.merge(&tally(1, 8..20));
        assert_eq!((both.received(), both.distinct(), both.repeated(), both.lost(None)), (22, 20, 2, 0));
    }
}
