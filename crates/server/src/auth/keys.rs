//! When an issuer's published keys are used, and when they are asked for anew: plain data, without a clock and without a wire.
//!
//! Three things are kept apart. *Renewing* follows the keys' age and goes on beside the requests. *Asking for a token's sake*, because
//! its key is not there or its signature does not hold, is what strangers can cause: it keeps a pause of the issuer's own and one that
//! all issuers share. And what strangers cause serves everybody: no token can bring keys to wait longer for than one pause.

use std::time::Duration;

use tokio::time::Instant;

/// Between two fetches for a token's sake, whoever the issuers. The most issuers that can be configured get their turn within
/// the default pause of each.
const OVERALL_PAUSE: Duration = Duration::from_millis(500);
/// Between two fetches while there is no key at all, and so nobody is served.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The times of one issuer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// Keys are to be renewed when they are so old.
    pub(super) ttl: Duration,
    /// Keys that are so old are not used any more, whatever the reason.
    pub(super) age_max: Duration,
    /// Between the end of one fetch and the next.
    pub(super) pause: Duration,
    /// A fetch that has not ended by then never will.
    pub(super) fetch_max: Duration,
}

impl Times {
    /// The age at which keys are renewed ahead of their time.
    fn due(&self) -> Duration {
        self.ttl / 5 * 4
    }
}

/// Whether a set has the key for a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// It has one.
    One,
    /// It has none.
    None,
    /// It has several, so that the token does not say which.
    Many,
}

/// What one request has been through.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Been {
    /// It has waited for a fetch.
    pub(super) waited: bool,
    /// The signature does not hold by the key of this set.
    pub(super) doubted: Option<u64>,
}

/// What to do with a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Check it with the keys in hand.
    Use {
        /// Begin a fetch beside it.
        renew: bool,
    },
    /// Begin a fetch, and wait for it.
    Fetch,
    /// Wait for the fetch that is under way.
    Join,
    /// It does not hold.
    Refuse,
    /// Nobody can tell: there are no keys, or the issuer does not say whether there are others.
    Unavailable,
}

/// The pause that all issuers share.
#[derive(Debug, Default)]
pub(super) struct Overall {
    last: Option<Instant>,
}

impl Overall {
    fn take(&mut self, now: Instant) -> bool {
        let free = self.last.is_none_or(|last| now.saturating_duration_since(last) >= OVERALL_PAUSE);
        if free {
            self.last = Some(now);
        }
        free
    }
}

/// A set and since when it has been true.
pub(super) struct Held<S> {
    pub(super) set: S,
    pub(super) asked_at: Instant,
    /// Counts the sets.
    pub(super) serial: u64,
}

/// One issuer's keys.
pub(super) struct Keys<S> {
    times: Times,
    held: Option<Held<S>>,
    fetching: Option<Instant>,
    /// The end of the last fetch, and whether it brought a set.
    last: Option<(Instant, bool)>,
    pub(super) fetches: u64,
    pub(super) failures: u64,
}

impl<S> Keys<S> {
    pub(super) fn new(times: Times) -> Self {
        Keys { times, held: None, fetching: None, last: None, fetches: 0, failures: 0 }
    }

    /// The set that may be used.
    pub(super) fn held(&self, now: Instant) -> Option<&Held<S>> {
        self.held.as_ref().filter(|held| now.saturating_duration_since(held.asked_at) < self.times.age_max)
    }

    /// What to do with a token whose key a set has or has not, as `fit` says.
    pub(super) fn want(
        &mut self,
        now: Instant,
        overall: &mut Overall,
        been: Been,
        fit: impl FnOnce(&S) -> Fit,
    ) -> Step {
        let Some(held) = self.held(now) else {
            return if been.waited { Step::Unavailable } else { self.ask(now, Step::Unavailable) };
        };
        let age = now.saturating_duration_since(held.asked_at);
        let doubted = been.doubted == Some(held.serial);
        match fit(&held.set) {
            Fit::One if !doubted => self.serve(now, age, been),
            // Those of old keys may be the ones that the issuer has sorted out since.
            Fit::Many if age < self.times.due() => Step::Refuse,
            // With the issuer silent, nobody knows whether the key is a new one.
            _ if !doubted && self.failed() && (been.waited || !self.may_ask(now)) => Step::Unavailable,
            _ if been.waited => Step::Refuse,
            _ if self.is_fetching(now) => Step::Join,
            _ if self.may_ask(now) && overall.take(now) => self.ask(now, Step::Refuse),
            _ if self.failed() && !doubted => Step::Unavailable,
            _ => Step::Refuse,
        }
    }

