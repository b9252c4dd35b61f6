//! A table's metadata: made from a creation request, carried on by a commit. Pure; the Iceberg rules are those of the
//! `iceberg` crate, the rules about places are ours.
//!
//! What a snapshot points at (manifest lists, and through them every data file) is not looked at: Lakekeeper does not do
//! it either, and whoever reads through the doors is stopped there.

use std::collections::HashMap;

use iceberg::spec::{
    FormatVersion, Schema, SortOrder, TableMetadata, TableMetadataBuilder, UnboundPartitionSpec,
};
use iceberg::{TableCreation, TableRequirement, TableUpdate};
use serde::Deserialize;
use uuid::Uuid;

use crate::place::Place;
use crate::refusal::Refusal;

const FORMAT_VERSION: &str = "format-version";
/// Properties by which writers put files elsewhere.
const PATH_PROPERTIES: [&str; 4] =
    ["write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path"];

/// The body of a `createTable`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Creation {
    pub(crate) name: String,
    pub(crate) location: Option<String>,
    schema: Schema,
    partition_spec: Option<UnboundPartitionSpec>,
    write_order: Option<SortOrder>,
    #[serde(default)]
    pub(crate) stage_create: bool,
    #[serde(default)]
    properties: HashMap<String, String>,
}

/// The body of an `updateTable`, or one entry of a `commitTransaction`.
#[derive(Debug, Deserialize)]
pub(crate) struct Commit {
    pub(crate) identifier: Option<Identifier>,
    #[serde(default)]
    requirements: Vec<TableRequirement>,
    updates: Vec<TableUpdate>,
}

/// A table's name in a body.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Identifier {
    pub(crate) namespace: Vec<String>,
    pub(crate) name: String,
}

impl Creation {
    /// The metadata of the new table.
    pub(crate) fn metadata(self, uuid: Uuid, location: &Place) -> Result<TableMetadata, Refusal> {
        let mut properties = self.properties;
        check_properties(&properties)?;
        let format_version = match properties.remove(FORMAT_VERSION).as_deref() {
            Some("1") => FormatVersion::V1,
            None | Some("2") => FormatVersion::V2,
            Some("3") => FormatVersion::V3,
            Some(_) => return Err(Refusal::bad_request("format-version is 1, 2 or 3")),
        };
        let creation = TableCreation::builder()
            .name(self.name)
            .location(location.to_string())
            .schema(self.schema)
            .partition_spec_opt(self.partition_spec)
            .sort_order_opt(self.write_order.filter(|order| !order.fields.is_empty()))
            .properties(properties)
            .format_version(format_version)
            .build();
        Ok(TableMetadataBuilder::from_table_creation(creation)?.assign_uuid(uuid).build()?.metadata)
    }
}

impl Commit {
    /// Whether the commit finishes a creation rather than changing a table.
    pub(crate) fn creates(&self) -> bool {
        self.requirements.iter().any(|requirement| matches!(requirement, TableRequirement::NotExist))
    }

    /// The uuid that the commit gives the table, if any.
    pub(crate) fn assigned_uuid(&self) -> Option<Uuid> {
        self.updates.iter().find_map(|update| match update {
            TableUpdate::AssignUuid { uuid } => Some(*uuid),
            _ => None,
        })
    }

    /// Refuses what can only be said of a table that exists (or, for `None`, of one that does not).
    pub(crate) fn check(&self, current: Option<&TableMetadata>) -> Result<(), Refusal> {
        self.requirements.iter().try_for_each(|requirement| Ok(requirement.check(current)?))
    }

    /// The next metadata of a table. `base_file` is where the metadata it starts from lies, unless it is a staged table.
    pub(crate) fn apply(
        self,
        base: TableMetadata,
        base_file: Option<String>,
    ) -> Result<TableMetadata, Refusal> {
        let location = Place::parse(base.location())?;
        let uuid = base.uuid();
        let mut builder = base.into_builder(base_file);
        for update in self.updates {
            match &update {
                TableUpdate::SetLocation { location: wanted } if Place::parse(wanted)? != location => {
                    return Err(Refusal::invalid_location("a table's location cannot change"));
                }
                TableUpdate::AssignUuid { uuid: wanted } if *wanted != uuid => {
                    return Err(Refusal::bad_request("a table's uuid cannot change"));
                }
                TableUpdate::SetProperties { updates } => check_properties(updates)?,
                _ => {}
            }
            builder = match update {
                TableUpdate::SetProperties { updates } => set_properties(builder, updates)?,
                other => other.apply(builder)?,
            };
        }
        Ok(builder.build()?.metadata)
    }
}

