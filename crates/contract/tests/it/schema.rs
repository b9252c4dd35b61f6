//! `schema.json` says what the types say.

use std::path::Path;

use duck_contract::audit::HistoryAnswer;
use duck_contract::query::{JsonAnswer, TablesAnswer};
use duck_contract::statements::{StatementAnswer, StatementsAnswer};
use duck_contract::{Code, Problem, QueryRequest, StatementRequest};
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// The types of the HTTP interface, by name, and each code's status. Not the worker protocol: both its sides are ours.
fn generated() -> String {
    let mut generator: SchemaGenerator = SchemaSettings::draft2020_12().into_generator();
    generator.subschema_for::<QueryRequest>();
    generator.subschema_for::<JsonAnswer>();
    generator.subschema_for::<TablesAnswer>();
    generator.subschema_for::<StatementRequest>();
    generator.subschema_for::<StatementAnswer>();
    generator.subschema_for::<StatementsAnswer>();
    generator.subschema_for::<HistoryAnswer>();
    generator.subschema_for::<Problem>();
    let mut types = generator.take_definitions(true);
    let statuses: Map<String, Value> =
        Code::ALL.iter().map(|code| (code.as_str().to_owned(), json!(code.status()))).collect();
    types["Code"]["x-statuses"] = Value::Object(statuses);
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "duck-server",
        "description": "What clients of duck-server send and receive. Generated from crates/contract by `just schema`.",
        "$defs": types,
    });
    format!("{schema:#}\n")
}

#[test]
fn the_committed_schema_is_what_the_types_say() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema.json");
    #[allow(clippy::disallowed_methods, reason = "a switch of this test, not a setting of the program")]
    if std::env::var("UPDATE_SCHEMA").is_ok() {
        std::fs::write(&file, generated()).unwrap();
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        committed == generated(),
        "crates/contract/schema.json is stale: run `UPDATE_SCHEMA=1 cargo test -p duck-contract schema` and commit it"
    );
}

#[test]
fn every_code_is_in_the_schema_once_and_with_its_status() {
    let schema: Value = serde_json::from_str(&generated()).unwrap();
    let code = &schema["$defs"]["Code"];
    let mut listed: Vec<&str> = Vec::new();
    for variant in code["oneOf"].as_array().unwrap() {
        listed.extend(variant["const"].as_str());
        listed.extend(variant["enum"].as_array().into_iter().flatten().filter_map(Value::as_str));
    }
    let all: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(listed, all);
    assert_eq!(code["x-statuses"].as_object().unwrap().len(), all.len());
    assert!(schema["$defs"].get("Spec").is_none(), "the worker protocol is no client's affair");
}
