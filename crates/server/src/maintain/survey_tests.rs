//! Any warehouse, any metadata, any moment: nothing that is in use goes, and everything that nobody needs is found.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use super::judge::Sweep;
use super::survey::{NotTaken, Rules, Survey};
use crate::doors::Place;
use crate::doors::storage::Object;

/// Old is at most this.
const CUTOFF_S: u64 = 1_000;
const LOCATIONS: [&str; 4] = ["w/a", "w/b", "w/a/inner", "w/deep/er/c"];
const STRAYS: [&str; 3] = ["w/gone", "w/019c2f6e-6c3c-7d5e-9d3b-3f0f5f1a2b3c", "w/files"];

#[derive(Debug, Clone)]
struct Thing {
    key: String,
    written_s: u64,
    /// Which tables refer to it, and whether one does that is committed after all objects were seen.
    referred_by: BTreeSet<usize>,
    late: bool,
    asked: bool,
    there: bool,
}

impl Thing {
    fn is_old(&self) -> bool {
        self.written_s <= CUTOFF_S
    }

    fn is_used(&self) -> bool {
        !self.referred_by.is_empty() || self.late
    }

    fn is_text(&self) -> bool {
        self.key.contains(".txt")
    }

    fn lies_in(&self, folder: &str) -> bool {
        self.key.starts_with(&format!("{folder}/"))
    }
}

fn thing() -> impl Strategy<Value = Thing> {
    let folders = LOCATIONS.iter().chain(&STRAYS).map(|folder| (*folder).to_owned()).collect::<Vec<_>>();
    let names = [
        "data/{}.parquet",
        "data/k=x%3Dy/{}.parquet",
        "metadata/{}.avro",
        "metadata/{}.metadata.json",
        "{}.txt",
        "other/{}.parquet",
    ];
    let place = (prop::sample::select(folders), prop::sample::select(names.to_vec()), 0_u32..60);
    let uses =
        (prop::collection::btree_set(0..LOCATIONS.len(), 0..2), any::<bool>(), prop::bool::weighted(0.1));
    (place, CUTOFF_S - 5..CUTOFF_S + 3, uses, prop::bool::weighted(0.97)).prop_map(
        |((folder, name, number), written_s, (referred_by, asked, late), there)| Thing {
            key: format!("{folder}/{}", name.replace("{}", &number.to_string())),
            written_s,
            referred_by,
            late,
            asked,
            there,
        },
    )
}

#[derive(Debug, Clone)]
struct World {
    things: BTreeMap<String, Thing>,
    tables: usize,
    whole: bool,
    dropped: bool,
    references_max: usize,
}

fn world() -> impl Strategy<Value = World> {
    let things = prop::collection::vec(thing(), 0..120);
    (
        things,
        0..=LOCATIONS.len(),
        prop::bool::weighted(0.9),
        any::<bool>(),
        prop_oneof![Just(1_000), 4_usize..40],
    )
        .prop_map(|(things, tables, whole, dropped, references_max)| World {
            things: things
                .into_iter()
                .map(|mut thing| {
                    thing.referred_by.retain(|table| *table < tables);
                    // What is not there is only known by a reference.
                    thing.there |= thing.referred_by.is_empty();
                    (thing.key.clone(), thing)
                })
                .collect(),
            tables,
            whole,
            dropped,
            references_max,
        })
}

fn object(thing: &Thing) -> Object {
    let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(thing.written_s);
    Object { key: thing.key.clone(), bytes: 3, modified }
}

impl World {
    fn survey(&self, references_max: usize) -> Survey {
        let rules = Rules {
            cutoff: SystemTime::UNIX_EPOCH + Duration::from_secs(CUTOFF_S),
            dropped: self.dropped,
            references_max,
            orphans_max: 1_000,
        };
        let mut survey = Survey::new(rules, Place { bucket: "lake".into(), prefix: "w/".into() });
        for thing in self.things.values().filter(|thing| thing.asked) {
            survey.ask(&thing.key);
        }
        survey
    }

