//! Percentiles of durations in constant memory.

/// Sub-buckets per power of two: a reading is off by at most 1/32 (3 %).
const SUB_BUCKET_BITS: u32 = 5;
const SUB_BUCKETS: u64 = 1 << SUB_BUCKET_BITS;
/// Enough for every u64.
const BUCKETS: usize = ((64 - SUB_BUCKET_BITS as usize) + 1) * SUB_BUCKETS as usize;

/// Counts of values in logarithmic buckets with linear sub-buckets.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], total: 0, max: 0 }
    }
}

impl Histogram {
    /// Adds `times` readings of one value.
    pub fn add(&mut self, value: u64, times: u64) {
        self.counts[bucket(value)] += times;
        self.total += times;
        self.max = self.max.max(value);
    }

    /// Adds everything that the other one counted.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    /// How many readings.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The largest value, exact.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The upper edge of the bucket in which the given share (0.0 to 1.0) of all readings is reached; 0 without any.
    pub fn percentile(&self, share: f64) -> u64 {
        let wanted = ((self.total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return upper_edge(index).min(self.max);
            }
        }
        self.max
    }

    /// `{"p50": .., "p99": .., "max": ..}` in milliseconds, of readings in nanoseconds; null without any.
    pub fn summary_ms(&self) -> serde_json::Value {
        if self.total == 0 {
            return serde_json::Value::Null;
        }
        serde_json::json!({
            "p50": ns_to_ms(self.percentile(0.50)),
            "p99": ns_to_ms(self.percentile(0.99)),
            "max": ns_to_ms(self.max),
        })
    }
}

/// Milliseconds with three places.
pub fn ns_to_ms(ns: u64) -> f64 {
    (ns / 1_000) as f64 / 1_000.0
}

fn bucket(value: u64) -> usize {
    if value < SUB_BUCKETS {
        return value as usize;
    }
    let shift = 63 - value.leading_zeros() - SUB_BUCKET_BITS;
    let within = (value >> shift) - SUB_BUCKETS;
    (u64::from(shift + 1) * SUB_BUCKETS + within) as usize
}

fn upper_edge(index: usize) -> u64 {
    let index = index as u64;
    if index < SUB_BUCKETS {
        return index;
    }
    let shift = index / SUB_BUCKETS - 1;
    let low = (SUB_BUCKETS + index % SUB_BUCKETS) << shift;
    low.saturating_add((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_lies_in_its_bucket() {
        for value in (0..10_000).chain([u64::MAX, u64::MAX / 2, 1 << 40, (1 << 40) - 1]) {
            let edge = upper_edge(bucket(value));
            assert!(edge >= value, "{value} above its edge {edge}");
            assert!(edge - value <= value / 32 + 1, "{value} too far below its edge {edge}");
        }
    }

    #[test]
    fn percentiles_of_a_ramp() {
        let mut histogram = Histogram::default();
        for value in 1..=1_000 {
            histogram.add(value, 1);
        }
        let (p50, p99) = (histogram.percentile(0.5), histogram.percentile(0.99));
        assert!((500..=516).contains(&p50), "{p50}");
        assert!((990..=1_000).contains(&p99), "{p99}");
        assert_eq!(histogram.max(), 1_000);
    }
}
