//! One warehouse, from its name to what was found and removed. The order is what makes it safe beside writers:
//!
//! 1. all metadata are gone through, then all objects are listed;
//! 2. then all tables are listed and loaded once more, and what is new in their metadata is gone through: so nothing that was
//!    committed meanwhile goes;
//! 3. before each batch of deletions the table is loaded once more;
//! 4. what is younger than the grace does not go in any case: it may belong to a commit under way.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use futures::{StreamExt, TryStreamExt, stream};
use indicatif::ProgressBar;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::Keeper;
use super::journal::Journal;
use super::judge::{Named, named};
use super::metadata::Table;
use super::survey::{Folders, Orphan, Rules, Survey, Tally};
use super::walk::{Counts, Stopped, Walker};
use crate::doors::Place;
use crate::doors::catalog::TableId;
use crate::doors::storage::{Store, StoreError, candidates};

/// Objects removed between two looks at their table.
const BATCH: usize = 500;
/// Notes of one warehouse that are kept.
const NOTES_MAX: usize = 100;

const TOLD: &str = "told to stop";

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// What a run does with what it finds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mode {
    /// Removes it; without, it only tells.
    pub remove: bool,
    /// Takes what the catalog does not show for gone.
    pub dropped: bool,
    /// Names every orphan.
    pub list: bool,
}

/// A table, as it was found.
#[derive(Debug, Clone, Serialize)]
pub(super) struct TableFound {
    pub(super) table: String,
    #[serde(flatten)]
    pub(super) counts: Counts,
    #[serde(flatten)]
    pub(super) tally: Tally,
    pub(super) removed: u64,
}

/// A warehouse, as it was found and left.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Found {
    pub(super) warehouse: String,
    /// Whether all metadata could be read, and nothing was held back.
    pub(super) whole: bool,
    #[serde(skip)]
    pub(super) tables: Vec<TableFound>,
    /// Below no table of the catalog.
    pub(super) outside: Tally,
    pub(super) folders: Folders,
    /// What engines asked to delete and tables still need.
    pub(super) saved: u64,
    pub(super) removed: u64,
    pub(super) removed_bytes: u64,
    pub(super) failed: u64,
    /// There were more orphans than one run removes.
    pub(super) more: bool,
    pub(super) notes: Vec<String>,
    #[serde(skip)]
    pub(super) listed: Vec<Orphan>,
    /// What was written up to then was judged.
    #[serde(skip)]
    pub(super) cutoff: SystemTime,
}

/// A table that the first inventory showed.
struct Known {
    id: TableId,
    number: usize,
    counts: Counts,
    removed: u64,
}

/// One warehouse under way.
pub(super) struct Work<'w> {
    keeper: &'w Keeper,
    name: &'w str,
    place: &'w Place,
    mode: Mode,
    cutoff: SystemTime,
    survey: Survey,
    walker: Walker<'w>,
    known: Vec<Known>,
    whole: bool,
    notes: Vec<String>,
    stop: CancellationToken,
    bar: ProgressBar,
}

/// Finds what there is and, if it is told to, removes what nobody needs.
pub(super) async fn maintain(
    keeper: &Keeper,
    name: &str,
    mode: Mode,
    journal: Option<&Journal>,
    (stop, bar): (&CancellationToken, &ProgressBar),
) -> Result<Found, Failed> {
    let place = keeper.places.place_of(name).await.map_err(|fault| format!("{fault}: {}", fault.chain()))?;
    let mut work = Work::begin(keeper, (name, &place), mode, (stop, bar)).await?;
    work.look().await?;
    let folders = work.conclude().await?;
    work.look_again().await?;
    let mut found = work.found(folders);
    if let Some(journal) = journal {
        work.remove(journal, &mut found).await?;
    }
    Ok(work.told(found))
}