    /// Goes through everything as the edge does, and says what may go.
    fn orphans(&self, references_max: usize) -> BTreeSet<String> {
        let mut survey = self.survey(references_max);
        'anew: loop {
            loop {
                if survey.is_first_part() {
                    LOCATIONS[..self.tables]
                        .iter()
                        .for_each(|location| assert!(survey.table(location) < self.tables));
                }
                for thing in self.things.values() {
                    for table in &thing.referred_by {
                        let scheme = if *table == 0 { "s3a" } else { "s3" };
                        match survey.refer(&format!("{scheme}://lake/{}", thing.key), true) {
                            Ok(()) => {}
                            Err(NotTaken::Full) => {
                                assert!(survey.split());
                                continue 'anew;
                            }
                            Err(NotTaken::Odd) => unreachable!(),
                        }
                    }
                }
                for thing in self.things.values().filter(|thing| thing.there) {
                    survey.see(object(thing));
                }
                if !survey.next_part() {
                    break 'anew;
                }
            }
        }
        let (_, sweeps) = survey.conclude(self.whole);
        for (folder, sweep) in sweeps {
            assert!(sweep != Sweep::Nothing);
            for thing in self.things.values().filter(|thing| thing.there && thing.key.starts_with(&folder)) {
                survey.sweep(&folder, sweep, object(thing));
            }
        }
        for thing in self.things.values().filter(|thing| thing.late) {
            survey.refer_late(&format!("s3://lake/{}", thing.key)).unwrap();
        }
        let orphans = survey.orphans();
        let (tables, outside, _) = survey.counted();
        let counted: u64 = tables.iter().chain([outside]).map(|tally| tally.orphans).sum();
        assert_eq!(counted, orphans.len() as u64, "what is told is what goes");
        let objects: u64 = tables.iter().chain([outside]).map(|tally| tally.objects).sum();
        assert_eq!(objects, self.things.values().filter(|thing| thing.there).count() as u64);
        orphans.into_iter().map(|orphan| orphan.object.key).collect()
    }

    /// The innermost table in whose folder it lies.
    fn table_of(&self, thing: &Thing) -> Option<&'static str> {
        let mine = LOCATIONS[..self.tables].iter().filter(|location| thing.lies_in(location));
        mine.max_by_key(|location| location.len()).copied()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn whatever_is_there_nothing_in_use_goes_and_every_orphan_is_found(world in world()) {
        let orphans = world.orphans(1_000);
        let missing = |table| world.things.values().any(|t| !t.there && world.table_of(t) == table);
        for thing in world.things.values().filter(|thing| thing.there) {
            let goes = orphans.contains(&thing.key);
            prop_assert!(!(goes && thing.is_used()), "in use: {thing:?}");
            prop_assert!(!goes || thing.is_old(), "young: {thing:?}");
            prop_assert!(!goes || world.whole, "although not everything was read: {thing:?}");
            prop_assert!(!(goes && thing.is_text()), "not Iceberg's: {thing:?}");
            let table = world.table_of(thing);
            prop_assert!(!(goes && missing(table)), "although files of its table are missing: {thing:?}");
            let Some(location) = table else {
                prop_assert!(!goes || world.dropped || thing.asked, "of no table, and nobody asked: {thing:?}");
                continue;
            };
            let below = &thing.key[location.len() + 1..];
            let ours = (below.starts_with("data/") || below.starts_with("metadata/")) && !thing.is_text();
            let may_go = world.whole && ours && thing.is_old() && !thing.is_used() && !missing(table);
            prop_assert_eq!(goes, may_go, "{:?}", thing);
        }
    }

    #[test]
    fn in_however_many_parts_the_same_goes(world in world()) {
        prop_assert_eq!(world.orphans(world.references_max), world.orphans(1_000));
    }

    #[test]
    fn a_folder_of_no_table_goes_only_when_it_was_one_and_is_done(world in world()) {
        let orphans = world.orphans(1_000);
        for folder in STRAYS {
            let inside: Vec<_> = world.things.values().filter(|t| t.there && t.lies_in(folder) && world.table_of(t).is_none()).collect();
            let goes = inside.iter().any(|thing| orphans.contains(&thing.key));
            let in_folders: Vec<_> = inside.iter().filter(|t| t.key[folder.len() + 1..].starts_with("data/") || t.key[folder.len() + 1..].starts_with("metadata/")).collect();
            if goes {
                prop_assert!(in_folders.iter().all(|thing| thing.is_old()), "busy: {folder}");
                prop_assert!(in_folders.iter().all(|thing| thing.referred_by.is_empty()), "in use: {folder}");
                let committed = in_folders.iter().any(|thing| thing.key.ends_with(".metadata.json"));
                prop_assert!(world.dropped || !committed, "a dropped table goes only when that is said: {folder}");
                let asked = in_folders.iter().any(|thing| thing.asked);
                prop_assert!(committed || asked || folder == STRAYS[1], "anybody's: {folder}");
            }
        }
    }

    #[test]
    fn what_is_held_does_not_go(world in world(), table in 0_usize..4) {
        let mut survey = world.survey(1_000);
        LOCATIONS[..world.tables].iter().for_each(|location| { survey.table(location); });
        world.things.values().for_each(|thing| survey.see(object(thing)));
        survey.conclude(true);
        survey.hold(Some(table));
        prop_assert!(survey.orphans().iter().all(|orphan| orphan.table != Some(table)));
        survey.hold(None);
        prop_assert!(survey.orphans().is_empty());
    }
}

/// A warehouse whose metadata name keys as the store spells them, or not, is not to be told apart by us.
#[test]
fn a_name_spelled_otherwise_still_counts_as_used() {
    let rules = Rules { cutoff: SystemTime::now(), dropped: false, references_max: 10, orphans_max: 10 };
    let mut survey = Survey::new(rules, Place { bucket: "lake".into(), prefix: "w/".into() });
    survey.table("w/a");
    survey.refer("s3://lake/w/a/data/k=x%253Dy/1.parquet", true).unwrap();
    let old = |key: &str| Object { key: key.into(), bytes: 1, modified: SystemTime::UNIX_EPOCH };
    survey.see(old("w/a/data/k=x%3Dy/1.parquet"));
    survey.see(old("w/a/data/k=x%3Dy/2.parquet"));
    survey.conclude(true);
    let orphans: Vec<_> = survey.orphans().into_iter().map(|orphan| orphan.object.key).collect();
    assert_eq!(orphans, ["w/a/data/k=x%3Dy/2.parquet"]);
}

#[test]
fn a_table_that_appears_late_keeps_its_folder() {
    let rules = Rules { cutoff: SystemTime::now(), dropped: true, references_max: 10, orphans_max: 10 };
    let mut survey = Survey::new(rules, Place { bucket: "lake".into(), prefix: "w/".into() });
    let old = |key: &str| Object { key: key.into(), bytes: 1, modified: SystemTime::UNIX_EPOCH };
    let keys = ["w/a/metadata/1.metadata.json", "w/ab/metadata/1.metadata.json"];
    for key in keys {
        survey.see(old(key));
    }
    for (folder, sweep) in survey.conclude(true).1 {
        for key in keys {
            survey.sweep(&folder, sweep, old(key));
        }
    }
    assert_eq!(survey.orphans().len(), 2);
    survey.table_late("w/a");
    assert_eq!(survey.orphans()[0].object.key, keys[1]);
    assert_eq!(survey.orphans().len(), 1);
}
