//! Go on, or stop and why; and what follows from all steps. No clock, no process.

use serde::Serialize;

use super::report::Step;

/// How far a test goes, under the names of the arguments.
#[allow(clippy::struct_field_names)] // they are all of one kind
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) warehouses_max: usize,
    pub(super) memory_mb_max: u64,
    pub(super) first_p99_ms_max: u64,
    pub(super) fds_max: u64,
    pub(super) errors_percent_max: u8,
}

/// Why a test has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct End {
    /// The argument that was the limit, or `settings`, `interrupted`, `failed`.
    pub(super) limit: &'static str,
    /// The same in words.
    pub(super) text: String,
}

impl End {
    pub(super) fn new(limit: &'static str, text: impl Into<String>) -> End {
        End { limit, text: text.into() }
    }
}

/// How many warehouses each step has: 10, 20, 50, 100, … and at last as many as there may be.
pub(super) fn counts(warehouses_max: usize) -> impl Iterator<Item = usize> {
    let decades = std::iter::successors(Some(10_usize), |decade| decade.checked_mul(10));
    let counts = decades.flat_map(|decade| [1, 2, 5].map(|times| decade.saturating_mul(times)));
    counts.take_while(move |count| *count < warehouses_max).chain([warehouses_max])
}

impl Limits {
    /// Whether so much may be used at any moment.
    pub(super) fn usage(&self, warehouses: usize, memory_mb: f64, fds: u64) -> Option<End> {
        if memory_mb > whole(self.memory_mb_max) {
            let text = format!("{warehouses} warehouses: {memory_mb:.0} MiB of {}", self.memory_mb_max);
            return Some(End::new("memory_mb_max", text));
        }
        if fds > self.fds_max {
            let text = format!("{warehouses} warehouses: {fds} descriptors of {}", self.fds_max);
            return Some(End::new("fds_max", text));
        }
        None
    }

    /// Whether a whole step has kept them. The last step ends a test in any case, see [`counts`].
    pub(super) fn step(&self, step: &Step) -> Option<End> {
        let warehouses = step.warehouses;
        if let Some(end) = self.usage(warehouses, step.memory_mb, step.fds) {
            return Some(end);
        }
        let percent = u64::from(self.errors_percent_max);
        let unanswered = (warehouses as u64).saturating_sub(step.first_ms.count);
        if unanswered * 100 > warehouses as u64 * percent {
            let text = format!("{warehouses} warehouses: {unanswered} had no answer to their first query");
            return Some(End::new("errors_percent_max", text));
        }
        let errors: u64 = step.errors.values().sum();
        let asked = errors + step.first_ms.count + step.warm_ms.count;
        if errors * 100 > asked * percent {
            let text = format!("{warehouses} warehouses: {errors} of {asked} queries have failed");
            return Some(End::new("errors_percent_max", text));
        }
        let p99 = step.first_ms.p99;
        if p99 > whole(self.first_p99_ms_max) {
            let text = format!(
                "{warehouses} warehouses: p99 of a first query {p99:.0} ms of {}",
                self.first_p99_ms_max
            );
            return Some(End::new("first_p99_ms_max", text));
        }
        None
    }
}

/// What a server would have without the test: `pool.memory_mb` and what it is divided into, MiB.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Budget {
    pub(super) memory_mb: u64,
    pub(super) front_mb: u64,
    pub(super) idle_mb_max: u64,
    pub(super) spares: u64,
    /// The hard limit of one worker.
    pub(super) worker_mb_max: u64,
}

impl Budget {
    /// Places for workers: half of what is not the server's own may be kept by idle ones, and one can always work.
    pub(super) fn places(&self) -> usize {
        let workers = self.memory_mb.saturating_sub(self.front_mb);
        let idle = (workers / 2).min(workers.saturating_sub(self.worker_mb_max));
        let places = (idle / self.idle_mb_max.max(1)).saturating_sub(self.spares);
        usize::try_from(places).unwrap_or(usize::MAX)
    }
}

/// What is to be set, and why.
#[derive(Debug, Serialize)]
pub(super) struct Recommendation {
    /// For `pool.workers_max`; none where not even the first step has kept the limits.
    pub(super) workers_max: Option<usize>,
    pub(super) stopped: End,
    /// Warehouses of the last step that has kept the limits.
    pub(super) held: Option<usize>,
    /// What was left of `memory_mb_max` in that step.
    pub(super) memory_mb_left: Option<f64>,
    /// What a worker has kept in that step, mean.
    pub(super) worker_mb: Option<f64>,
    pub(super) budget: Budget,
    /// How many workers the budget has places for.
    pub(super) budget_places: usize,
    /// In words.
    pub(super) derived_from: String,
}

