//! From a table's name to every file that its metadata name: catalog → metadata → manifest lists → manifests.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use tokio::sync::mpsc;

use super::judge::{Named, named};
use super::metadata::{self, File, Manifests, Table, Unreadable};
use super::survey::NotTaken;
use crate::doors::Place;
use crate::doors::catalog::{TableId, Upstream};
use crate::doors::storage::Store;

/// A manifest or a manifest list that is longer is not read.
const MANIFEST_BYTES_MAX: u64 = 32 << 20;
/// Manifests and lists of one warehouse, 20 bytes of memory each.
const VISITED_MAX: usize = 4_000_000;
/// Files of a manifest on their way from the thread that reads it.
const BATCH: usize = 1_024;

/// Why a table was not gone through to its end.
#[derive(Debug)]
pub(super) enum Stopped {
    /// Something of it cannot be read.
    Unreadable(String),
    /// Its references do not find room: another try with more parts.
    Full,
}

impl From<Unreadable> for Stopped {
    fn from(error: Unreadable) -> Self {
        Stopped::Unreadable(error.to_string())
    }
}

/// What the current snapshot of a table consists of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    /// All that the table has.
    pub(super) snapshots: u64,
    /// Of the current one: every commit adds at least one.
    pub(super) manifests: u64,
    pub(super) data_files: u64,
    /// Of these, the small ones.
    pub(super) small_files: u64,
    /// Files that say which rows are deleted.
    pub(super) delete_files: u64,
}

/// Takes in a path, and whether the file must be there.
pub(super) type Sink<'s> = dyn FnMut(&str, bool) -> Result<(), NotTaken> + Send + 's;

/// Goes through the tables of one warehouse.
pub(super) struct Walker<'w> {
    pub(super) upstream: &'w Upstream,
    pub(super) store: &'w Store,
    pub(super) warehouse: &'w str,
    pub(super) place: &'w Place,
    pub(super) requests_max: usize,
    pub(super) small_bytes: u64,
    hasher: RandomState,
    visited: HashSet<u64>,
}

impl<'w> Walker<'w> {
    pub(super) fn new(
        upstream: &'w Upstream,
        store: &'w Store,
        (warehouse, place): (&'w str, &'w Place),
        (requests_max, small_bytes): (usize, u64),
    ) -> Self {
        let (hasher, visited) = (RandomState::new(), HashSet::new());
        Walker { upstream, store, warehouse, place, requests_max, small_bytes, hasher, visited }
    }

    /// Begins anew: what was gone through before is gone through again.
    pub(super) fn forget(&mut self) {
        self.visited.clear();
    }

    /// What the catalog says of a table now; nothing when it is not there (any more).
    pub(super) async fn load(&self, id: &TableId) -> Result<Option<Table>, Stopped> {
        let answer = self.upstream.table(self.warehouse, id).await;
        let answer = answer.map_err(|error| Stopped::Unreadable(error.to_string()))?;
        Ok(answer.map(|answer| metadata::table(&answer)).transpose()?)
    }

    /// Names every file of the table that was not named since [`Walker::forget`].
    pub(super) async fn walk(&mut self, table: &Table, sink: &mut Sink<'_>) -> Result<Counts, Stopped> {
        let mut counts = Counts { snapshots: table.snapshots.len() as u64, ..Counts::default() };
        taken(sink(&table.metadata_file, true), &table.metadata_file)?;
        for path in &table.noted {
            taken(sink(path, false), path)?;
        }
        let mut snapshots = table.snapshots.iter();
        if table.has_current
            && let Some(current) = snapshots.next()
        {
            let manifests = self.manifests_of(current, sink).await?;
            counts.manifests = manifests.len() as u64;
            self.files_of(manifests, &mut counts, sink).await?;
        }
        for snapshot in snapshots {
            let manifests = self.manifests_of(snapshot, sink).await?;
            self.files_of(manifests, &mut Counts::default(), sink).await?;
        }
        Ok(counts)
    }

