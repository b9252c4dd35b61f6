//! What is told: a table for people or JSON for machines on standard output, progress on a terminal.

use std::io::{self, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::{Value, json};

use super::Summary;
use super::warehouse::{Found, TableFound};
use crate::doors::storage::stamp;

/// Name of a column, and its width.
const COLUMNS: [(&str, usize); 12] = [
    ("objects", 9),
    ("MiB", 9),
    ("referenced", 10),
    ("young", 7),
    ("unknown", 7),
    ("orphans", 8),
    ("MiB", 8),
    ("held", 6),
    ("missing", 7),
    ("snapshots", 9),
    ("manifests", 9),
    ("small/files", 13),
];

/// Where it is told.
pub(super) struct Report {
    json: bool,
    pub(super) bar: ProgressBar,
}

impl Report {
    pub(super) fn new(json: bool) -> Report {
        // Hidden where standard error is no terminal.
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{msg} [{bar:40}] {pos}/{len} {elapsed}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(200));
        Report { json, bar }
    }

    pub(super) fn found(&self, found: &Found) -> io::Result<()> {
        let text = if self.json { lines(found)? } else { page(found) };
        self.say(&text)
    }

    pub(super) fn end(&self, summary: &Summary) -> io::Result<()> {
        self.bar.finish_and_clear();
        if self.json {
            return self.say(&tagged("summary", summary)?);
        }
        let Summary {
            warehouses,
            skipped,
            orphans,
            orphan_bytes,
            removed,
            removed_bytes,
            failed,
            settled,
            mode,
        } = summary;
        let mut text = format!("{warehouses} warehouses, {orphans} orphans ({})", mib(*orphan_bytes));
        if *skipped > 0 {
            text.push_str(&format!("; {skipped} were done by the run that was killed"));
        }
        if mode.remove {
            text.push_str(&format!("\nremoved {removed} ({}), failed {failed}", mib(*removed_bytes)));
            text.push_str(&format!("; {settled} lines taken out of the ledger"));
        } else {
            text.push_str("; nothing was removed: --remove does");
        }
        self.say(&text)
    }

    fn say(&self, text: &str) -> io::Result<()> {
        self.bar.suspend(|| {
            let mut out = io::stdout();
            writeln!(out, "{text}")?;
            out.flush()
        })
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A line for each table and orphan, and one for the warehouse.
fn lines(found: &Found) -> io::Result<String> {
    let mut lines = Vec::new();
    for table in &found.tables {
        let mut line = serde_json::to_value(table)?;
        line["warehouse"] = json!(found.warehouse);
        lines.push(tagged("table", &line)?);
    }
    for orphan in &found.listed {
        let object = &orphan.object;
        lines.push(tagged(
            "orphan",
            &json!({
                "warehouse": found.warehouse,
                "key": object.key,
                "bytes": object.bytes,
                "modified": stamp(object.modified),
            }),
        )?);
    }
    lines.push(tagged("warehouse", found)?);
    Ok(lines.join("\n"))
}

fn tagged(kind: &str, what: &impl Serialize) -> io::Result<String> {
    let mut value = serde_json::to_value(what)?;
    if let Value::Object(fields) = &mut value {
        fields.insert("kind".to_owned(), json!(kind));
    }
    Ok(value.to_string())
}

fn page(found: &Found) -> String {
    let outside = TableFound {
        table: "(no table)".to_owned(),
        counts: super::walk::Counts::default(),
        tally: found.outside.clone(),
        removed: 0,
    };
    let rows: Vec<_> = found.tables.iter().chain([&outside]).collect();
    let widest = rows.iter().map(|row| row.table.chars().count()).max().unwrap_or(0);
    let columns = COLUMNS.iter().map(|(name, width)| format!("{name:>width$}")).collect::<Vec<_>>().join(" ");
    let mut text = format!("{}\n  {:widest$} {columns}\n", found.warehouse, "");
    for row in rows {
        text.push_str(&format!("  {:widest$} {}\n", row.table, cells(row).join(" ")));
    }
    let folders = &found.folders;
    if folders.dropped + folders.unfinished > 0 {
        text.push_str(&format!(
            "  folders of no table: {} dropped, {} never finished, {} of others, {} in use or young; {} in the first two\n",
            folders.dropped,
            folders.unfinished,
            folders.unknown,
            folders.busy,
            mib(folders.bytes)
        ));
    }
    if found.saved > 0 {
        text.push_str(&format!("  {} objects that an engine wanted deleted are in use\n", found.saved));
    }
    if found.removed + found.failed > 0 {
        text.push_str(&format!(
            "  removed {} ({}), failed {}\n",
            found.removed,
            mib(found.removed_bytes),
            found.failed
        ));
    }
    if found.more {
        text.push_str("  there is more than one run removes: run it again\n");
    }
    for note in &found.notes {
        text.push_str(&format!("  ! {note}\n"));
    }
    for orphan in &found.listed {
        text.push_str(&format!("  orphan {} {}\n", stamp(orphan.object.modified), orphan.object.key));
    }
    text
}

fn cells(row: &TableFound) -> Vec<String> {
    let (tally, counts) = (&row.tally, &row.counts);
    let values = [
        tally.objects.to_string(),
        mib(tally.bytes).trim_end_matches(" MiB").to_owned(),
        tally.referenced.to_string(),
        tally.young.to_string(),
        tally.unknown.to_string(),
        tally.orphans.to_string(),
        mib(tally.orphan_bytes).trim_end_matches(" MiB").to_owned(),
        tally.held.to_string(),
        tally.missing.to_string(),
        counts.snapshots.to_string(),
        counts.manifests.to_string(),
        format!("{}/{}", counts.small_files, counts.data_files),
    ];
    values.iter().zip(COLUMNS).map(|(value, (_, width))| format!("{value:>width$}")).collect()
}

#[allow(clippy::cast_precision_loss)] // for people
fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / 1_048_576.0)
}
