//! How long things took, in a space that does not grow: counts in buckets, each at most a sixty-fourth wide of what it holds.

use serde::Serialize;
use tokio::time::Duration;

/// Buckets for each doubling, as a power of two.
const FINE: u32 = 6;
const BUCKETS: usize = (64 - FINE as usize + 1) << FINE;

/// Durations, as counts.
pub(super) struct Latencies {
    buckets: Vec<u64>,
    count: u64,
    max_us: u64,
}

/// What is told of them, milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Spread {
    /// How many were measured.
    pub(super) count: u64,
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

impl Default for Latencies {
    fn default() -> Self {
        Latencies { buckets: vec![0; BUCKETS], count: 0, max_us: 0 }
    }
}

impl Latencies {
    pub(super) fn add(&mut self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.buckets[bucket(us)] += 1;
        self.count += 1;
        self.max_us = self.max_us.max(us);
    }

    pub(super) fn merge(&mut self, other: &Latencies) {
        for (bucket, count) in self.buckets.iter_mut().zip(&other.buckets) {
            *bucket += count;
        }
        self.count += other.count;
        self.max_us = self.max_us.max(other.max_us);
    }

    pub(super) fn spread(&self) -> Spread {
        Spread {
            count: self.count,
            p50: self.percentile(50),
            p99: self.percentile(99),
            max: millis(self.max_us),
        }
    }

    /// The smallest that so many in a hundred do not exceed, milliseconds.
    fn percentile(&self, percent: u64) -> f64 {
        let rank = (self.count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let found = self.buckets.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        found.map_or(0.0, |bucket| millis(end(bucket).min(self.max_us)))
    }
}

/// Small numbers have a bucket each; of larger ones the leading bits count.
fn bucket(us: u64) -> usize {
    let shift = (u64::BITS - us.leading_zeros()).saturating_sub(FINE + 1);
    // The leading bit stays, so that each doubling begins where the one before has ended.
    ((shift as usize) << FINE) + usize::try_from(us >> shift).unwrap_or(0)
}

/// The largest number of a bucket.
fn end(bucket: usize) -> u64 {
    let shift = (bucket >> FINE).saturating_sub(1);
    let leading = (bucket - (shift << FINE)) as u64;
    ((leading + 1) << shift).wrapping_sub(1)
}

// A number of microseconds that a double does not hold exactly is nobody's latency.
#[allow(clippy::cast_precision_loss)]
fn millis(us: u64) -> f64 {
    us as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_at_most_a_sixty_fourth_wide() {
        let mut before = 0;
        for us in (0..5_000).chain((5_000..100_000_000).step_by(9_973)).chain([u64::MAX]) {
            let bucket = bucket(us);
            assert!(bucket >= before && bucket < BUCKETS, "{us}");
            assert!(end(bucket) >= us && end(bucket) - us <= us / 64, "{us}: {}", end(bucket));
            before = bucket;
        }
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_list() {
        let mut all = Latencies::default();
        assert_eq!(all.spread(), Spread::default());
        for ms in 1..=50 {
            all.add(Duration::from_millis(ms));
        }
        let mut late = Latencies::default();
        for ms in 51..=100 {
            late.add(Duration::from_millis(ms));
        }
        all.merge(&late);
        let spread = all.spread();
        assert_eq!((spread.count, spread.max), (100, 100.0));
        assert!((spread.p50 - 50.0).abs() < 1.0 && (spread.p99 - 99.0).abs() < 2.0, "{spread:?}");
        let mut one = Latencies::default();
        one.add(Duration::from_millis(7));
        assert_eq!(one.spread(), Spread { count: 1, p50: 7.0, p99: 7.0, max: 7.0 });
    }
}