    /// With a key in hand: it serves, and is renewed ahead of its time.
    fn serve(&mut self, now: Instant, age: Duration, been: Been) -> Step {
        let Times { ttl, .. } = self.times;
        // Nobody has asked since they grew old, for want of requests: keys may have been withdrawn meanwhile.
        if age >= ttl && !been.waited && !self.failed() {
            return self.ask(now, Step::Use { renew: false });
        }
        let renew = age >= self.times.due() && !self.is_fetching(now) && self.may_ask(now);
        if renew {
            self.begin(now);
        }
        Step::Use { renew }
    }

    /// A fetch to wait for: a new one, the one under way, or none.
    fn ask(&mut self, now: Instant, otherwise: Step) -> Step {
        if self.is_fetching(now) {
            return Step::Join;
        }
        if !self.may_ask(now) {
            return otherwise;
        }
        self.begin(now);
        Step::Fetch
    }

    fn begin(&mut self, now: Instant) {
        self.fetching = Some(now);
        self.fetches += 1;
    }

    fn is_fetching(&self, now: Instant) -> bool {
        self.fetching.is_some_and(|since| now.saturating_duration_since(since) < self.times.fetch_max)
    }

    /// Whether the last fetch failed.
    fn failed(&self) -> bool {
        self.last.is_some_and(|(_, well)| !well)
    }

    /// Whether the pause since the last fetch is over.
    fn may_ask(&self, now: Instant) -> bool {
        let Times { pause, .. } = self.times;
        let pause = if self.held(now).is_some() { pause } else { pause.min(FIRST_PAUSE) };
        let began = self.fetching.filter(|_| !self.is_fetching(now));
        let last = self.last.map(|(ended, _)| ended).max(began);
        last.is_none_or(|last| now.saturating_duration_since(last) >= pause)
    }

