//! Records on their way into a table of the operators' own.
//!
//! Given records, gathers them and inserts many at once, by the same way as anybody's statement. Never holds up who has a record: what
//! finds no room while the table cannot be written is lost to it, and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use duck_contract::Code;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::settings::TableSettings;
use crate::fault::Fault;

/// What is sent in one statement.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// Between two attempts: at first, and at most.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_mins(1);
/// For the last batch, when the server ends.
const LAST_MAX: Duration = Duration::from_secs(5);

/// A column: its name, its type in the table, and its type in a record's JSON where that is another.
const COLUMNS: [(&str, &str, &str); 31] = [
    ("event", "VARCHAR", ""),
    ("recorded_at", "TIMESTAMPTZ", "VARCHAR"),
    ("request_id", "VARCHAR", ""),
    ("workspace", "VARCHAR", ""),
    ("subject", "VARCHAR", ""),
    ("role", "VARCHAR", ""),
    ("statement", "VARCHAR", ""),
    ("queue_ms", "BIGINT", ""),
    ("start_ms", "BIGINT", ""),
    ("outcome", "VARCHAR", ""),
    ("run_ms", "BIGINT", ""),
    ("kinds", "VARCHAR[]", ""),
    ("tables_read", "VARCHAR[]", ""),
    ("tables_written", "VARCHAR[]", ""),
    ("changes", "VARCHAR", "JSON"),
    ("write_state", "VARCHAR", ""),
    ("tables_cut", "BOOLEAN", ""),
    ("rows", "BIGINT", ""),
    ("truncated", "BOOLEAN", ""),
    ("rows_affected", "BIGINT", ""),
    ("bytes", "BIGINT", ""),
    ("store_bytes_read", "BIGINT", ""),
    ("store_bytes_written", "BIGINT", ""),
    ("store_calls", "BIGINT", ""),
    ("catalog_calls", "BIGINT", ""),
    ("cpu_ms", "BIGINT", ""),
    ("peak_memory_bytes", "BIGINT", ""),
    ("shared", "BOOLEAN", ""),
    ("rules", "VARCHAR[]", ""),
    ("attempts", "INTEGER", ""),
    ("server", "VARCHAR", ""),
];

/// Runs statements of the service's own in a workspace.
#[async_trait::async_trait]
pub trait Inserts: Send + Sync {
    /// Runs one with write access, with at most one parameter.
    async fn insert(&self, workspace: &str, sql: &str, parameter: Option<String>) -> Result<(), Fault>;
}

/// What became of records that were meant for the table.
#[derive(Debug, Default)]
pub(super) struct Counts {
    taken: AtomicU64,
    written: AtomicU64,
    lost: AtomicU64,
    unsure: AtomicU64,
}

/// How it is with the table now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Gauges {
    /// Records that wait.
    pub waiting: u64,
    /// Records that are in the table.
    pub written: u64,
    /// Records that found no room.
    pub lost: u64,
    /// Records of which the catalog has not said whether they are in the table.
    pub unsure: u64,
}

/// The end at which records come in. Cheap to clone; all clones are one.
#[derive(Clone)]
pub(super) struct Feed {
    sender: mpsc::Sender<String>,
    counts: Arc<Counts>,
}

