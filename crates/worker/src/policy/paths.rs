//! Which files may be named.
//!
//! Outside the own warehouse nothing, which the storage door decides anyway; and not the folders of its tables: a file of a table
//! still holds the rows that were deleted from it. A table's folder is a UUID, directly below the warehouse's place.

use duck_contract::Code;
use duck_contract::worker::Failure;

use crate::fault;

/// How the lengths of a UUID's groups follow each other.
const UUID: [usize; 5] = [8, 4, 4, 4, 12];

/// Whether this may be read as files. `place` ends with a slash.
pub(super) fn check(path: &str, place: &str) -> Result<(), Failure> {
    listing(path, place)?;
    within(path, place)
}

/// Whether this may be listed, by names alone.
pub(super) fn listing(path: &str, place: &str) -> Result<(), Failure> {
    if !path.starts_with(place) {
        return Err(fault::ours(
            Code::OutsideWarehouse,
            "Files are read from this workspace's warehouse alone, by their whole path (`s3://…`).",
        ));
    }
    spelled(path)
}

/// What holds wherever a path of the own warehouse stands.
pub(super) fn within(path: &str, place: &str) -> Result<(), Failure> {
    let Some(below) = path.strip_prefix(place) else { return Ok(()) };
    spelled(path)?;
    if may_be_table(below.trim_start_matches('/')) {
        return Err(fault::ours(
            Code::StatementRefused,
            "A table's files still hold what was deleted from it: read the table by its name. Files of your own are in \
             other folders, and a pattern has to begin with one of these.",
        ));
    }
    Ok(())
}

fn spelled(path: &str) -> Result<(), Failure> {
    if path.split(['/', '?']).any(|part| part == "..") {
        return Err(fault::ours(Code::OutsideWarehouse, "A path must not lead upwards (`..`)."));
    }
    // Behind a question mark DuckDB reads settings of the connection to the store.
    if path.split_once('?').is_some_and(|(_, words)| words.contains('=')) {
        return Err(fault::ours(Code::OutsideWarehouse, "A path must not carry settings (`?…=…`)."));
    }
    Ok(())
}

/// Whether a path, or what a pattern may match, lies in a folder that is called like a table's.
fn may_be_table(below: &str) -> bool {
    let Some((folder, _)) = below.split_once('/') else { return below.starts_with("**") };
    let fixed = folder.find(['*', '?', '[', '{']).unwrap_or(folder.len());
    let (fixed, is_pattern) = (&folder[..fixed], fixed < folder.len());
    let mut shape = UUID.iter().flat_map(|length| std::iter::repeat_n('x', *length).chain(['-'])).take(36);
    let fits = fixed.chars().all(|c| match shape.next() {
        Some('-') => c == '-',
        Some(_) => c.is_ascii_hexdigit(),
        None => false,
    });
    fits && (is_pattern || shape.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: &str = "s3://lakehouse/w_a/";

    fn code(path: &str) -> Option<Code> {
        check(path, PLACE).err().map(|f| f.code)
    }

    #[test]
    fn own_files_are_read_and_those_of_tables_are_not() {
        let table = "01a2295b-d209-73af-92f8-be4bab60d4b5";
        for own in [
            "files/x.parquet",
            "files/**/*.csv",
            "x.csv",
            "*.csv",
            "x?.csv",
            "cafe/x.csv",
            "f/01a2*/x",
            "g*/x.csv",
        ] {
            assert_eq!(code(&format!("{PLACE}{own}")), None, "{own}");
        }
        for refused in [
            format!("{table}/data/x.parquet"),
            format!("/{table}/data/x.parquet"),
            "**".to_owned(),
            "**/*.parquet".to_owned(),
            "*/data/*.parquet".to_owned(),
            "01a2*/data/x.parquet".to_owned(),
            "{a,01a2}/x".to_owned(),
            format!("{}?/data/x", &table[..35]),
        ] {
            assert_eq!(code(&format!("{PLACE}{refused}")), Some(Code::StatementRefused), "{refused}");
        }
    }

    #[test]
    fn what_lies_outside_is_said_to() {
        for path in [
            "/etc/passwd",
            "x.csv",
            "",
            "s3://lakehouse/w_ab/x",
            "S3://lakehouse/w_a/x",
            "s3a://lakehouse/w_a/x",
            "s3://lakehouse/w_a/../w_b/x",
            "s3://lakehouse/w_a/f/x?s3_endpoint=127.0.0.1:1&s3_use_ssl=false",
        ] {
            assert_eq!(code(path), Some(Code::OutsideWarehouse), "{path}");
        }
        assert!(within("/etc/passwd", PLACE).is_ok() && listing(&format!("{PLACE}**"), PLACE).is_ok());
    }
}
