use super::*;
use proptest::prelude::*;

type Plain = State<u8, u64, u64, &'static str>;

const MB: u64 = 1 << 20;

fn at(ms: u64) -> Instant {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *START.get_or_init(Instant::now) + Duration::from_millis(ms)
}

fn state(workers_max: usize, memory_max: u64) -> Plain {
    let hour = Duration::from_hours(1);
    let turn = Duration::from_secs(1);
    let ceilings = Ceilings { workers_max, memory_max, turn, idle: hour, age: hour, statements_max: 1_000 };
    State::new(ceilings)
}

/// With these workers, started and idle for longer than they are held.
fn with(workers_max: usize, memory_max: u64, keys: &[u8]) -> Plain {
    let mut state = state(workers_max, memory_max);
    for key in keys {
        assert_eq!(state.want(key, MB, None, at(0)), Step::Start);
        state.starting(*key, 0, MB);
        assert!(state.started(key, u64::from(*key), u64::from(*key), at(0)));
        assert_eq!(state.want(key, MB, None, at(0)), Step::Hit(u64::from(*key)));
        state.returned(key, u64::from(*key), at(u64::from(*key)));
    }
    state
}

#[test]
fn the_least_recently_used_idle_worker_goes_first() {
    let mut state = with(2, 10 * MB, &[1, 2]);
    assert_eq!(state.want(&1, MB, None, at(30)), Step::Hit(1));
    assert_eq!(state.want(&3, MB, None, at(40)), Step::Evict(2));
    state.starting(3, 0, MB);
    // 1 is leased and 3 is starting: nothing may go.
    let Step::Wait(ticket) = state.want(&4, MB, None, at(50)) else { panic!() };
    state.returned(&1, 1, at(60));
    assert_eq!(state.want(&4, MB, Some(ticket), at(70)), Step::Evict(1));
}

#[test]
fn a_late_return_does_not_touch_the_worker_that_came_after() {
    let mut state = with(2, 10 * MB, &[7]);
    assert_eq!(state.want(&7, MB, None, at(1)), Step::Hit(7));
    assert_eq!(state.retire(&7, 7), Some(7));
    assert_eq!(state.gauges(at(1)).workers, 1, "it has its place until its last lease ends");
    assert_eq!(state.want(&7, MB, None, at(2)), Step::Start);
    state.starting(7, 0, MB);
    assert!(state.started(&7, 8, 8, at(2)));
    state.returned(&7, 7, at(3));
    assert_eq!(state.want(&7, MB, None, at(4)), Step::Hit(8));
    assert_eq!((state.gauges(at(4)).workers, state.gauges(at(4)).leases), (1, 1));
    assert_eq!(state.retire(&7, 7), None);
}

#[test]
fn only_so_many_work_as_have_memory_and_an_idle_worker_needs_none() {
    let mut state = with(8, 2 * MB, &[1, 2, 3]);
    assert_eq!(state.want(&1, MB, None, at(300)), Step::Hit(1));
    assert_eq!(state.want(&1, MB, None, at(300)), Step::Hit(1), "a second statement shares the limit");
    assert_eq!(state.want(&2, MB, None, at(300)), Step::Hit(2));
    let Step::Wait(ticket) = state.want(&3, MB, None, at(300)) else { panic!() };
    state.returned(&2, 2, at(400));
    assert_eq!(state.want(&3, MB, Some(ticket), at(400)), Step::Hit(3));
}

#[test]
fn a_worker_that_others_wait_for_takes_nothing_new_after_its_turn() {
    let mut state = with(1, MB, &[1]);
    assert_eq!(state.want(&1, MB, None, at(1_000)), Step::Hit(1));
    let Step::Wait(other) = state.want(&2, MB, None, at(1_000)) else { panic!() };
    assert_eq!(state.want(&1, MB, None, at(1_500)), Step::Hit(1), "its turn is not over");
    let Step::Wait(own) = state.want(&1, MB, None, at(2_500)) else { panic!() };
    state.returned(&1, 1, at(2_600));
    state.returned(&1, 1, at(2_700));
    assert_eq!(state.want(&1, MB, Some(own), at(2_700)), Step::Wait(own), "others came first");
    assert_eq!(state.want(&2, MB, Some(other), at(2_700)), Step::Evict(1));
    state.starting(2, 0, MB);
    assert!(state.started(&2, 2, 2, at(2_800)));
    assert_eq!(state.want(&2, MB, None, at(2_800)), Step::Hit(2));
    state.returned(&2, 2, at(2_900));
    assert_eq!(state.want(&1, MB, Some(own), at(2_900)), Step::Evict(2));
}

#[test]
fn a_failure_is_told_again_for_a_moment_and_no_longer() {
    let mut state = state(2, 10 * MB);
    assert_eq!(state.want(&1, MB, None, at(0)), Step::Start);
    state.starting(1, 0, MB);
    state.failed(&1, "no catalog", Some(at(1_000)));
    assert_eq!(state.want(&1, MB, None, at(999)), Step::Refuse("no catalog"));
    assert_eq!(state.want(&2, MB, None, at(999)), Step::Start, "others are not meant");
    assert_eq!(state.want(&1, MB, None, at(1_000)), Step::Start);
}