    /// A fetch that began at `asked_at` has ended.
    pub(super) fn ended(&mut self, now: Instant, asked_at: Instant, brought: Option<S>) {
        if self.fetching == Some(asked_at) {
            self.fetching = None;
        }
        self.last = Some((now, brought.is_some()));
        let Some(set) = brought else {
            self.failures += 1;
            return;
        };
        // One that was given up and came back all the same must not bring back what is gone.
        if self.held.as_ref().is_none_or(|held| held.asked_at <= asked_at) {
            let serial = self.held.as_ref().map_or(0, |held| held.serial + 1);
            self.held = Some(Held { set, asked_at, serial });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TIMES: Times = Times {
        ttl: Duration::from_mins(10),
        age_max: Duration::from_hours(1),
        pause: Duration::from_secs(10),
        fetch_max: Duration::from_secs(4),
    };
    const LATENCY: Duration = Duration::from_secs(3);

    /// A key's name and which key of this name it is.
    type Key = (u8, u8);
    type Set = Vec<Key>;

    /// An issuer, and one server that asks it. Its clock goes on by hand.
    struct World {
        now: Instant,
        keys: Keys<Set>,
        overall: Overall,
        published: Set,
        well: bool,
        /// When the fetch that is under way began, and what it will bring.
        flight: Option<(Instant, Option<Set>)>,
        /// When fetches began, and whether there were keys.
        began: Vec<(Instant, bool)>,
    }

    impl World {
        fn new() -> World {
            World {
                now: Instant::now(),
                keys: Keys::new(TIMES),
                overall: Overall::default(),
                published: vec![(0, 0), (1, 0)],
                well: true,
                flight: None,
                began: Vec::new(),
            }
        }

        fn passes(&mut self, time: Duration) {
            let until = self.now + time;
            if let Some((began, brings)) = self.flight.take_if(|(began, _)| *began + LATENCY <= until) {
                self.keys.ended(began + LATENCY, began, brings);
            }
            self.now = until;
        }

        fn begins(&mut self) {
            assert!(self.flight.is_none(), "two fetches at once");
            self.began.push((self.now, self.keys.held(self.now).is_some()));
            self.flight = Some((self.now, self.well.then(|| self.published.clone())));
        }

        /// A request with a token by this key, through to its end.
        fn ask(&mut self, token: Key) -> Step {
            let mut been = Been::default();
            for _ in 0..4 {
                let fit =
                    |set: &Set| if set.iter().any(|(kid, _)| *kid == token.0) { Fit::One } else { Fit::None };
                let step = self.keys.want(self.now, &mut self.overall, been, fit);
                match step {
                    Step::Use { renew } => {
                        if renew {
                            self.begins();
                        }
                        let held = self.keys.held(self.now).expect("what is used is there");
                        if held.set.contains(&token) {
                            return step;
                        }
                        been.doubted = Some(held.serial);
                    }
                    Step::Fetch | Step::Join => {
                        if step == Step::Fetch {
                            self.begins();
                        }
                        let (began, _) = self.flight.as_ref().expect("what is waited for is under way");
                        self.passes(*began + LATENCY - self.now);
                        been.waited = true;
                    }
                    end => return end,
                }
            }
            panic!("a request goes round in circles");
        }

        fn holds(&mut self, token: Key) -> bool {
            matches!(self.ask(token), Step::Use { .. })
        }
    }

    #[derive(Debug, Clone)]
    enum Event {
        Token(Key),
        Burst(u8),
        Rotate(u8),
        Well(bool),
    }

    fn event() -> impl Strategy<Value = (u64, Event)> {
        let what = prop_oneof![
            4 => (0..5_u8, 0..3_u8).prop_map(Event::Token),
            4 => (0..50_u8).prop_map(Event::Burst),
            1 => (0..3_u8).prop_map(Event::Rotate),
            1 => any::<bool>().prop_map(Event::Well),
        ];
        let ms = prop_oneof![8 => 0..3_000_u64, 2 => 0..60_000_u64, 1 => 0..4_000_000_u64];
        (ms, what)
    }

    proptest! {
           #[test]
           fn whatever_tokens_come_fetches_keep_their_pauses(events in prop::collection::vec(event(), 1..200)) {
               let mut world = World::new();
               for (ms, event) in events {
                   world.passes(Duration::from_millis(ms));
                   match event {
                       Event::Token(key) => {
                           world.ask(key);
                       }
                       // Names that nobody has published.
                       Event::Burst(tokens) => (0..tokens).for_each(|n| {
    world.ask((100 + n, 0));
    }),
                       Event::Rotate(kid) => world.published = vec![(kid, 1), (kid + 1, 0)],
                       Event::Well(well) => world.well = well,
                   }
                   let held = world.keys.held(world.now);
                   prop_assert!(held.is_none_or(|held| world.now - held.asked_at < TIMES.age_max));
               }
               for pair in world.began.windows(2) {
                   let [(before, _), (after, held)] = pair else { unreachable!() };
                   let pause = if *held { TIMES.pause } else { FIRST_PAUSE };
                   prop_assert!(*after - *before >= LATENCY + pause, "{:?}", *after - *before);
               }
           }

           /// Also under a stream of names that nobody has published, and also where a key is replaced under its name.
           #[test]
           fn a_rotation_is_followed_within_a_pause(
               before in prop_oneof![0..400_u64, 0..2_000_u64],
            gaps in prop_oneof![Just(Vec::new()), prop::collection::vec(0..2_000_u64, 0..60)],
            kid in 0..4_u8,
           ) {
               let mut world = World::new();
               prop_assert!(world.holds((0, 0)));
               world.passes(Duration::from_secs(before));
               world.published = vec![(kid, 7)];
               let rotated = world.now;
               for ms in gaps {
                   prop_assert!(!world.holds((200, 0)));
                   world.passes(Duration::from_millis(ms));
               }
               // The fetch under way may have begun before, and the pause begins at its end.
               let latest = rotated + LATENCY + TIMES.pause;
               if world.now < latest {
                   world.passes(latest - world.now);
               }
               prop_assert!(world.holds((kid, 7)));
               prop_assert!(!world.holds(((kid + 1) % 4, 0)), "a withdrawn key is gone");
           }

           #[test]
           fn known_keys_serve_while_the_issuer_is_down_up_to_the_bound(
               gaps in prop::collection::vec((0..300_000_u64, any::<bool>()), 1..60),
           ) {
               let mut world = World::new();
               prop_assert!(world.holds((0, 0)));
               let asked_at = world.began[0].0;
               world.well = false;
               for (ms, garbage) in gaps {
                   world.passes(Duration::from_millis(ms));
                   if garbage {
                       let step = world.ask((100, 0));
                       prop_assert!(matches!(step, Step::Refuse | Step::Unavailable), "{:?}", step);
                   }
                   // A request after idleness waits once; the keys may pass the bound meanwhile.
                   let step = world.ask((0, 0));
                   let age = world.now - asked_at;
                   if age < TIMES.age_max {
                       let served = matches!(step, Step::Use { .. });
                       prop_assert!(served, "{:?} after {:?}", step, age);
                   } else {
                       prop_assert_eq!(step, Step::Unavailable);
                   }
               }
               world.passes(TIMES.age_max);
               prop_assert_eq!(world.ask((0, 0)), Step::Unavailable);
               world.well = true;
               world.passes(FIRST_PAUSE + LATENCY);
               prop_assert!(world.holds((0, 0)), "back as soon as the issuer is");
           }

           #[test]
           fn fetches_for_tokens_sake_keep_the_pause_of_all_issuers(
               events in prop::collection::vec((0..16_usize, 0..400_u64), 1..300),
           ) {
               let mut now = Instant::now();
               let mut overall = Overall::default();
               let mut all: Vec<Keys<Set>> = (0..16).map(|_| Keys::new(TIMES)).collect();
               for keys in &mut all {
                   keys.ended(now, now, Some(vec![(0, 0)]));
               }
               now += TIMES.pause;
               let mut began = Vec::new();
               for (at, ms) in events {
                   now += Duration::from_millis(ms);
                   if all[at].want(now, &mut overall, Been::default(), |_| Fit::None) == Step::Fetch {
                       began.push(now);
                       all[at].ended(now, now, Some(vec![(0, 0)]));
                   }
               }
               prop_assert!(began.windows(2).all(|pair| pair[1] - pair[0] >= OVERALL_PAUSE));
           }
       }

    #[test]
    fn keys_are_renewed_beside_the_requests_and_ahead_of_their_time() {
        let mut world = World::new();
        assert!(world.holds((0, 0)));
        world.passes(TIMES.ttl / 5 * 4);
        assert_eq!(world.ask((0, 0)), Step::Use { renew: true });
        assert_eq!(world.ask((0, 0)), Step::Use { renew: false }, "one fetch at a time");
        world.passes(LATENCY);
        // After idleness nobody has asked: one request waits, so that a withdrawn key does not serve.
        world.passes(TIMES.ttl);
        world.published = vec![(1, 0)];
        let fetches = world.began.len();
        assert!(!world.holds((0, 0)));
        assert_eq!(world.began.len(), fetches + 1);
        // Once it is known that the issuer is down, nobody waits for it any more.
        world.well = false;
        world.passes(TIMES.ttl);
        assert!(world.holds((1, 0)));
        assert_eq!(world.began.len(), fetches + 2);
        world.passes(TIMES.pause);
        assert_eq!(world.ask((1, 0)), Step::Use { renew: true });
    }

    #[test]
    fn many_wait_for_one_fetch_and_a_lost_one_is_not_waited_for_for_ever() {
        let (now, mut overall, mut keys) = (Instant::now(), Overall::default(), Keys::<Set>::new(TIMES));
        let mut want = |at: Instant| keys.want(at, &mut overall, Been::default(), |_| Fit::One);
        assert_eq!(want(now), Step::Fetch);
        assert_eq!(want(now + LATENCY), Step::Join);
        assert_eq!(want(now + TIMES.fetch_max), Step::Fetch);
        assert_eq!(want(now + TIMES.fetch_max + LATENCY), Step::Join);
        // What was given up comes back after all, and then the newer one: the newer one stays.
        keys.ended(now + TIMES.fetch_max + LATENCY, now + TIMES.fetch_max, Some(vec![(2, 0)]));
        keys.ended(now + TIMES.fetch_max + LATENCY, now, Some(vec![(1, 0)]));
        assert_eq!(keys.held(now + TIMES.fetch_max + LATENCY).unwrap().set, [(2, 0)]);
    }

    #[test]
    fn a_token_that_does_not_say_which_key_costs_no_fetch() {
        let mut world = World::new();
        assert!(world.holds((0, 0)));
        world.passes(TIMES.pause);
        let step = world.keys.want(world.now, &mut world.overall, Been::default(), |_| Fit::Many);
        assert_eq!((step, world.began.len()), (Step::Refuse, 1));
        // But old keys are renewed, although nobody could use them.
        world.passes(TIMES.ttl);
        let step = world.keys.want(world.now, &mut world.overall, Been::default(), |_| Fit::Many);
        assert_eq!(step, Step::Fetch);
    }
}
