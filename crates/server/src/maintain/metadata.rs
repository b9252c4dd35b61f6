//! Table metadata, manifest lists and manifests: which files they name. Anything in them that is not understood is an error,
//! because it could name a file.
//!
//! Read field by field and not with the `iceberg` crate: that refuses a table with one column of a type it does not know, and
//! holds a whole manifest with all its statistics. Sources: the Iceberg table specification, versions 1 to 3.

use apache_avro::Reader;
use apache_avro::types::Value;
use apache_avro::util::max_allocation_bytes;
use bytes::Bytes;
use serde::Deserialize;

/// The newest format that is understood here.
const FORMAT_VERSION_MAX: u8 = 3;
/// One text, or one block, of a manifest.
const PIECE_BYTES_MAX: usize = 64 << 20;
/// A manifest's entry that says that a file is no longer part of the table.
const DELETED: i64 = 2;

/// Why files could not be named.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    /// A file, or the catalog's answer, does not say what it should.
    #[error("{0}")]
    Odd(String),
    /// It is no Avro.
    #[error("no manifest: {0}")]
    Avro(#[from] Box<apache_avro::Error>),
}

fn odd<T>(what: impl Into<String>) -> Result<T, Unreadable> {
    Err(Unreadable::Odd(what.into()))
}

/// What the catalog says of a table.
#[derive(Debug)]
pub(super) struct Table {
    /// Where its files lie, a URL.
    pub(super) location: String,
    /// Its current metadata file.
    pub(super) metadata_file: String,
    /// Files that are kept where they are there: older metadata files, statistics.
    pub(super) noted: Vec<String>,
    /// The current snapshot first.
    pub(super) snapshots: Vec<Manifests>,
    /// Whether the first of them is the current one.
    pub(super) has_current: bool,
}

/// Where a snapshot's manifests stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Manifests {
    /// In this file.
    List(String),
    /// In the metadata itself, as version 1 may have it.
    Inline(Vec<String>),
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Loaded {
    metadata_location: Option<String>,
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(clippy::struct_field_names)] // the specification's
struct Metadata {
    format_version: u8,
    location: String,
    #[serde(default)]
    current_snapshot_id: Option<i64>,
    #[serde(default)]
    snapshots: Vec<Snapshot>,
    #[serde(default)]
    refs: std::collections::HashMap<String, Reference>,
    #[serde(default)]
    metadata_log: Vec<Logged>,
    #[serde(default)]
    statistics: Vec<Statistics>,
    #[serde(default)]
    partition_statistics: Vec<Statistics>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(clippy::struct_field_names)] // the specification's