impl<'w> Work<'w> {
    async fn begin(
        keeper: &'w Keeper,
        (name, place): (&'w str, &'w Place),
        mode: Mode,
        (stop, bar): (&CancellationToken, &ProgressBar),
    ) -> Result<Work<'w>, Failed> {
        let settings = &keeper.settings;
        let cutoff = SystemTime::now() - Duration::from_secs(settings.grace_s);
        let mut notes = Vec::new();
        let dropped = mode.dropped && keeper.may_drop(name, &mut notes).await;
        let rules = Rules {
            cutoff,
            dropped,
            references_max: settings.references_max,
            orphans_max: settings.orphans_max,
        };
        let survey = keeper.asked(Survey::new(rules, place.clone()), name, &place.bucket).await?;
        let limits = (settings.requests_max, settings.small_bytes);
        let walker = Walker::new(&keeper.upstream, &keeper.store, (name, place), limits);
        let (known, whole, stop, bar) = (Vec::new(), true, stop.clone(), bar.clone());
        Ok(Work { keeper, name, place, mode, cutoff, survey, walker, known, whole, notes, stop, bar })
    }

    /// Metadata first, then objects; in as many parts as it takes.
    async fn look(&mut self) -> Result<(), Failed> {
        let ids = self.keeper.upstream.inventory(self.name).await?;
        loop {
            self.walker.forget();
            match self.take_in_metadata(&ids).await {
                Ok(()) => {}
                Err(Stopped::Full) if self.survey.split() => {
                    self.known.clear();
                    continue;
                }
                Err(Stopped::Full) => {
                    return Err("it has more references than any number of parts holds".into());
                }
                Err(Stopped::Unreadable(why)) => return Err(why.into()),
            }
            self.take_in_objects().await?;
            if !self.survey.next_part() {
                return Ok(());
            }
        }
    }

    async fn take_in_metadata(&mut self, ids: &[TableId]) -> Result<(), Stopped> {
        let first = self.survey.is_first_part();
        self.bar.reset();
        self.bar.set_length(ids.len() as u64);
        self.bar.set_message(format!("{}: metadata", self.name));
        for id in ids {
            if self.stop.is_cancelled() {
                return Err(Stopped::Unreadable(TOLD.to_owned()));
            }
            match self.take_in(id, first).await {
                Ok(()) => {}
                Err(Stopped::Full) => return Err(Stopped::Full),
                Err(Stopped::Unreadable(why)) => self.cannot_read(id, &why),
            }
            self.bar.inc(1);
        }
        Ok(())
    }

    async fn take_in(&mut self, id: &TableId, first: bool) -> Result<(), Stopped> {
        let known = self.known.iter().position(|known| known.id == *id);
        let Some(table) = self.walker.load(id).await? else {
            // In the first part it is as if it had never been listed.
            let seen = known.is_some().then(|| Stopped::Unreadable("it was dropped meanwhile".to_owned()));
            return seen.map_or(Ok(()), Err);
        };
        let known = match known {
            None if first => self.meet(id, &table)?,
            known => known,
        };
        let survey = &mut self.survey;
        let mut sink = |path: &str, must_be_there: bool| survey.refer(path, must_be_there);
        let counts = self.walker.walk(&table, &mut sink).await?;
        if let Some(known) = known.filter(|_| first).and_then(|at| self.known.get_mut(at)) {
            known.counts = counts;
        }
        Ok(())
    }

    /// Takes a table in by its location. One outside of the warehouse's place is only read, for what it refers to.
    fn meet(&mut self, id: &TableId, table: &Table) -> Result<Option<usize>, Stopped> {
        let Some(location) = self.location(table)? else {
            self.note(format!("{id}: lies outside of the warehouse's place, and is left alone"));
            return Ok(None);
        };
        let number = self.survey.table(&location);
        self.known.push(Known { id: id.clone(), number, counts: Counts::default(), removed: 0 });
        Ok(Some(self.known.len() - 1))
    }

    /// The key of a table's location, if that is inside the warehouse's place.
    fn location(&self, table: &Table) -> Result<Option<String>, Stopped> {
        let odd = || Stopped::Unreadable(format!("{}: no path of an object", table.location));
        Ok(match named(&table.location, &self.place.bucket).ok_or_else(odd)? {
            Named::Elsewhere => None,
            Named::Here(key) => key.starts_with(&self.place.prefix).then(|| key.to_owned()),
        })
    }

    async fn take_in_objects(&mut self) -> Result<(), Failed> {
        self.bar.reset();
        self.bar.unset_length();
        self.bar.set_message(format!("{}: objects", self.name));
        let mut objects = self.keeper.store.objects(&self.place.bucket, &self.place.prefix);
        while let Some(object) = objects.try_next().await? {
            self.goes_on()?;
            self.survey.see(object);
            self.bar.inc(1);
        }
        Ok(())
    }

    /// Everything was seen once. Folders of no table are listed once more, for what of them may go.
    async fn conclude(&mut self) -> Result<Folders, Failed> {
        let (folders, sweeps) = self.survey.conclude(self.whole);
        for (folder, sweep) in sweeps {
            let mut objects = self.keeper.store.objects(&self.place.bucket, &folder);
            while let Some(object) = objects.try_next().await? {
                self.survey.sweep(&folder, sweep, object);
            }
        }
        Ok(folders)
    }

    /// Step 2: what came since.
    async fn look_again(&mut self) -> Result<(), Failed> {
        if self.survey.has_parts() {
            // What was new in one part was told only to that part: everything is gone through.
            self.walker.forget();
        }
        let ids = self.keeper.upstream.inventory(self.name).await?;
        let gone: Vec<_> = self.known.iter().filter(|known| !ids.contains(&known.id)).collect();
        let gone: Vec<_> = gone.into_iter().map(|known| (known.id.clone(), known.number)).collect();
        for (id, number) in gone {
            self.note(format!("{id}: it was dropped or renamed meanwhile"));
            self.survey.hold(Some(number));
        }
        self.bar.reset();
        self.bar.set_length(ids.len() as u64);
        self.bar.set_message(format!("{}: metadata, once more", self.name));
        for id in &ids {
            self.goes_on()?;
            if let Err(why) = self.take_in_late(id).await {
                self.cannot_read(id, &why);
            }
            self.bar.inc(1);
        }
        if !self.whole {
            self.survey.hold(None);
        }
        Ok(())
    }

    /// Takes in what is new in a table's metadata. An error: it cannot be read, and nothing may go.
    async fn take_in_late(&mut self, id: &TableId) -> Result<(), String> {
        let said = |stopped| match stopped {
            Stopped::Unreadable(why) => why,
            Stopped::Full => "no room for its references".to_owned(),
        };
        let Some(table) = self.walker.load(id).await.map_err(said)? else {
            return Err("it was dropped meanwhile".to_owned());
        };
        if let Some(location) = self.location(&table).map_err(said)? {
            self.survey.table_late(&location);
        }
        let survey = &mut self.survey;
        let mut sink = |path: &str, _: bool| survey.refer_late(path);
        self.walker.walk(&table, &mut sink).await.map_err(said)?;
        Ok(())
    }

    /// Step 3: batch by batch, a table's together.
    async fn remove(&mut self, journal: &Journal, found: &mut Found) -> Result<(), Failed> {
        let orphans = self.survey.orphans();
        self.bar.reset();
        self.bar.set_length(orphans.len() as u64);
        self.bar.set_message(format!("{}: removing", self.name));
        for of_table in orphans.chunk_by(|a, b| a.table == b.table) {
            for batch in of_table.chunks(BATCH) {
                if self.stop.is_cancelled() {
                    found.notes.push("told to stop: the rest is left to the next run".to_owned());
                    found.more = true;
                    return Ok(());
                }
                self.remove_batch(batch, journal, found).await?;
                self.bar.inc(batch.len() as u64);
            }
        }
        Ok(())
    }

    async fn remove_batch(
        &mut self,
        batch: &[Orphan],
        journal: &Journal,
        found: &mut Found,
    ) -> Result<(), Failed> {
        let number = batch.first().and_then(|orphan| orphan.table);
        if let Some(known) = self.known.iter().find(|known| Some(known.number) == number) {
            let id = known.id.clone();
            if let Err(why) = self.take_in_late(&id).await {
                self.cannot_read(&id, &why);
                self.survey.hold(None);
            }
        }
        let doomed: Vec<_> = batch.iter().filter(|orphan| self.survey.is_orphan(orphan)).cloned().collect();
        let names: HashMap<usize, String> =
            self.known.iter().map(|known| (known.number, known.id.to_string())).collect();
        let name = |orphan: &Orphan| names.get(&orphan.table?).map(String::as_str);
        // Waits for the disk.
        tokio::task::block_in_place(|| journal.intend((self.name, &self.place.bucket), &doomed, name))?;
        let deletions =
            doomed.into_iter().map(|orphan| delete(&self.keeper.store, &self.place.bucket, orphan));
        let deleted = stream::iter(deletions).buffer_unordered(self.keeper.settings.requests_max);
        let outcomes: Vec<_> = deleted.collect().await;
        for (orphan, outcome) in outcomes {
            if let Err(error) = outcome {
                found.failed += 1;
                self.note(format!("{}: {error}", orphan.object.key));
                continue;
            }
            found.removed += 1;
            found.removed_bytes += orphan.object.bytes;
            if let Some(known) = self.known.iter_mut().find(|known| Some(known.number) == orphan.table) {
                known.removed += 1;
            }
        }
        Ok(())
    }

    fn goes_on(&self) -> Result<(), Failed> {
        if self.stop.is_cancelled() { Err(TOLD.into()) } else { Ok(()) }
    }

    fn cannot_read(&mut self, id: &TableId, why: &str) {
        self.whole = false;
        self.note(format!("{id}: {why}"));
    }

    fn note(&mut self, note: String) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(note);
        }
    }

    fn found(&self, folders: Folders) -> Found {
        let (tables, outside, _) = self.survey.counted();
        let orphans: u64 = tables.iter().chain([outside]).map(|tally| tally.orphans).sum();
        let held = self.survey.orphans();
        Found {
            warehouse: self.name.to_owned(),
            whole: false,
            tables: Vec::new(),
            outside: Tally::default(),
            folders,
            saved: 0,
            removed: 0,
            removed_bytes: 0,
            failed: 0,
            more: orphans > held.len() as u64,
            notes: Vec::new(),
            listed: if self.mode.list { held } else { Vec::new() },
            cutoff: self.cutoff,
        }
    }

    /// The counts as they are at the end.
    fn told(self, found: Found) -> Found {
        let (tallies, outside, saved) = self.survey.counted();
        let tally = |number: usize| tallies.get(number).cloned().unwrap_or_default();
        let tables = self.known.iter().map(|known| TableFound {
            table: known.id.to_string(),
            counts: known.counts,
            tally: tally(known.number),
            removed: known.removed,
        });
        let tables: Vec<_> = tables.collect();
        let held: u64 = tallies.iter().chain([outside]).map(|tally| tally.held + tally.missing).sum();
        let notes = self.notes.into_iter().chain(found.notes).collect();
        let whole = self.whole && held == 0;
        Found { tables, outside: outside.clone(), saved, notes, whole, ..found }
    }
}

