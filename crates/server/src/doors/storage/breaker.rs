//! When to stop asking a store, and how often to ask again. Plain code: the time is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// A circuit breaker. Open after a hang, it lets one request try when its time is over.
#[derive(Debug)]
pub(super) struct Breaker {
    state: State,
    open_for: Duration,
    probe_for: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Open { until: Instant },
    Probing { until: Instant },
}

/// How a request may go ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// As any other.
    Plain,
    /// As the one whose outcome decides.
    Probe,
}

impl Breaker {
    /// Open for `open_for` after a hang; a probe that has not said anything after `probe_for` is replaced by another.
    pub(super) fn new(open_for: Duration, probe_for: Duration) -> Self {
        Self { state: State::Closed, open_for, probe_for }
    }

    /// Whether to ask the store now.
    pub(super) fn admit(&mut self, now: Instant) -> Option<Admission> {
        match self.state {
            State::Closed => Some(Admission::Plain),
            State::Open { until } | State::Probing { until } if now < until => None,
            State::Open { .. } | State::Probing { .. } => {
                self.state = State::Probing { until: now + self.probe_for };
                Some(Admission::Probe)
            }
        }
    }

    /// The store answered, be it with an error.
    pub(super) fn answered(&mut self, admission: Admission) {
        // An answer to a request from before the hang says nothing about now.
        if admission == Admission::Probe {
            self.state = State::Closed;
        }
    }

    /// The store did not answer, or not to the end.
    pub(super) fn hung(&mut self, now: Instant) {
        self.state = State::Open { until: now + self.open_for };
    }

    /// The worker went away before the outcome was known.
    pub(super) fn abandoned(&mut self, admission: Admission, now: Instant) {
        if admission == Admission::Probe && matches!(self.state, State::Probing { .. }) {
            self.state = State::Open { until: now };
        }
    }
}

/// How many second attempts the door may make. Answers earn them, so that a store which fails everything is not asked
/// many times as often for it: the engine, too, repeats what fails.
#[derive(Debug)]
pub(super) struct RetryBudget {
    tenths: u32,
}

/// Who wants a second attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// A failure is an error of one statement.
    Plain,
    /// A failure aborts the engine: this may use the last half of the budget, too.
    Dire,
}

impl RetryBudget {
    const TENTHS_MAX: u32 = 640;

    /// A full budget of 64 second attempts.
    pub(super) fn full() -> Self {
        Self { tenths: Self::TENTHS_MAX }
    }

    /// An answer earns a tenth of a second attempt.
    pub(super) fn earn(&mut self) {
        self.tenths = (self.tenths + 1).min(Self::TENTHS_MAX);
    }

    /// Takes one second attempt, if there is one for this need.
    pub(super) fn take(&mut self, need: Need) -> bool {
        let floor = if need == Need::Dire { 0 } else { Self::TENTHS_MAX / 2 };
        let granted = self.tenths >= floor + 10;
        if granted {
            self.tenths -= 10;
        }
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker() -> Breaker {
        Breaker::new(Duration::from_secs(10), Duration::from_secs(5))
    }

    #[test]
    fn after_a_hang_everything_fails_until_one_probe_is_answered() {
        let (mut breaker, start) = (breaker(), Instant::now());
        assert_eq!(breaker.admit(start), Some(Admission::Plain));
        breaker.hung(start);
        assert_eq!(breaker.admit(start + Duration::from_secs(9)), None);
        let later = start + Duration::from_secs(11);
        assert_eq!(breaker.admit(later), Some(Admission::Probe));
        assert_eq!(breaker.admit(later), None, "one probe at a time");
        breaker.answered(Admission::Plain);
        assert_eq!(breaker.admit(later), None, "an old answer closes nothing");
        breaker.answered(Admission::Probe);
        assert_eq!(breaker.admit(later), Some(Admission::Plain));
    }

    #[test]
    fn a_probe_that_is_abandoned_or_silent_makes_room_for_another() {
        let (mut breaker, start) = (breaker(), Instant::now());
        breaker.hung(start);
        let later = start + Duration::from_secs(11);
        assert_eq!(breaker.admit(later), Some(Admission::Probe));
        breaker.abandoned(Admission::Probe, later);
        assert_eq!(breaker.admit(later), Some(Admission::Probe));
        assert_eq!(breaker.admit(later + Duration::from_secs(6)), Some(Admission::Probe));
    }

    #[test]
    fn manifests_have_second_attempts_when_others_have_none_left() {
        let mut budget = RetryBudget::full();
        let plain = (0..100).filter(|_| budget.take(Need::Plain)).count();
        let dire = (0..100).filter(|_| budget.take(Need::Dire)).count();
        assert_eq!((plain, dire), (32, 32));
        (0..10).for_each(|_| budget.earn());
        assert!(budget.take(Need::Dire) && !budget.take(Need::Dire));
    }
}