struct Snapshot {
    snapshot_id: i64,
    manifest_list: Option<String>,
    manifests: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Reference {
    snapshot_id: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Logged {
    metadata_file: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Statistics {
    statistics_path: String,
}

/// The catalog's answer to a request for a table.
pub(super) fn table(answer: &[u8]) -> Result<Table, Unreadable> {
    let loaded: Loaded = serde_json::from_slice(answer)
        .map_err(|error| Unreadable::Odd(format!("the table's metadata: {error}")))?;
    let metadata = loaded.metadata;
    let Some(metadata_file) = loaded.metadata_location else {
        return odd("the table has no metadata file");
    };
    if metadata.format_version > FORMAT_VERSION_MAX {
        return odd(format!("format version {} is not known here", metadata.format_version));
    }
    let current = metadata.current_snapshot_id.filter(|id| *id != -1);
    let is_there = |id: i64| metadata.snapshots.iter().any(|snapshot| snapshot.snapshot_id == id);
    let ids = metadata.refs.values().map(|reference| reference.snapshot_id);
    if let Some(id) = ids.chain(current).find(|id| !is_there(*id)) {
        return odd(format!("snapshot {id} is referred to, and is not there"));
    }
    let mut snapshots = metadata.snapshots;
    snapshots.sort_by_key(|snapshot| Some(snapshot.snapshot_id) != current);
    let statistics = metadata.statistics.into_iter().chain(metadata.partition_statistics);
    let log = metadata.metadata_log.into_iter().map(|logged| logged.metadata_file);
    Ok(Table {
        location: metadata.location,
        metadata_file,
        noted: log.chain(statistics.map(|statistics| statistics.statistics_path)).collect(),
        snapshots: snapshots.into_iter().map(manifests).collect::<Result<_, _>>()?,
        has_current: current.is_some(),
    })
}

fn manifests(snapshot: Snapshot) -> Result<Manifests, Unreadable> {
    match (snapshot.manifest_list, snapshot.manifests) {
        (Some(list), _) => Ok(Manifests::List(list)),
        (None, Some(manifests)) => Ok(Manifests::Inline(manifests)),
        (None, None) => odd(format!("snapshot {} has no manifests", snapshot.snapshot_id)),
    }
}

/// The manifests that a manifest list names.
pub(super) fn manifest_list(file: &Bytes) -> Result<Vec<String>, Unreadable> {
    records(file)?.map(|record| text(&record?, "manifest_path")).collect()
}

/// A file that is part of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct File {
    /// Where it lies.
    pub(super) path: String,
    /// Its size.
    pub(super) bytes: u64,
    /// Whether it says which rows are deleted, rather than holding rows.
    pub(super) deletes: bool,
}

/// Calls `each` with every file that a manifest holds to be part of the table.
pub(super) fn manifest<E: From<Unreadable>>(
    file: &Bytes,
    mut each: impl FnMut(File) -> Result<(), E>,
) -> Result<(), E> {
    for record in records(file)? {
        let record = record?;
        if number(&record, "status")? == Some(DELETED) {
            continue;
        }
        let Some(Value::Record(file)) = field(&record, "data_file") else {
            return Ok(odd("an entry of a manifest has no file")?);
        };
        each(File {
            path: text(file, "file_path")?,
            bytes: number(file, "file_size_in_bytes")?.and_then(|bytes| bytes.try_into().ok()).unwrap_or(0),
            deletes: number(file, "content")?.unwrap_or(0) != 0,
        })?;
    }
    Ok(())
}

type Record = Vec<(String, Value)>;

fn records(file: &Bytes) -> Result<impl Iterator<Item = Result<Record, Unreadable>>, Unreadable> {
    // Holds for the process from the first call on.
    max_allocation_bytes(PIECE_BYTES_MAX);
    let reader = Reader::new(&file[..]).map_err(Box::new)?;
    Ok(reader.map(|value| match value.map_err(Box::new)? {
        Value::Record(record) => Ok(record),
        _ => odd("no manifest: not made of records"),
    }))
}

/// A field's value, without the union that makes it optional.
fn field<'a>(record: &'a Record, name: &str) -> Option<&'a Value> {
    let (_, value) = record.iter().find(|(field, _)| field == name)?;
    Some(if let Value::Union(_, value) = value { value } else { value })
}

fn text(record: &Record, name: &str) -> Result<String, Unreadable> {
    match field(record, name) {
        Some(Value::String(text)) => Ok(text.clone()),
        _ => odd(format!("an entry has no {name}")),
    }
}

/// A number; nothing where the field is not there or empty.
fn number(record: &Record, name: &str) -> Result<Option<i64>, Unreadable> {
    match field(record, name) {
        Some(Value::Int(number)) => Ok(Some((*number).into())),
        Some(Value::Long(number)) => Ok(Some(*number)),
        Some(Value::Null) | None => Ok(None),
        Some(_) => odd(format!("{name} is no number")),
    }
}

#[cfg(test)]
mod tests {
    use apache_avro::{Codec, Schema, Writer};
    use serde_json::json;

    use super::*;

    fn loaded(change: impl FnOnce(&mut serde_json::Value)) -> Result<Table, Unreadable> {
        let mut answer = json!({"metadata-location": "s3://lake/t/metadata/2.metadata.json", "metadata": {
            "format-version": 3, "location": "s3://lake/t", "current-snapshot-id": 2,
            "snapshots": [
                {"snapshot-id": 1, "manifest-list": "s3://lake/t/metadata/1.avro"},
                {"snapshot-id": 2, "manifest-list": "s3://lake/t/metadata/2.avro"},
            ],
            "refs": {"main": {"snapshot-id": 2, "type": "branch"}, "kept": {"snapshot-id": 1, "type": "tag"}},
            "metadata-log": [{"timestamp-ms": 1, "metadata-file": "s3://lake/t/metadata/1.metadata.json"}],
            "statistics": [{"statistics-path": "s3://lake/t/metadata/s.puffin"}],
            "partition-statistics": [{"statistics-path": "s3://lake/t/metadata/p.parquet"}],
            "schemas": [{"fields": [{"type": "variant"}]}],
        }});
        change(&mut answer);
        table(answer.to_string().as_bytes())
    }

