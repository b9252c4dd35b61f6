//! What the functions and views that DuckDB knows are good for here.
//!
//! DuckDB itself is asked for its names, once, in the template. A table function that is not in a list below is refused: a new
//! version's new functions as well, until somebody has looked at them. Scalar functions are pure but for a few.

use std::collections::HashMap;

use arrow::array::AsArray;

use super::text::{Token, Tokens};
use crate::sys::duckdb::{Connection, Error};

/// What is to be looked at in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// Never.
    Refused,
    /// Its first argument names files, whose rows it gives.
    Files,
    /// Its first argument is a pattern; it gives names alone.
    Listing,
    /// Its first argument is a table, or the place of one.
    Table,
    /// Its argument is SQL.
    Sql,
    /// Its argument is a table's name, or several.
    TableNames,
    /// Its argument is a setting's name.
    Setting,
}

/// Table functions that make rows of their arguments, and those that show what is in the warehouse and what SQL there is.
const HARMLESS: [&str; 37] = [
    "duckdb_columns",
    "duckdb_constraints",
    "duckdb_coordinate_systems",
    "duckdb_databases",
    "duckdb_dependencies",
    "duckdb_functions",
    "duckdb_indexes",
    "duckdb_keywords",
    "duckdb_optimizers",
    "duckdb_prepared_statements",
    "duckdb_schemas",
    "duckdb_sequences",
    "duckdb_tables",
    "duckdb_types",
    "duckdb_variables",
    "duckdb_views",
    "generate_series",
    "histogram",
    "histogram_values",
    "icu_calendar_names",
    "json_each",
    "json_tree",
    "pg_timezone_names",
    "pragma_collations",
    "pragma_platform",
    "pragma_show",
    "pragma_table_info",
    "pragma_version",
    "range",
    "repeat",
    "repeat_row",
    "seq_scan",
    "sql_auto_complete",
    "summary",
    "test_all_types",
    "test_vector_types",
    "unnest",
];
const FILES: [&str; 20] = [
    "parquet_bloom_probe",
    "parquet_file_metadata",
    "parquet_full_metadata",
    "parquet_kv_metadata",
    "parquet_metadata",
    "parquet_scan",
    "parquet_schema",
    "read_avro",
    "read_blob",
    "read_csv",
    "read_csv_auto",
    "read_json",
    "read_json_auto",
    "read_json_objects",
    "read_json_objects_auto",
    "read_ndjson",
    "read_ndjson_auto",
    "read_ndjson_objects",
    "read_parquet",
    "read_text",
];
const TABLES: [&str; 6] = [
    "iceberg_column_stats",
    "iceberg_metadata",
    "iceberg_partition_stats",
    "iceberg_schema_properties",
    "iceberg_snapshots",
    "iceberg_table_properties",
];
const OTHERS: [(&str, Call); 7] = [
    ("glob", Call::Listing),
    ("sniff_csv", Call::Files),
    ("query", Call::Sql),
    ("query_table", Call::TableNames),
    // Scalar functions: one shows settings, one writes, one plans SQL, and to plan is to run whatever is constant.
    ("current_setting", Call::Setting),
    ("write_log", Call::Refused),
    ("json_serialize_plan", Call::Refused),
];

/// Settings that say what a statement means or what it may use.
const SETTINGS: [&str; 11] = [
    "memory_limit",
    "max_memory",
    "threads",
    "timezone",
    "calendar",
    "default_order",
    "default_null_order",
    "null_order",
    "integer_division",
    "schema",
    "search_path",
];

/// What DuckDB knows, by lower-case name; what is not here needs no look.
#[derive(Debug, Default)]
pub(crate) struct Names {
    calls: HashMap<String, Call>,
    /// Views that show what a function that is refused would.
    views: Vec<String>,
}

