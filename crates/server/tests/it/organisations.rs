//! Two organisations in one life of the server, and a third that comes while it runs.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::world::{Organisation, World, python};

/// Values at the edges of their types, as they are written and as PyIceberg shows them.
const EDGES: &[(&str, &str, &str)] = &[
    ("INTEGER", "-2147483648", "-2147483648"),
    ("INTEGER", "2147483647", "2147483647"),
    ("BIGINT", "-9223372036854775808", "-9223372036854775808"),
    ("BIGINT", "9223372036854775807", "9223372036854775807"),
    (
        "DECIMAL(38,10)",
        "-1234567890123456789012345678.0123456789",
        "Decimal('-1234567890123456789012345678.0123456789')",
    ),
    ("DECIMAL(9,2)", "0.01", "Decimal('0.01')"),
    ("DOUBLE", "-1.5e300", "-1.5e+300"),
    ("BOOLEAN", "false", "False"),
    ("DATE", "'1969-12-31'", "datetime.date(1969, 12, 31)"),
    ("TIME", "'23:59:59.999999'", "datetime.time(23, 59, 59, 999999)"),
    ("TIMESTAMP", "'1969-12-31 23:59:59.999999'", "datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)"),
    (
        "TIMESTAMPTZ",
        "'2026-07-01 00:00:00+02'",
        "datetime.datetime(2026, 6, 30, 22, 0, tzinfo=zoneinfo.ZoneInfo(key='UTC'))",
    ),
    ("VARCHAR", "'Año 🪀 ''quoted'' 漢字'", "\"Año 🪀 'quoted' 漢字\""),
    ("VARCHAR", "''", "''"),
    ("BLOB", "'\\x00\\xFF'::BLOB", "b'\\x00\\xff'"),
    ("INTEGER[]", "[1, NULL, 3]", "[1, None, 3]"),
    ("VARCHAR[][]", "[['a'], [], ['é', NULL]]", "[['a'], [], ['é', None]]"),
    (
        "STRUCT(a INTEGER, b STRUCT(c VARCHAR[]))",
        "{'a': 1, 'b': {'c': ['x']}}",
        "{'a': 1, 'b': {'c': ['x']}}",
    ),
    ("BIGINT", "NULL", "None"),
];

#[tokio::test]
async fn both_write_and_every_object_lies_under_its_owners_prefix() {
    let world = World::start(&[]).await;
    let columns: Vec<String> =
        EDGES.iter().enumerate().map(|(i, (kind, ..))| format!("c{i} {kind}")).collect();
    let values: Vec<&str> = EDGES.iter().map(|(_, written, _)| *written).collect();
    for (who, id) in [(&world.acme, 1), (&world.globex, 2)] {
        who.write("CREATE SCHEMA lake.edges").await;
        who.write(&format!("CREATE TABLE lake.edges.t(id INTEGER, {})", columns.join(", "))).await;
        let answer =
            who.write(&format!("INSERT INTO lake.edges.t VALUES ({id}, {})", values.join(", "))).await;
        assert_eq!(answer, json!([[1]]));
        who.write("CREATE TABLE lake.edges.many AS SELECT i, 'row ' || i AS name FROM range(200000) t(i)")
            .await;
        who.write("DELETE FROM lake.edges.many WHERE i % 2 = 1").await;
        who.write("UPDATE lake.edges.many SET name = 'changed' WHERE i < 100").await;
    }

    for (who, id) in [(&world.acme, "1"), (&world.globex, "2")] {
        let read = read_table(&world, who, "edges.t").await;
        let mut expected = vec![id.to_owned()];
        expected.extend(EDGES.iter().map(|(.., shown)| (*shown).to_owned()));
        assert_eq!(read["rows"], json!([expected]));
        let location = read["metadata_location"].as_str().unwrap();
        assert!(location.starts_with(&format!("s3://lakehouse/{}/", who.warehouse)), "{location}");

        let many = read_table(&world, who, "edges.many").await;
        let many: BTreeSet<String> =
            many["rows"].as_array().unwrap().iter().map(|row| format!("{} {}", row[0], row[1])).collect();
        assert_eq!(many.len(), 100_000);
        let counts = "SELECT count(*), sum(i), count(*) FILTER (name = 'changed') FROM lake.edges.many";
        assert_eq!(who.rows(counts).await, json!([[100_000, 9_999_900_000_i64, 50]]));
    }

    let keys = world.stored();
    let owned = |who: &Organisation| {
        keys.iter().filter(|key| key.starts_with(&format!("{}/", who.warehouse))).count()
    };
    assert!(owned(&world.acme) > 10 && owned(&world.globex) > 10);
    assert_eq!(owned(&world.acme) + owned(&world.globex), keys.len(), "an object lies under neither prefix");
}

#[tokio::test]
async fn a_warehouse_made_while_the_server_runs_answers_its_first_query() {
    let world = World::start(&[]).await;
    let newcomer = |path: &str| {
        let body = json!({"sql": "SELECT 1", "format": "json", "workspace_id": "newcomer"});
        world.http.post(format!("{}{path}", world.url)).bearer_auth(&world.service_token).json(&body)
    };
    let before = newcomer("/query").send().await.unwrap();
    assert_eq!(crate::world::problem(before).await.code, duck_contract::Code::UnknownWarehouse);

    world.found("newcomer").await;
    let after: Value = newcomer("/query").send().await.unwrap().json().await.unwrap();
    assert_eq!(after["rows"], json!([[1]]));
}

#[tokio::test]
async fn a_second_start_keeps_the_data() {
    let home = tempfile::tempdir().unwrap();
    let first = World::open(home.path(), &[], &[]).await;
    first.acme.write("CREATE TABLE lake.datasets.kept AS SELECT 42 AS answer").await;
    drop(first);
    let second = World::open(home.path(), &[], &[]).await;
    assert_eq!(second.acme.rows("SELECT answer FROM kept").await, json!([[42]]));
    assert_eq!(second.acme.rows("SELECT count(*) FROM ds_toydemo001").await, json!([[5_000]]));
}

/// A table as PyIceberg reads it through the embedded catalog.
async fn read_table(world: &World, who: &Organisation, table: &str) -> Value {
    let input = json!({
        "catalog": world.catalog_url,
        "token": world.catalog_token().await,
        "warehouse": who.warehouse,
        "store": world.dir.join("store"),
        "table": table,
    });
    tokio::task::spawn_blocking(move || python("read_table.py", &input)).await.unwrap()
}