/// From the last step that has kept the limits, if any has.
pub(super) fn recommend(
    held: Option<&Step>,
    limits: &Limits,
    budget: Budget,
    stopped: End,
) -> Recommendation {
    let places = budget.places();
    let left = held.map(|step| whole(limits.memory_mb_max) - step.memory_mb);
    let workers_max = held.map(|step| step.workers_max.min(places).max(1));
    let derived_from = match (held, left) {
        (Some(step), Some(left)) => format!(
            "{} workers held the limits with {left:.0} MiB left ({:.1} MiB a worker); pool.memory_mb = {} has places for \
             {places}: half of it without the server's {} is for workers that work, and every other worker may keep \
             pool.idle_mb_max = {}",
            step.workers_max, step.worker_mb.mean, budget.memory_mb, budget.front_mb, budget.idle_mb_max,
        ),
        _ => "no step held the limits".to_owned(),
    };
    Recommendation {
        workers_max,
        stopped,
        held: held.map(|step| step.warehouses),
        memory_mb_left: left,
        worker_mb: held.map(|step| step.worker_mb.mean),
        budget,
        budget_places: places,
        derived_from,
    }
}

// MiB and milliseconds are small numbers.
#[allow(clippy::cast_precision_loss)]
fn whole(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadtest::latency::Spread;

    const LIMITS: Limits = Limits {
        warehouses_max: 100,
        memory_mb_max: 1_000,
        first_p99_ms_max: 500,
        fds_max: 900,
        errors_percent_max: 1,
    };
    const BUDGET: Budget =
        Budget { memory_mb: 4_096, front_mb: 512, idle_mb_max: 48, spares: 2, worker_mb_max: 384 };

    fn step() -> Step {
        let first_ms = Spread { count: 50, p50: 40.0, p99: 500.0, max: 600.0 };
        let warm_ms = Spread { count: 950, ..first_ms };
        let mut step = Step { warehouses: 50, workers_max: 50, first_ms, warm_ms, ..Step::default() };
        (step.memory_mb, step.fds, step.worker_mb.mean) = (900.0, 900, 10.0);
        step
    }

    #[test]
    fn steps_grow_to_the_last_one_that_was_asked_for() {
        let of = |max| counts(max).collect::<Vec<_>>();
        assert_eq!(of(3), [3]);
        assert_eq!(of(10), [10]);
        assert_eq!(of(70), [10, 20, 50, 70]);
        assert_eq!(of(1_000), [10, 20, 50, 100, 200, 500, 1_000]);
    }

    #[test]
    fn a_step_goes_on_at_its_limits_and_stops_beyond_each() {
        assert_eq!(LIMITS.step(&step()), None);
        let beyond = |change: fn(&mut Step)| {
            let mut step = step();
            change(&mut step);
            LIMITS.step(&step).map(|end| end.limit)
        };
        assert_eq!(beyond(|step| step.memory_mb = 1_001.0), Some("memory_mb_max"));
        assert_eq!(beyond(|step| step.fds = 901), Some("fds_max"));
        assert_eq!(beyond(|step| step.first_ms.p99 = 501.0), Some("first_p99_ms_max"));
        assert_eq!(beyond(|step| step.errors = [("timeout".to_owned(), 10)].into()), None);
        let failing = beyond(|step| step.errors = [("timeout".to_owned(), 11)].into());
        assert_eq!(failing, Some("errors_percent_max"));
        assert_eq!(beyond(|step| step.first_ms.count = 49), Some("errors_percent_max"));
    }

    #[test]
    fn the_recommendation_is_what_held_or_what_the_budget_has_places_for() {
        let end = || End::new("warehouses_max", "as many as asked for");
        let mut held = step();
        // (4096 - 512) / 2 / 48 - 2
        assert_eq!(BUDGET.places(), 35);
        assert_eq!(recommend(Some(&held), &LIMITS, BUDGET, end()).workers_max, Some(35));
        held.workers_max = 20;
        let found = recommend(Some(&held), &LIMITS, BUDGET, end());
        assert_eq!((found.workers_max, found.held, found.memory_mb_left), (Some(20), Some(50), Some(100.0)));
        assert!(
            found.derived_from.contains("100 MiB left") && found.derived_from.contains("places for 35"),
            "{}",
            found.derived_from
        );
        let none = recommend(None, &LIMITS, BUDGET, end());
        assert_eq!((none.workers_max, none.memory_mb_left), (None, None));
    }

    #[test]
    fn the_settings_take_every_recommendation() {
        for memory_mb in [1_024, 2_048, 24_576] {
            let budget = Budget { memory_mb, ..BUDGET };
            let idle = (budget.places() as u64 + budget.spares) * budget.idle_mb_max;
            assert!(budget.front_mb + idle + budget.worker_mb_max <= memory_mb || budget.places() == 0);
        }
    }
}