impl Names {
    /// Asks this engine, with everything loaded that will be.
    pub(crate) fn of(connection: &Connection) -> Result<Names, Error> {
        let mut names = Names::default();
        let functions = "SELECT DISTINCT lower(function_name), coalesce(macro_definition, ''), \
                         contains(function_type, 'table') FROM duckdb_functions()";
        let functions = rows(connection, functions)?;
        for (name, _, table) in &functions {
            if let Some(call) = known(name).or(table.then_some(Call::Refused))
                && !HARMLESS.contains(&name.as_str())
            {
                names.calls.insert(name.clone(), call);
            }
        }
        // What is made of something refused shows the same.
        let macros = functions.iter().filter(|(_, sql, _)| names.shows_what_is_refused(sql));
        let refused: Vec<_> = macros.map(|(name, _, _)| (name.clone(), Call::Refused)).collect();
        names.calls.extend(refused);
        let views = rows(connection, "SELECT lower(view_name), sql, true FROM duckdb_views()")?;
        let views = views.into_iter().filter(|(_, sql, _)| names.shows_what_is_refused(sql));
        names.views = views.map(|(name, _, _)| name).collect();
        Ok(names)
    }

    /// How a call of this lower-case name is to be looked at, if at all.
    pub(super) fn call(&self, name: &str) -> Option<Call> {
        self.calls.get(name).copied()
    }

    /// Whether this is a view that shows the engine's own affairs; lower case.
    pub(super) fn is_refused_view(&self, name: &str) -> bool {
        self.views.iter().any(|view| view == name)
    }

    fn shows_what_is_refused(&self, sql: &str) -> bool {
        let mut name = "";
        Tokens::of(sql).any(|token| match token {
            Token::Word(word) | Token::Quoted(word) => {
                name = word;
                false
            }
            Token::Sign('(') => {
                self.call(&std::mem::take(&mut name).to_ascii_lowercase()) == Some(Call::Refused)
            }
            _ => {
                name = "";
                false
            }
        })
    }
}

fn known(name: &str) -> Option<Call> {
    if FILES.contains(&name) {
        return Some(Call::Files);
    }
    if TABLES.contains(&name) {
        return Some(Call::Table);
    }
    OTHERS.iter().find(|(other, _)| *other == name).map(|(_, call)| *call)
}

pub(super) fn is_plain_setting(name: &str) -> bool {
    SETTINGS.iter().any(|setting| setting.eq_ignore_ascii_case(name))
}

/// Why a function or view of this name is refused.
pub(super) fn reason(name: &str) -> String {
    let why = match name {
        _ if name.contains("log") || name.contains("profiling") => {
            "is not available: the engine's log holds other requests, too. EXPLAIN ANALYZE tells how a statement runs."
        }
        _ if name.contains("secret")
            || ["settings", "extensions", "memory", "temporary_files", "file_cache", "load_table"]
                .iter()
                .any(|part| name.contains(part)) =>
        {
            "is not available: it shows the engine's own affairs, which are no part of the warehouse."
        }
        _ if name.starts_with("set_iceberg") || name.starts_with("remove_iceberg") => {
            "is not available: a SELECT changes nothing, and that includes properties of tables and schemas."
        }
        "iceberg_scan" => {
            "is not available: tables are read by their names. AT (VERSION => …) reads an older state."
        }
        "json_execute_serialized_sql" | "json_serialize_plan" => {
            "is not available: send the statement itself as `sql`."
        }
        _ => "is not among the table functions that can be used here.",
    };
    format!("The function {name} {why}")
}

fn rows(connection: &Connection, sql: &str) -> Result<Vec<(String, String, bool)>, Error> {
    let prepared = connection.split(sql)?.prepare(0)?;
    let mut rows = prepared.execute()?;
    let mut found = Vec::new();
    while let Some(batch) = rows.next()? {
        let texts = |column: usize| batch.column(column).as_string::<i32>().clone();
        let (names, sql, tables) = (texts(0), texts(1), batch.column(2).as_boolean().clone());
        found.extend(
            (0..batch.num_rows())
                .map(|row| (names.value(row).to_owned(), sql.value(row).to_owned(), tables.value(row))),
        );
    }
    Ok(found)
}
