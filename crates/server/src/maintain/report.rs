//! What is told: a table for people or JSON for machines on standard output, progress on a terminal.

use std::io;

use serde_json::json;

use super::Summary;
use super::warehouse::{Found, TableFound};
use crate::doors::storage::stamp;
use crate::terminal::{Terminal, tagged};

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
    pub(super) terminal: Terminal,
}

impl Report {
    pub(super) fn new(json: bool) -> Report {
        Report { json, terminal: Terminal::new() }
    }

    pub(super) fn found(&self, found: &Found) -> io::Result<()> {
        let text = if self.json { lines(found)? } else { page(found) };
        self.terminal.say(&text)
    }

    pub(super) fn end(&self, summary: &Summary) -> io::Result<()> {
        self.terminal.bar.finish_and_clear();
        if self.json {
            return self.terminal.say(&tagged("summary", summary)?);
        }
        let Summary { warehouses, skipped, orphans, removed, failed, settled, mode, .. } = summary;
        let mut parts = vec![
            format!("{warehouses} warehouses"),
            format!("{orphans} orphans ({})", mib(summary.orphan_bytes)),
        ];
        if *skipped > 0 {
            parts.push(format!("{skipped} warehouses were done by the run that was killed"));
        }
        if mode.remove {
            parts.push(format!("removed {removed} ({}), failed {failed}", mib(summary.removed_bytes)));
            parts.push(format!("{settled} lines taken out of ledgers"));
        } else {
            parts.push("nothing was removed: --remove does".to_owned());
        }
        let text = parts.join("; ");
        self.terminal.say(&text)
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
    let mut lines = vec![found.warehouse.clone(), format!("  {:widest$} {columns}", "")];
    lines.extend(rows.iter().map(|row| format!("  {:widest$} {}", row.table, cells(row).join(" "))));
    let folders = &found.folders;
    if folders.dropped + folders.unfinished > 0 {
        lines.push(format!(
            "  folders of no table: {} dropped, {} never finished, {} of others, {} in use or young; {} in the first two",
            folders.dropped,
            folders.unfinished,
            folders.unknown,
            folders.busy,
            mib(folders.bytes)
        ));
    }
    if found.saved > 0 {
        lines.push(format!("  {} objects that an engine wanted deleted are in use", found.saved));
    }
    if found.removed + found.failed > 0 {
        let gone = format!("removed {} ({})", found.removed, mib(found.removed_bytes));
        lines.push(format!("  {gone}, failed {}", found.failed));
    }
    if found.more {
        lines.push("  there is more than one run removes: run it again".to_owned());
    }
    lines.extend(found.notes.iter().map(|note| format!("  ! {note}")));
    let orphans = found.listed.iter().map(|orphan| &orphan.object);
    lines.extend(orphans.map(|object| format!("  orphan {} {}", stamp(object.modified), object.key)));
    lines.push(String::new());
    lines.join("\n")
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