    /// The manifests of a snapshot; none where its list was read before.
    async fn manifests_of(
        &mut self,
        snapshot: &Manifests,
        sink: &mut Sink<'_>,
    ) -> Result<Vec<String>, Stopped> {
        let list = match snapshot {
            Manifests::Inline(manifests) => return Ok(manifests.clone()),
            Manifests::List(list) => list,
        };
        if !self.is_new(list)? {
            return Ok(Vec::new());
        }
        taken(sink(list, true), list)?;
        let bytes = self.read(list).await?;
        let read = tokio::task::spawn_blocking(move || metadata::manifest_list(&bytes)).await;
        read.map_err(|_| crashed(list))?.map_err(|error| in_file(list, &error))
    }

    async fn files_of(
        &mut self,
        manifests: Vec<String>,
        counts: &mut Counts,
        sink: &mut Sink<'_>,
    ) -> Result<(), Stopped> {
        let mut new = Vec::new();
        for manifest in manifests {
            if self.is_new(&manifest)? {
                taken(sink(&manifest, true), &manifest)?;
                new.push(manifest);
            }
        }
        let this = &*self;
        let read = |path: String| async move { this.read(&path).await.map(|bytes| (path, bytes)) };
        let mut files = stream::iter(new).map(read).buffer_unordered(this.requests_max);
        while let Some((path, bytes)) = files.try_next().await? {
            this.files_in(&path, bytes, counts, sink).await?;
        }
        Ok(())
    }

    /// A manifest is read on a thread of its own, a bounded number of files ahead of who takes them in.
    async fn files_in(
        &self,
        path: &str,
        bytes: Bytes,
        counts: &mut Counts,
        sink: &mut Sink<'_>,
    ) -> Result<(), Stopped> {
        let (sender, mut files) = mpsc::channel::<Vec<File>>(2);
        let reading = tokio::task::spawn_blocking(move || read_manifest(&bytes, &sender));
        while let Some(batch) = files.recv().await {
            for file in batch {
                taken(sink(&file.path, true), &file.path)?;
                counts.delete_files += u64::from(file.deletes);
                counts.data_files += u64::from(!file.deletes);
                counts.small_files += u64::from(!file.deletes && file.bytes < self.small_bytes);
            }
        }
        reading.await.map_err(|_| crashed(path))?.map_err(|error| in_file(path, &error))
    }

    fn is_new(&mut self, path: &str) -> Result<bool, Stopped> {
        if self.visited.len() >= VISITED_MAX {
            return Err(Stopped::Unreadable(
                "the warehouse has more manifests than are read here".to_owned(),
            ));
        }
        Ok(self.visited.insert(self.hasher.hash_one(path)))
    }

    async fn read(&self, path: &str) -> Result<Bytes, Stopped> {
        let Place { bucket, prefix } = self.place;
        // Nothing else is read with our key at the word of a tenant's metadata.
        let key = match named(path, bucket) {
            Some(Named::Here(key)) if key.starts_with(prefix.as_str()) => key,
            _ => return Err(Stopped::Unreadable(format!("{path}: outside of the warehouse's place"))),
        };
        let read = self.store.read_whole(bucket, key, MANIFEST_BYTES_MAX).await;
        read.map_err(|error| Stopped::Unreadable(format!("{path}: {error}")))
    }
}

/// Sends the files in batches; ends early where nobody takes them any more.
fn read_manifest(bytes: &Bytes, sender: &mpsc::Sender<Vec<File>>) -> Result<(), Unreadable> {
    let mut batch = Vec::with_capacity(BATCH);
    let gone = |_| Unreadable::Odd("nobody waits for the rest".to_owned());
    metadata::manifest(bytes, |file| {
        batch.push(file);
        if batch.len() == BATCH {
            let full = std::mem::replace(&mut batch, Vec::with_capacity(BATCH));
            sender.blocking_send(full).map_err(gone)?;
        }
        Ok::<_, Unreadable>(())
    })?;
    sender.blocking_send(batch).map_err(gone)
}

fn taken(taken: Result<(), NotTaken>, path: &str) -> Result<(), Stopped> {
    taken.map_err(|why| match why {
        NotTaken::Full => Stopped::Full,
        NotTaken::Odd => Stopped::Unreadable(format!("{path}: no path of an object")),
    })
}

fn in_file(path: &str, error: &Unreadable) -> Stopped {
    Stopped::Unreadable(format!("{path}: {error}"))
}

fn crashed(path: &str) -> Stopped {
    Stopped::Unreadable(format!("{path}: reading it broke off"))
}