/// The same promises without any of the bookkeeping: who is there, who is leased, who waits.
#[derive(Default)]
struct Model {
    starting: Vec<u8>,
    ready: Vec<(u8, u64)>,
    leased: Vec<(u8, u64)>,
    waiting: Vec<(u8, u64)>,
}

impl Model {
    fn holds(&self, ceiling: usize, memory: usize) -> bool {
        let mut alive: Vec<u64> = self.ready.iter().chain(&self.leased).map(|(_, id)| *id).collect();
        alive.sort_unstable();
        alive.dedup();
        let mut working: Vec<u64> = self.leased.iter().map(|(_, id)| *id).collect();
        working.dedup();
        working.sort_unstable();
        working.dedup();
        let mut keys: Vec<u8> = self.ready.iter().map(|(key, _)| *key).chain(self.starting.clone()).collect();
        keys.sort_unstable();
        let one_each = keys.windows(2).all(|pair| pair[0] != pair[1]);
        alive.len() + self.starting.len() <= ceiling
            && working.len() + self.starting.len() <= memory
            && one_each
    }

    fn take(&mut self, key: u8, ticket: Option<u64>, step: &Step<u64, u64, &'static str>) {
        if let Some(ticket) = ticket {
            self.waiting.retain(|(_, other)| *other != ticket);
        }
        match step {
            Step::Hit(id) => {
                assert!(self.ready.contains(&(key, *id)));
                self.leased.push((key, *id));
            }
            Step::Join(_) => assert!(self.starting.contains(&key)),
            Step::Start => self.starting.push(key),
            Step::Evict(id) => {
                assert!(!self.leased.iter().any(|(_, leased)| leased == id), "a leased worker was evicted");
                self.ready.retain(|(_, other)| other != id);
                self.starting.push(key);
            }
            Step::Wait(ticket) => self.waiting.push((key, *ticket)),
            Step::Refuse(_) => {}
        }
    }
}

proptest! {
    /// Whatever happens: never above the ceilings, one start for a key, no leased worker evicted, and in the end every ticket is
    /// answered.
    #[test]
    fn any_history_keeps_the_promises(
        ceiling in 1_usize..5,
        memory in 1_usize..4,
        acts in prop::collection::vec((0_u8..7, 0_u8..6, 0_u64..700), 1..200),
    ) {
        let mut state = state(ceiling, memory as u64 * MB);
        let (mut model, mut next_id, mut ms) = (Model::default(), 0, 0);
        let ask = |state: &mut Plain, model: &mut Model, key, ticket, ms| {
            let step = state.want(&key, MB, ticket, at(ms));
            if matches!(step, Step::Start | Step::Evict(_)) {
                state.starting(key, 0, MB);
            }
            model.take(key, ticket, &step);
        };
        let mut finish = |state: &mut Plain, model: &mut Model, well, ms| {
            if let Some(key) = model.starting.pop() {
                next_id += 1;
                if well {
                    assert!(state.started(&key, next_id, next_id, at(ms)));
                    model.ready.push((key, next_id));
                } else {
                    state.failed(&key, "why", None);
                }
            }
        };
        for (act, key, pause) in acts {
            ms += pause;
            match act {
                0 | 1 => ask(&mut state, &mut model, key, None, ms),
                2 => finish(&mut state, &mut model, key % 3 != 0, ms),
                3 => if let Some((key, ticket)) = model.waiting.first().copied() {
                    ask(&mut state, &mut model, key, Some(ticket), ms);
                },
                4 => if let Some((_, ticket)) = model.waiting.pop() { state.leave(ticket); },
                5 => if let Some((key, id)) = model.ready.first().copied() {
                    prop_assert!(state.retire(&key, id).is_some());
                    model.ready.remove(0);
                },
                _ => if let Some((key, id)) = model.leased.pop() { state.returned(&key, id, at(ms)); },
            }
            prop_assert!(model.holds(ceiling, memory));
            prop_assert_eq!(state.gauges(at(ms)).tickets, model.waiting.len());
            prop_assert_eq!(state.gauges(at(ms)).leases, model.leased.len());
        }
        // Everybody finishes; each who waits asks whenever something has changed.
        for _ in 0..1_000 {
            ms += 300;
            finish(&mut state, &mut model, true, ms);
            if let Some((key, id)) = model.leased.pop() {
                state.returned(&key, id, at(ms));
            }
            for (key, ticket) in model.waiting.clone() {
                ask(&mut state, &mut model, key, Some(ticket), ms);
            }
            if model.waiting.is_empty() && model.leased.is_empty() && model.starting.is_empty() {
                break;
            }
        }
        let left = state.gauges(at(ms + 300));
        prop_assert_eq!((left.tickets, left.leases, left.starting, left.memory_bytes), (0, 0, 0, 0));
    }
}
