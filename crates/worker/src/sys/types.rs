//! DuckDB's types, by the names that DuckDB writes.

use libduckdb_sys as ffi;

use super::duckdb::given;

/// A column of an answer.
pub(crate) struct Column {
    pub(crate) name: String,
    /// DuckDB's name of its type.
    pub(crate) type_name: String,
}

pub(super) struct LogicalType(pub(super) ffi::duckdb_logical_type);

impl Drop for LogicalType {
    fn drop(&mut self) {
        // SAFETY: each is made by a call that gives it away, and destroyed once.
        unsafe { ffi::duckdb_destroy_logical_type(&raw mut self.0) }
    }
}

impl LogicalType {
    /// The type as DuckDB writes it.
    pub(super) fn name(&self) -> String {
        // SAFETY: the type is alive; children are owned by their `LogicalType`; strings are freed by `given`.
        unsafe {
            let alias = given(ffi::duckdb_logical_type_get_alias(self.0));
            if !alias.is_empty() {
                return alias;
            }
            match ffi::duckdb_get_type_id(self.0) {
                ffi::DUCKDB_TYPE_DUCKDB_TYPE_DECIMAL => {
                    format!(
                        "DECIMAL({},{})",
                        ffi::duckdb_decimal_width(self.0),
                        ffi::duckdb_decimal_scale(self.0)
                    )
                }
                ffi::DUCKDB_TYPE_DUCKDB_TYPE_LIST => {
                    format!("{}[]", LogicalType(ffi::duckdb_list_type_child_type(self.0)).name())
                }
                ffi::DUCKDB_TYPE_DUCKDB_TYPE_ARRAY => format!(
                    "{}[{}]",
                    LogicalType(ffi::duckdb_array_type_child_type(self.0)).name(),
                    ffi::duckdb_array_type_array_size(self.0)
                ),
                ffi::DUCKDB_TYPE_DUCKDB_TYPE_MAP => format!(
                    "MAP({}, {})",
                    LogicalType(ffi::duckdb_map_type_key_type(self.0)).name(),
                    LogicalType(ffi::duckdb_map_type_value_type(self.0)).name()
                ),
                ffi::DUCKDB_TYPE_DUCKDB_TYPE_STRUCT => {
                    let fields: Vec<String> = (0..ffi::duckdb_struct_type_child_count(self.0))
                        .map(|i| {
                            let name = given(ffi::duckdb_struct_type_child_name(self.0, i));
                            let child = LogicalType(ffi::duckdb_struct_type_child_type(self.0, i)).name();
                            format!("\"{}\" {child}", name.replace('"', "\"\""))
                        })
                        .collect();
                    format!("STRUCT({})", fields.join(", "))
                }
                id => plain_type_name(id).to_owned(),
            }
        }
    }
}

fn plain_type_name(id: ffi::duckdb_type) -> &'static str {
    match id {
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_BOOLEAN => "BOOLEAN",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_TINYINT => "TINYINT",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_SMALLINT => "SMALLINT",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_INTEGER => "INTEGER",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_BIGINT => "BIGINT",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_HUGEINT => "HUGEINT",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_UTINYINT => "UTINYINT",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_USMALLINT => "USMALLINT",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_UINTEGER => "UINTEGER",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_UBIGINT => "UBIGINT",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_UHUGEINT => "UHUGEINT",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_FLOAT => "FLOAT",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_DOUBLE => "DOUBLE",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_VARCHAR => "VARCHAR",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_BLOB => "BLOB",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_BIT => "BIT",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_UUID => "UUID",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_DATE => "DATE",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_TIME => "TIME",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_TIME_TZ => "TIME WITH TIME ZONE",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_TIMESTAMP => "TIMESTAMP",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_TIMESTAMP_S => "TIMESTAMP_S",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_TIMESTAMP_MS => "TIMESTAMP_MS",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_TIMESTAMP_NS => "TIMESTAMP_NS",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_TIMESTAMP_TZ => "TIMESTAMP WITH TIME ZONE",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_INTERVAL => "INTERVAL",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_ENUM => "ENUM",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_UNION => "UNION",
        ffi::DUCKDB_TYPE_DUCKDB_TYPE_SQLNULL => "NULL",
        _ => "UNKNOWN",
    }
}

/// What a statement is, by DuckDB's own word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Select,
    Explain,
    Insert,
    Update,
    Delete,
    Merge,
    Create,
    Drop,
    Alter,
    /// Anything else, with DuckDB's number for it.
    Other(u32),
}

/// A value for a parameter.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Integer(i64),
    Double(f64),
    Text(String),
}
