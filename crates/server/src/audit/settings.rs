//! What is recorded where.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Where records of statements go. Without any sink they are kept for `GET /queries/history` only.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// A file of JSON lines that hold each other (mode 0600). It is this server's alone. An empty name is none, also in `dev`.
    pub file: Option<PathBuf>,
    /// A file of this size is set aside and another begun, bytes.
    pub file_bytes_max: u64,
    /// So many files are kept, with the one that is written; 0 keeps all.
    pub files_max: usize,
    /// The same lines go to standard output.
    pub stdout: bool,
    /// Records that may wait to be written. More are lost, and counted.
    pub waiting_max: usize,
    /// A statement's text is cut to this, bytes.
    pub statement_bytes_max: usize,
    /// Records of one workspace that `GET /queries/history` can show; 0 keeps none.
    pub history_per_workspace_max: usize,
    /// All that it can show, bytes.
    pub history_bytes_max: usize,
    /// A table that gets every record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<TableSettings>,
}

/// A table of a workspace of the operators' own.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableSettings {
    /// The workspace. Its warehouse has to exist, and the policy of writes to open the table.
    pub workspace: String,
    /// `schema.table`; made when missing.
    #[serde(default = "table")]
    pub table: String,
    /// So many records are inserted at once.
    #[serde(default = "batch_rows_max")]
    pub batch_rows_max: usize,
    /// A record is inserted at the latest after this, milliseconds.
    #[serde(default = "batch_ms_max")]
    pub batch_ms_max: u64,
    /// Records that may wait while the table cannot be written. More are lost to it, and counted.
    #[serde(default = "table_waiting_max")]
    pub waiting_max: usize,
}

fn table() -> String {
    "audit.statements".to_owned()
}

fn batch_rows_max() -> usize {
    500
}

fn batch_ms_max() -> u64 {
    10_000
}

fn table_waiting_max() -> usize {
    10_000
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            file: None,
            file_bytes_max: 64 << 20,
            files_max: 16,
            stdout: false,
            waiting_max: 8_192,
            statement_bytes_max: 4 << 10,
            history_per_workspace_max: 100,
            history_bytes_max: 16 << 20,
            table: None,
        }
    }
}

impl Settings {
    /// The file, if there is one.
    pub(super) fn path(&self) -> Option<&Path> {
        self.file.as_deref().filter(|path| !path.as_os_str().is_empty())
    }

    /// Everything that is wrong with the settings.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut wrong = |is: bool, fault: &str| {
            if is {
                faults.push(format!("audit.{fault}"));
            }
        };
        wrong(
            self.file_bytes_max < 4_096,
            "file_bytes_max: less than 4096 would begin a file for every line",
        );
        wrong(self.waiting_max == 0, "waiting_max: 0 would lose every record");
        wrong(
            !(16..=64 << 10).contains(&self.statement_bytes_max),
            "statement_bytes_max: is between 16 and 65536",
        );
        let Some(table) = &self.table else { return faults };
        wrong(!crate::auth::is_workspace_id(&table.workspace), "table.workspace: is no workspace");
        wrong(
            table.name().is_none(),
            "table.table: is `schema.table`, each of a-z, 0-9 and _, beginning with a letter",
        );
        wrong(!(1..=10_000).contains(&table.batch_rows_max), "table.batch_rows_max: is between 1 and 10000");
        wrong(table.batch_ms_max == 0, "table.batch_ms_max: 0 would insert every record alone");
        wrong(table.waiting_max < table.batch_rows_max, "table.waiting_max: less than table.batch_rows_max");
        faults
    }
}

impl TableSettings {
    /// Schema and table, if they can stand in SQL as they are.
    pub(super) fn name(&self) -> Option<(&str, &str)> {
        let sound = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_lowercase())
                && name.len() <= 64
                && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        };
        self.table.split_once('.').filter(|(schema, table)| sound(schema) && sound(table))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_s_name_can_stand_in_sql_or_is_a_fault() {
        let faults = |table: &str| {
            let text = format!("[table]\nworkspace = 'ops'\ntable = {table:?}");
            toml::from_str::<Settings>(&text).unwrap().faults().len()
        };
        assert_eq!((faults("audit.statements"), faults("a.b_2")), (0, 0));
        for table in ["statements", "a.b.c", "a.b; DROP TABLE c", "a.\"b\"", "A.b", ".b", "a.", "a.1b", "ä.b"]
        {
            assert_eq!(faults(table), 1, "{table}");
        }
    }
}
