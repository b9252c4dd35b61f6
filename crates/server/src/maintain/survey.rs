//! What is known of one warehouse, as plain data: which paths its metadata name, which objects it holds, and so which of
//! these may go.
//!
//! References are kept as hashes of 64 bits: two that fall together keep an orphan, and can remove nothing. They have a
//! bound; where a warehouse has more, it is gone through in parts, each with its share of the hashes, and each object is
//! judged in exactly one of them.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::time::SystemTime;

use serde::Serialize;

use super::judge::{
    Kind, Named, Stray, Sweep, Verdict, canonical, is_icebergs, judge, judge_stray, named, stray_folder,
};
use crate::doors::Place;
use crate::doors::storage::Object;

/// Folders of no table that are told apart; the rest is kept and counted together.
const STRAYS_MAX: usize = 100_000;
/// Of what engines asked to delete, so much is known at once; what is beyond is found by the listing alone.
const ASKED_MAX: usize = 2_000_000;
/// Into so many parts a warehouse is cut at most.
const PARTS_MAX: u64 = 64;

/// By what objects are judged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// What was written after this is too young.
    pub(super) cutoff: SystemTime,
    /// Whether what the catalog does not show is gone.
    pub(super) dropped: bool,
    /// References held at once.
    pub(super) references_max: usize,
    /// Orphans found in one run.
    pub(super) orphans_max: usize,
}

/// What was counted in one place: below one table, or outside of all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Tally {
    /// Objects, and bytes.
    pub(super) objects: u64,
    pub(super) bytes: u64,
    /// Those that metadata lead to.
    pub(super) referenced: u64,
    /// Too young to be judged.
    pub(super) young: u64,
    /// No files of Iceberg's: never touched.
    pub(super) unknown: u64,
    /// What may go.
    pub(super) orphans: u64,
    pub(super) orphan_bytes: u64,
    /// What looked as if it might go, and is kept because something could not be read or is missing.
    pub(super) held: u64,
    pub(super) held_bytes: u64,
    /// Files that metadata refer to and that the store does not show.
    pub(super) missing: u64,
    #[serde(skip)]
    expected: u64,
    #[serde(skip)]
    found: u64,
}

/// An object that may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Orphan {
    /// What and where.
    pub(super) object: Object,
    /// The table in whose folder it lies; none for a folder of no table.
    pub(super) table: Option<usize>,
}

/// Folders that belong to no table of the catalog, by what they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Folders {
    pub(super) busy: u64,
    pub(super) dropped: u64,
    pub(super) unfinished: u64,
    pub(super) unknown: u64,
    /// What lies in those of dropped and unfinished tables.
    pub(super) bytes: u64,
}

/// Why a reference was not taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// There are more than are held at once: [`Survey::split`].
    Full,
    /// It is no path that is understood here.
    Odd,
}

/// One warehouse.
pub(super) struct Survey {
    rules: Rules,
    place: Place,
    hasher: RandomState,
    part: u64,
    parts: u64,
    /// Files that have to be there.
    live: HashSet<u64>,
    /// Files that are kept where they are there.
    noted: HashSet<u64>,
    /// What engines have asked to delete.
    asked: HashSet<u64>,
    /// Key of each table's location, with a trailing slash.
    locations: HashMap<String, usize>,
    tables: Vec<Tally>,
    outside: Tally,
    strays: HashMap<String, Stray>,
    orphans: HashMap<u64, Orphan>,
    /// Asked for, and in use: rows that would be lost had the deletion been done.
    saved: u64,
}

impl Survey {
    /// Nothing is known yet but where the warehouse lies.
    pub(super) fn new(rules: Rules, place: Place) -> Self {
        Survey {
            rules,
            place,
            hasher: RandomState::new(),
            part: 0,
            parts: 1,
            live: HashSet::new(),
            noted: HashSet::new(),
            asked: HashSet::new(),
            locations: HashMap::new(),
            tables: Vec::new(),
            outside: Tally::default(),
            strays: HashMap::new(),
            orphans: HashMap::new(),
            saved: 0,
        }
    }

    /// An engine has asked for this key to be deleted.
    pub(super) fn ask(&mut self, key: &str) {
        if self.asked.len() < ASKED_MAX {
            self.asked.insert(self.hash(key));
        }
    }

    /// A table and the key of its location. Its number, under which it is counted.
    pub(super) fn table(&mut self, location: &str) -> usize {
        let number = self.tables.len();
        self.tables.push(Tally::default());
        self.locations.insert(format!("{}/", location.trim_end_matches('/')), number);
        number
    }