async fn delete(store: &Store, bucket: &str, orphan: Orphan) -> (Orphan, Result<(), StoreError>) {
    let outcome = store.delete(bucket, &orphan.object.key).await;
    (orphan, outcome)
}

impl Keeper {
    /// Whether what the catalog does not show may be taken for gone: not where it has things that are no tables.
    async fn may_drop(&self, warehouse: &str, notes: &mut Vec<String>) -> bool {
        let other = self.upstream.has_other_things(warehouse).await;
        match &other {
            Ok(false) => return true,
            Ok(true) => notes.push(
                "it has views, or dropped tables that can be had back: folders of no table are left alone"
                    .to_owned(),
            ),
            Err(error) => notes.push(format!("folders of no table are left alone: {error}")),
        }
        false
    }

    /// Tells the survey what engines have asked to delete.
    async fn asked(&self, mut survey: Survey, warehouse: &str, bucket: &str) -> Result<Survey, Failed> {
        let (ledgers, warehouse, bucket) = (self.ledgers.clone(), warehouse.to_owned(), bucket.to_owned());
        let read = move || -> std::io::Result<Survey> {
            for ledger in ledgers {
                candidates(&ledger, |candidate| {
                    if candidate.warehouse == warehouse && candidate.bucket == bucket {
                        survey.ask(&candidate.key);
                    }
                })?;
            }
            Ok(survey)
        };
        Ok(tokio::task::spawn_blocking(read).await??)
    }
}