    #[test]
    fn every_file_that_metadata_name_is_named_and_the_current_snapshot_comes_first() {
        let table = loaded(|_| {}).unwrap();
        let list = |name: &str| Manifests::List(format!("s3://lake/t/metadata/{name}"));
        assert_eq!(table.snapshots, [list("2.avro"), list("1.avro")]);
        assert!(table.has_current);
        assert_eq!(table.metadata_file, "s3://lake/t/metadata/2.metadata.json");
        let noted =
            ["1.metadata.json", "s.puffin", "p.parquet"].map(|name| format!("s3://lake/t/metadata/{name}"));
        assert_eq!(table.noted, noted);
        let inline = loaded(|answer| {
            answer["metadata"]["snapshots"][0] =
                json!({"snapshot-id": 1, "manifests": ["s3://lake/t/m.avro"]});
        });
        assert_eq!(inline.unwrap().snapshots[1], Manifests::Inline(vec!["s3://lake/t/m.avro".to_owned()]));
    }

    #[test]
    fn a_new_table_has_no_snapshot_and_is_read_all_the_same() {
        let new = loaded(|answer| {
            answer["metadata"] =
                json!({"format-version": 2, "location": "s3://lake/t", "current-snapshot-id": -1});
        });
        let new = new.unwrap();
        assert!(new.snapshots.is_empty() && !new.has_current);
    }

    #[test]
    fn metadata_that_are_not_whole_are_refused() {
        assert!(loaded(|answer| answer["metadata-location"] = json!(null)).is_err());
        assert!(loaded(|answer| answer["metadata"]["format-version"] = json!(4)).is_err());
        assert!(loaded(|answer| answer["metadata"]["refs"]["x"] = json!({"snapshot-id": 3})).is_err());
        assert!(loaded(|answer| answer["metadata"]["current-snapshot-id"] = json!(3)).is_err());
        assert!(loaded(|answer| answer["metadata"]["snapshots"][1] = json!({"snapshot-id": 2})).is_err());
        assert!(loaded(|answer| answer["metadata"]["statistics"] = json!([{}])).is_err());
        assert!(table(b"{").is_err());
    }

    fn avro(schema: &str, entries: &[serde_json::Value]) -> Bytes {
        let schema = Schema::parse_str(schema).unwrap();
        let codec = Codec::Deflate(apache_avro::DeflateSettings::default());
        let mut writer = Writer::with_codec(&schema, Vec::new(), codec);
        for entry in entries {
            let value: Value = entry.clone().into();
            writer.append(value.resolve(&schema).unwrap()).unwrap();
        }
        writer.into_inner().unwrap().into()
    }

    const ENTRY: &str = r#"{"type": "record", "name": "manifest_entry", "fields": [
        {"name": "status", "type": "int"},
        {"name": "data_file", "type": {"type": "record", "name": "r2", "fields": [
            {"name": "content", "type": "int"}, {"name": "file_path", "type": "string"},
            {"name": "file_size_in_bytes", "type": "long"}]}}]}"#;

    fn files(manifest: &Bytes) -> Result<Vec<File>, Unreadable> {
        let mut files = Vec::new();
        super::manifest(manifest, |file| {
            files.push(file);
            Ok::<_, Unreadable>(())
        })?;
        Ok(files)
    }

    #[test]
    fn a_manifest_names_what_is_part_of_the_table() {
        let entry = |status: i32, content: i32, name: &str| json!({"status": status, "data_file": {"content": content, "file_path": name, "file_size_in_bytes": 7}});
        let file = |path: &str, deletes| File { path: path.to_owned(), bytes: 7, deletes };
        let manifest = avro(ENTRY, &[entry(0, 0, "old"), entry(1, 1, "new"), entry(2, 0, "gone")]);
        assert_eq!(files(&manifest).unwrap(), [file("old", false), file("new", true)]);
        let cut = manifest.slice(..manifest.len() - 20);
        assert!(files(&cut).is_err(), "a manifest that is cut short");
        assert!(files(&Bytes::from_static(b"no avro")).is_err());
    }

    #[test]
    fn a_list_names_manifests_and_an_entry_without_a_path_is_refused() {
        let list = |name: &str| {
            let schema = format!(
                r#"{{"type": "record", "name": "manifest_file", "fields": [{{"name": "{name}", "type": "string"}}]}}"#
            );
            avro(&schema, &[json!({name: "m0"}), json!({name: "m1"})])
        };
        assert_eq!(manifest_list(&list("manifest_path")).unwrap(), ["m0", "m1"]);
        assert!(manifest_list(&list("path")).is_err());
    }
}