    /// Takes in what metadata refer to. `must_be_there`: without it the table cannot be read.
    pub(super) fn refer(&mut self, path: &str, must_be_there: bool) -> Result<(), NotTaken> {
        let key = match named(path, &self.place.bucket) {
            None => return Err(NotTaken::Odd),
            Some(Named::Elsewhere) => return Ok(()),
            Some(Named::Here(key)) => key,
        };
        let hash = self.hash(key);
        if hash % self.parts != self.part {
            return Ok(());
        }
        if self.live.len() + self.noted.len() >= self.rules.references_max {
            return Err(NotTaken::Full);
        }
        if !must_be_there {
            self.noted.insert(hash);
        } else if self.live.insert(hash) && key.starts_with(&self.place.prefix) {
            let table = self.table_of(key).map(|(table, _)| table);
            self.tally(table).expected += 1;
        }
        Ok(())
    }

    /// More references than are held at once: begins anew with more parts. False: there can be no more.
    pub(super) fn split(&mut self) -> bool {
        self.parts *= 2;
        self.tables.clear();
        self.locations.clear();
        self.strays.clear();
        self.orphans.clear();
        self.outside = Tally::default();
        self.saved = 0;
        self.begin(0);
        self.parts <= PARTS_MAX
    }

    /// Goes on to the next part, if there is one.
    pub(super) fn next_part(&mut self) -> bool {
        let next = self.part + 1;
        if next < self.parts {
            self.begin(next);
        }
        next < self.parts
    }

    /// Whether it is the first time that metadata are gone through.
    pub(super) fn is_first_part(&self) -> bool {
        self.part == 0
    }

    /// Whether metadata are gone through more than once.
    pub(super) fn has_parts(&self) -> bool {
        self.parts > 1
    }

    fn begin(&mut self, part: u64) {
        self.part = part;
        self.live.clear();
        self.noted.clear();
    }

    /// Takes in an object of the warehouse's place, after all references of this part.
    pub(super) fn see(&mut self, object: Object) {
        let hash = self.hash(&object.key);
        if hash % self.parts != self.part {
            return;
        }
        let live = self.live.contains(&hash);
        let referenced = live || self.noted.contains(&hash);
        let asked = self.asked.contains(&hash);
        self.saved += u64::from(referenced && asked);
        let (table, below) = match self.table_of(&object.key) {
            Some((table, below)) => (Some(table), below.to_owned()),
            None => (None, String::new()),
        };
        let tally = self.tally(table);
        tally.objects += 1;
        tally.bytes += object.bytes;
        tally.found += u64::from(live);
        if table.is_none() {
            return self.see_stray(&object, referenced, asked);
        }
        let verdict = judge(&below, referenced, object.modified, self.rules.cutoff);
        let tally = self.tally(table);
        match verdict {
            Verdict::Referenced => tally.referenced += 1,
            Verdict::Young => tally.young += 1,
            Verdict::Unknown => tally.unknown += 1,
            Verdict::Orphan => self.orphan(hash, Orphan { object, table }),
        }
    }

    fn see_stray(&mut self, object: &Object, referenced: bool, asked: bool) {
        let tally = &mut self.outside;
        *(if referenced { &mut tally.referenced } else { &mut tally.unknown }) += 1;
        let Some(below) = object.key.strip_prefix(&self.place.prefix) else { return };
        let Some((folder, rest)) = stray_folder(below) else { return };
        if self.strays.len() >= STRAYS_MAX && !self.strays.contains_key(folder) {
            return;
        }
        let stray = self.strays.entry(folder.to_owned()).or_insert(Stray {
            objects: 0,
            bytes: 0,
            youngest: SystemTime::UNIX_EPOCH,
            referenced: false,
            committed: false,
            asked: false,
            foreign: false,
        });
        stray.objects += 1;
        stray.bytes += object.bytes;
        stray.youngest = stray.youngest.max(object.modified);
        stray.referenced |= referenced;
        stray.committed |= rest.ends_with(".metadata.json");
        stray.asked |= asked;
        stray.foreign |= !is_icebergs(rest);
    }

    /// Everything was seen. `whole`: all metadata could be read. Returns the folders of no table from which something may go,
    /// as prefixes of keys.
    pub(super) fn conclude(&mut self, whole: bool) -> (Folders, Vec<(String, Sweep)>) {
        for tally in self.tables.iter_mut().chain([&mut self.outside]) {
            tally.missing = tally.expected.saturating_sub(tally.found);
            if tally.missing > 0 || !whole {
                tally.held = std::mem::take(&mut tally.orphans);
                tally.held_bytes = std::mem::take(&mut tally.orphan_bytes);
            }
        }
        let tables = &self.tables;
        self.orphans.retain(|_, orphan| {
            whole && orphan.table.and_then(|table| tables.get(table)).is_some_and(|tally| tally.missing == 0)
        });
        let sound = whole && self.outside.missing == 0;
        let mut folders = Folders::default();
        let mut sweeps = Vec::new();
        for (folder, stray) in self.strays.drain() {
            let (kind, sweep) = judge_stray(&folder, &stray, self.rules.dropped, self.rules.cutoff);
            match kind {
                Kind::Busy => folders.busy += 1,
                Kind::Dropped => folders.dropped += 1,
                Kind::Unfinished => folders.unfinished += 1,
                Kind::Unknown => folders.unknown += 1,
            }
            if matches!(kind, Kind::Dropped | Kind::Unfinished) {
                folders.bytes += stray.bytes;
            }
            if sound && sweep != Sweep::Nothing {
                sweeps.push((format!("{}{folder}/", self.place.prefix), sweep));
            }
        }
        sweeps.sort_by(|(a, _), (b, _)| a.cmp(b));
        (folders, sweeps)
    }