/// Sets properties; `format-version` among them is an upgrade, as in other catalogs.
fn set_properties(
    builder: TableMetadataBuilder,
    mut properties: HashMap<String, String>,
) -> Result<TableMetadataBuilder, Refusal> {
    let builder = match properties.remove(FORMAT_VERSION).as_deref() {
        None => builder,
        Some("1") => builder.upgrade_format_version(FormatVersion::V1)?,
        Some("2") => builder.upgrade_format_version(FormatVersion::V2)?,
        Some("3") => builder.upgrade_format_version(FormatVersion::V3)?,
        Some(_) => return Err(Refusal::bad_request("format-version is 1, 2 or 3")),
    };
    Ok(builder.set_properties(properties)?)
}

/// Refuses properties that would send writers to another place than the table's own.
fn check_properties(properties: &HashMap<String, String>) -> Result<(), Refusal> {
    for (name, value) in properties {
        // A column may be called `path` (`write.metadata.metrics.column.path`): there the value is no place.
        let leads =
            matches!(name.rsplit('.').next(), Some("path" | "location")) && value.contains(['/', '\\', ':']);
        if leads || PATH_PROPERTIES.contains(&name.as_str()) {
            return Err(Refusal::unsupported_property(name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn place() -> Place {
        Place::parse("s3://lake/w/t").unwrap()
    }

    fn created(properties: &serde_json::Value) -> Result<TableMetadata, Refusal> {
        let body = json!({
            "name": "t", "properties": properties,
            "schema": {"type": "struct", "fields": [{"id": 1, "name": "n", "required": false, "type": "long"}]},
        });
        serde_json::from_value::<Creation>(body).unwrap().metadata(Uuid::new_v4(), &place())
    }

    fn committed(update: &serde_json::Value) -> Result<TableMetadata, Refusal> {
        let commit: Commit = serde_json::from_value(json!({"updates": [update]})).unwrap();
        commit.apply(created(&json!({})).unwrap(), None)
    }

    #[test]
    fn properties_that_point_elsewhere_are_refused() {
        for (name, value) in [
            ("write.data.path", "s3://lake/w/t/data"),
            ("write.metadata.path", "x"),
            ("write.object-storage.path", "s3://other"),
            ("write.folder-storage.path", "s3://other"),
            ("some.writer.path", "s3://other"),
            ("some.writer.location", "/etc"),
            ("location", "s3://other"),
        ] {
            assert_eq!(created(&json!({name: value})).unwrap_err().status.as_u16(), 409, "{name}");
            let update = json!({"action": "set-properties", "updates": {name: value}});
            assert_eq!(committed(&update).unwrap_err().status.as_u16(), 409, "{name}");
        }
    }

    #[test]
    fn a_column_called_path_keeps_its_metrics_mode() {
        let properties = json!({"write.metadata.metrics.column.path": "full"});
        assert_eq!(created(&properties).unwrap().properties()["write.metadata.metrics.column.path"], "full");
    }

    #[test]
    fn the_format_version_is_a_number_and_no_property() {
        let table = created(&json!({"format-version": "3"})).unwrap();
        assert_eq!(table.format_version(), FormatVersion::V3);
        assert!(table.properties().is_empty());
        assert_eq!(created(&json!({})).unwrap().format_version(), FormatVersion::V2);
        assert_eq!(created(&json!({"format-version": "4"})).unwrap_err().status.as_u16(), 400);
    }

    #[test]
    fn a_table_stays_where_and_what_it_is() {
        let moved = committed(&json!({"action": "set-location", "location": "s3://lake/w/other"}));
        assert_eq!(moved.unwrap_err().kind, "InvalidLocation");
        committed(&json!({"action": "set-location", "location": "s3://lake/w/t/"})).unwrap();
        let renamed = committed(&json!({"action": "assign-uuid", "uuid": Uuid::nil()}));
        assert_eq!(renamed.unwrap_err().status.as_u16(), 400);
    }

    #[test]
    fn snapshot_ids_keep_every_bit() {
        for id in [i64::MAX, 9_007_199_254_740_993, -9_007_199_254_740_993] {
            let table = committed(&json!({"action": "add-snapshot", "snapshot": {
                "snapshot-id": id, "sequence-number": 1, "timestamp-ms": 4_000_000_000_000_i64,
                "manifest-list": "s3://lake/w/t/metadata/snap.avro", "summary": {"operation": "append"}, "schema-id": 0,
            }}))
            .unwrap();
            let text = serde_json::to_string(&table).unwrap();
            assert!(text.contains(&format!("\"snapshot-id\":{id}")), "{text}");
        }
    }
}