impl Feed {
    /// A record, as JSON. One that finds no room is lost.
    pub(super) fn put(&self, record: String) {
        let count = if self.sender.try_send(record).is_ok() { &self.counts.taken } else { &self.counts.lost };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn gauges(&self) -> Gauges {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { taken, written, lost, unsure } = &*self.counts;
        // With those that are being inserted.
        let waiting = read(taken).saturating_sub(read(written) + read(unsure));
        Gauges { waiting, written: read(written), lost: read(lost), unsure: read(unsure) }
    }
}

/// Takes records out and inserts them.
pub struct Gatherer {
    settings: TableSettings,
    records: mpsc::Receiver<String>,
    counts: Arc<Counts>,
    /// Tells this server's records from those of others.
    server: String,
}

/// Both ends.
pub(super) fn table(settings: TableSettings, server: String) -> (Feed, Gatherer) {
    let (sender, records) = mpsc::channel(settings.waiting_max);
    let counts = Arc::<Counts>::default();
    (Feed { sender, counts: counts.clone() }, Gatherer { settings, records, counts, server })
}

impl Gatherer {
    /// Inserts what comes, until `stop`; then what is there is tried once more.
    pub async fn run(mut self, inserts: Arc<dyn Inserts>, stop: CancellationToken) {
        let (mut made, mut batch) = (false, Vec::new());
        while !stop.is_cancelled() {
            tokio::select! {
                () = stop.cancelled() => {}
                () = gather(&mut self.records, &self.settings, &mut batch) => {}
            }
            let mut pause = PAUSE_FIRST;
            while !batch.is_empty() && !stop.is_cancelled() {
                let outcome = self.put(&*inserts, &mut made, &batch).await;
                if self.settles(&mut batch, outcome) {
                    break;
                }
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
        self.records.close();
        while let Ok(record) = self.records.try_recv() {
            batch.push(record);
        }
        if !batch.is_empty() {
            let late = Err(Fault::new(Code::Timeout, "The table was not written in time."));
            let outcome = timeout(LAST_MAX, self.put(&*inserts, &mut made, &batch)).await.unwrap_or(late);
            if !self.settles(&mut batch, outcome) {
                self.counts.lost.fetch_add(batch.len() as u64, Ordering::Relaxed);
            }
        }
    }

    async fn put(&self, inserts: &dyn Inserts, made: &mut bool, batch: &[String]) -> Result<(), Fault> {
        let Some((schema, table)) = self.settings.name() else { return Ok(()) };
        let workspace = &self.settings.workspace;
        if !*made {
            inserts.insert(workspace, &format!("CREATE SCHEMA IF NOT EXISTS lake.{schema}"), None).await?;
            inserts.insert(workspace, &create(schema, table), None).await?;
            *made = true;
        }
        let server = serde_json::to_string(&self.server).unwrap_or_default();
        let records: Vec<String> = batch
            .iter()
            .map(|record| format!("{{\"server\":{server},{}", record.get(1..).unwrap_or("}")))
            .collect();
        let rows = format!("[{}]", records.join(","));
        let outcome = inserts.insert(workspace, &insert(schema, table), Some(rows)).await;
        // It may have been removed.
        *made = outcome.is_ok();
        outcome
    }

    /// Whether the batch is done with.
    fn settles(&self, batch: &mut Vec<String>, outcome: Result<(), Fault>) -> bool {
        let records = batch.len() as u64;
        match outcome {
            Ok(()) => self.counts.written.fetch_add(records, Ordering::Relaxed),
            // Made, and only its answer was lost.
            Err(fault) if fault.code == Code::AnswerLost => {
                self.counts.written.fetch_add(records, Ordering::Relaxed)
            }
            // To send it again could write it twice.
            Err(fault) if fault.code == Code::CommitUnknown => {
                tracing::error!(records, "nobody knows whether audit records are in their table");
                self.counts.unsure.fetch_add(records, Ordering::Relaxed)
            }
            Err(fault) => {
                tracing::warn!(
                    code = fault.code.as_str(),
                    sentence = %fault.sentence,
                    cause = fault.chain(),
                    "audit records wait: their table cannot be written"
                );
                return false;
            }
        };
        batch.clear();
        true
    }
}

/// Waits for a record, then for others as long as the first may wait.
async fn gather(records: &mut mpsc::Receiver<String>, settings: &TableSettings, batch: &mut Vec<String>) {
    let Some(first) = records.recv().await else { return std::future::pending().await };
    let until = Instant::now() + Duration::from_millis(settings.batch_ms_max);
    let mut bytes = first.len();
    batch.push(first);
    while batch.len() < settings.batch_rows_max && bytes < BATCH_BYTES_MAX {
        let Ok(Some(record)) = timeout_at(until, records.recv()).await else { return };
        bytes += record.len();
        batch.push(record);
    }
}

fn create(schema: &str, table: &str) -> String {
    let columns: Vec<String> = COLUMNS.iter().map(|(name, kind, _)| format!("{name} {kind}")).collect();
    format!("CREATE TABLE IF NOT EXISTS lake.{schema}.{table} ({})", columns.join(", "))
}

fn insert(schema: &str, table: &str) -> String {
    let said = |(name, kind, json): &(&str, &str, &str)| {
        format!("\"{name}\":\"{}\"", if json.is_empty() { kind } else { json })
    };
    let names: Vec<&str> = COLUMNS.iter().map(|(name, ..)| *name).collect();
    let values: Vec<String> = COLUMNS.iter().map(|(name, kind, _)| format!("r.{name}::{kind}")).collect();
    let shape: Vec<String> = COLUMNS.iter().map(said).collect();
    format!(
        "INSERT INTO lake.{schema}.{table} ({}) SELECT {} FROM (SELECT unnest(from_json($1, '[{{{}}}]')) AS r)",
        names.join(", "),
        values.join(", "),
        shape.join(",")
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A table that fails as often as it is told to.
    #[derive(Default)]
    struct Flaky {
        fails: Mutex<Vec<Code>>,
        sent: Mutex<Vec<(String, Option<String>)>>,
    }

    #[async_trait::async_trait]
    impl Inserts for Flaky {
        async fn insert(&self, workspace: &str, sql: &str, parameter: Option<String>) -> Result<(), Fault> {
            assert_eq!(workspace, "ops");
            if let Some(code) = self.fails.lock().unwrap().pop() {
                return Err(Fault::new(code, "no"));
            }
            self.sent.lock().unwrap().push((sql.to_owned(), parameter));
            Ok(())
        }
    }

    fn settings(waiting_max: usize) -> TableSettings {
        let text = format!(
            "workspace = 'ops'\nbatch_rows_max = 3\nbatch_ms_max = 1000\nwaiting_max = {waiting_max}"
        );
        toml::from_str(&text).unwrap()
    }

    async fn started(
        waiting_max: usize,
        fails: Vec<Code>,
    ) -> (Feed, Arc<Flaky>, CancellationToken, tokio::task::JoinHandle<()>) {
        let (feed, gatherer) = table(settings(waiting_max), "s".into());
        let flaky = Arc::new(Flaky { fails: Mutex::new(fails), ..Flaky::default() });
        let stop = CancellationToken::new();
        let task = tokio::spawn(gatherer.run(flaky.clone(), stop.clone()));
        tokio::task::yield_now().await;
        (feed, flaky, stop, task)
    }

    #[tokio::test(start_paused = true)]
    async fn records_are_inserted_many_at_once_and_none_waits_too_long() {
        let (feed, flaky, stop, task) = started(100, Vec::new()).await;
        for n in 0..4 {
            feed.put(format!("{{\"n\":{n}}}"));
        }
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        feed.put("{\"n\":4}".into());
        stop.cancel();
        task.await.unwrap();
        let sent: Vec<String> =
            flaky.sent.lock().unwrap().iter().filter_map(|(_, rows)| rows.clone()).collect();
        assert_eq!(sent.len(), 3, "{sent:?}");
        assert_eq!(
            sent[0],
            "[{\"server\":\"s\",\"n\":0},{\"server\":\"s\",\"n\":1},{\"server\":\"s\",\"n\":2}]"
        );
        assert_eq!(feed.gauges(), Gauges { waiting: 0, written: 5, lost: 0, unsure: 0 });
    }

    #[tokio::test(start_paused = true)]
    async fn a_table_that_cannot_be_written_holds_up_nobody_and_loss_is_counted() {
        let (feed, _, stop, task) = started(10, vec![Code::CatalogUnavailable; 4]).await;
        for n in 0..20 {
            feed.put(format!("{{\"n\":{n}}}"));
            tokio::task::yield_now().await;
        }
        let lost = feed.gauges().lost;
        assert!((7..=10).contains(&lost), "{lost}");
        // The catalog is back: what has waited is written.
        tokio::time::sleep(Duration::from_mins(2)).await;
        assert_eq!(feed.gauges(), Gauges { waiting: 0, written: 20 - lost, lost, unsure: 0 });
        stop.cancel();
        task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_be_in_the_table_is_not_sent_twice() {
        for (code, written, unsure) in [(Code::CommitUnknown, 1, 1), (Code::AnswerLost, 2, 0)] {
            let (feed, flaky, stop, task) = started(10, Vec::new()).await;
            feed.put("{\"n\":0}".into());
            tokio::time::sleep(Duration::from_secs(2)).await;
            flaky.fails.lock().unwrap().push(code);
            feed.put("{\"n\":1}".into());
            tokio::time::sleep(Duration::from_secs(200)).await;
            stop.cancel();
            task.await.unwrap();
            assert_eq!(feed.gauges(), Gauges { waiting: 0, written, lost: 0, unsure });
        }
    }

    #[test]
    fn every_field_of_a_record_has_its_column() {
        let mut record = super::super::tests::record("w", "r");
        record.queue_ms = Some(1);
        record.start_ms = Some(1);
        let end = record.end.as_mut().unwrap();
        (end.rows, end.rows_affected, end.cpu_ms, end.peak_memory_bytes) =
            (Some(1), Some(1), Some(1), Some(1));
        (end.write_state, end.attempts) = (Some(duck_contract::query::WriteState::Made), Some(1));
        (end.truncated, end.tables_cut, end.rules) = (true, true, vec!["x".into()]);
        let json = serde_json::to_value(&record).unwrap();
        let mut fields: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        fields.push("server");
        let mut columns: Vec<&str> = COLUMNS.iter().map(|(name, ..)| *name).collect();
        fields.sort_unstable();
        columns.sort_unstable();
        assert_eq!(fields, columns);
    }
}