    /// Takes in an object of such a folder, seen once more.
    pub(super) fn sweep(&mut self, folder: &str, sweep: Sweep, object: Object) {
        let hash = self.hash(&object.key);
        let Some(below) = object.key.strip_prefix(folder) else { return };
        let wanted = sweep == Sweep::All || (sweep == Sweep::Asked && self.asked.contains(&hash));
        if wanted && object.modified <= self.rules.cutoff && is_icebergs(below) {
            self.outside.unknown = self.outside.unknown.saturating_sub(1);
            self.orphan(hash, Orphan { object, table: None });
        }
    }

    /// Metadata that came after all objects were seen refer to this: it is no orphan, whatever was found before.
    pub(super) fn refer_late(&mut self, path: &str) -> Result<(), NotTaken> {
        match named(path, &self.place.bucket) {
            None => return Err(NotTaken::Odd),
            Some(Named::Elsewhere) => {}
            Some(Named::Here(key)) => {
                if let Some(orphan) = self.orphans.remove(&self.hash(key)) {
                    self.spared(&orphan);
                }
            }
        }
        Ok(())
    }

    /// A table lies here, as was seen after all objects: what lies below is no folder of nobody's.
    pub(super) fn table_late(&mut self, location: &str) {
        let below = format!("{}/", location.trim_end_matches('/'));
        let gone = self.orphans.extract_if(|_, o| o.table.is_none() && o.object.key.starts_with(&below));
        let gone: Vec<_> = gone.map(|(_, orphan)| orphan).collect();
        for orphan in &gone {
            self.spared(orphan);
        }
    }

    fn spared(&mut self, orphan: &Orphan) {
        let tally = self.tally(orphan.table);
        tally.orphans = tally.orphans.saturating_sub(1);
        tally.orphan_bytes = tally.orphan_bytes.saturating_sub(orphan.object.bytes);
        tally.referenced += 1;
    }

    /// Nothing below this table may go any more; without a table, nothing at all.
    pub(super) fn hold(&mut self, table: Option<usize>) {
        let all = table.is_none();
        for (number, tally) in self.tables.iter_mut().chain([&mut self.outside]).enumerate() {
            if all || table == Some(number) {
                tally.held += std::mem::take(&mut tally.orphans);
                tally.held_bytes += std::mem::take(&mut tally.orphan_bytes);
            }
        }
        self.orphans.retain(|_, orphan| !all && orphan.table != table);
    }

    fn orphan(&mut self, hash: u64, orphan: Orphan) {
        let tally = self.tally(orphan.table);
        tally.orphans += 1;
        tally.orphan_bytes += orphan.object.bytes;
        if self.orphans.len() < self.rules.orphans_max {
            self.orphans.insert(hash, orphan);
        }
    }

    /// What may go, as is known now; sorted, so that a table's come together.
    pub(super) fn orphans(&self) -> Vec<Orphan> {
        let mut orphans: Vec<_> = self.orphans.values().cloned().collect();
        orphans.sort_by(|a, b| (a.table, &a.object.key).cmp(&(b.table, &b.object.key)));
        orphans
    }

    /// Whether it still may go.
    pub(super) fn is_orphan(&self, orphan: &Orphan) -> bool {
        self.orphans.get(&self.hash(&orphan.object.key)) == Some(orphan)
    }

    /// What was counted: below each table, outside of all, and of what was asked for but is in use.
    pub(super) fn counted(&self) -> (&[Tally], &Tally, u64) {
        (&self.tables, &self.outside, self.saved)
    }

    fn tally(&mut self, table: Option<usize>) -> &mut Tally {
        match table.and_then(|table| self.tables.get_mut(table)) {
            Some(tally) => tally,
            None => &mut self.outside,
        }
    }

    /// The innermost table in whose folder a key lies, and the rest of the key.
    fn table_of<'k>(&self, key: &'k str) -> Option<(usize, &'k str)> {
        key.rmatch_indices('/').find_map(|(at, _)| {
            let table = *self.locations.get(&key[..=at])?;
            Some((table, &key[at + 1..]))
        })
    }

    fn hash(&self, key: &str) -> u64 {
        self.hasher.hash_one(canonical(key).as_ref())
    }
}
