//! Bad input gets a typed problem with the right status, and nothing else happens.

use duck_contract::Code;
use serde_json::{Value, json};

use crate::world::{World, problem, refused, refused_writing, shared};

async fn rejected(world: &World, body: &str, code: Code) {
    let request = world.http.post(format!("{}/query", world.url)).bearer_auth(&world.acme.token);
    let problem = problem(request.body(body.to_owned()).send().await.unwrap()).await;
    assert_eq!(problem.code, code, "{}: {}", &body[..body.len().min(80)], problem.detail);
}

#[tokio::test]
async fn a_body_that_is_no_request_is_refused() {
    let world = shared().await;
    for body in [
        "",
        "{",
        "null",
        "[]",
        "{\"sql\": 1}",
        "{}",
        "{\"sql\": \"SELECT 1\", \"unknown\": 1}",
        "{\"sql\": \"SELECT 1\", \"format\": \"xml\"}",
        "{\"sql\": \"SELECT 1\", \"max_rows\": -1}",
        "{\"sql\": \"SELECT 1\", \"max_rows\": 1.5}",
        "{\"sql\": \"SELECT 1\", \"timeout_ms\": 0}",
        "{\"sql\": \"SELECT 1\", \"allow_writes\": \"yes\"}",
        "{\"sql\": \"SELECT 1\", \"params\": 1}",
        "{\"sql\": \"SELECT 1\"} trailing",
    ] {
        rejected(world, body, Code::InvalidRequest).await;
    }
}

#[tokio::test]
async fn ten_megabytes_of_sql_are_too_large() {
    let world = shared().await;
    let sql = format!("SELECT '{}'", "x".repeat(10 << 20));
    rejected(world, &json!({"sql": sql}).to_string(), Code::RequestTooLarge).await;
    let nearly = format!("SELECT length('{}')", "x".repeat(3 << 20));
    assert_eq!(world.acme.rows(&nearly).await, json!([[3 << 20]]));
}

#[tokio::test]
async fn a_statement_that_does_not_hold_is_named() {
    let world = shared().await;
    for (sql, code) in [
        ("", Code::EmptyStatement),
        ("  -- nothing\n/* at all */ ;", Code::EmptyStatement),
        ("SELECT 1; SELECT 2", Code::MultipleStatements),
        ("SELECT 1; DROP TABLE ds_toydemo001", Code::MultipleStatements),
        ("SELEC 1", Code::SqlSyntax),
        ("SELECT '", Code::SqlSyntax),
        ("SELECT 1\0", Code::SqlSyntax),
        ("SELECT * FROM no_such_table", Code::SqlBinding),
        ("SELECT * FROM no_such_schema.t", Code::SqlBinding),
        ("SELECT no_such_column FROM ds_toydemo001", Code::SqlBinding),
        ("SELECT no_such_function(1)", Code::SqlBinding),
        ("SELECT 'a'::INTEGER", Code::SqlType),
        ("SELECT 1 + [1]", Code::SqlBinding),
        ("SELECT error('mine')", Code::SqlRuntime),
        ("SELECT 9223372036854775807::BIGINT + 1::BIGINT", Code::SqlRuntime),
    ] {
        refused(&world.acme, sql, code).await;
    }
    let problem = world.acme.problem(&json!({"sql": "SELECT nope FROM ds_toydemo001"})).await;
    assert_eq!(problem.position, Some(7));
}

#[tokio::test]
async fn a_reader_accepts_only_statements_that_read() {
    let world = shared().await;
    for sql in [
        "INSERT INTO sites VALUES (9, 'x', 1.0)",
        "UPDATE sites SET name = 'x'",
        "DELETE FROM sites",
        "CREATE TABLE lake.datasets.made(i INTEGER)",
        "CREATE SCHEMA lake.made",
        "DROP TABLE sites",
        "ALTER TABLE sites ADD COLUMN x INTEGER",
        "EXPLAIN ANALYZE DELETE FROM sites",
    ] {
        refused(&world.globex, sql, Code::ReadOnly).await;
    }
    assert_eq!(world.globex.rows("SELECT count(*) FROM sites").await, json!([[4]]));
}

#[tokio::test]
async fn statements_that_are_never_run_are_refused_with_a_sentence() {
    let world = shared().await;
    for sql in [
        "ATTACH 'x.db' AS y",
        "DETACH lake",
        "USE memory",
        "SET threads = 64",
        "RESET memory_limit",
        "PRAGMA enable_profiling",
        "INSTALL spatial",
        "LOAD 'x'",
        "COPY (SELECT 1) TO 'x.csv'",
        "EXPORT DATABASE 'x'",
        "CREATE SECRET s (TYPE s3)",
        "CREATE TABLE memory.main.t(i INTEGER)",
        "CREATE MACRO m(x) AS x",
        "CHECKPOINT",
        "BEGIN",
        "CALL enable_logging()",
        "PREPARE p AS SELECT 1",
    ] {
        refused_writing(&world.acme, sql, Code::StatementRefused).await;
    }
}

#[tokio::test]
async fn what_duckdb_cannot_do_on_iceberg_is_said() {
    let world = shared().await;
    for sql in [
        "CREATE VIEW lake.datasets.v AS SELECT 1",
        "CREATE OR REPLACE TABLE lake.datasets.ds_toydemo001 AS SELECT 1 AS a",
    ] {
        refused_writing(&world.acme, sql, Code::NotSupported).await;
    }
    assert_eq!(world.acme.rows("SELECT count(*) FROM ds_toydemo001").await, json!([[5_000]]));
}

#[tokio::test]
async fn routes_and_methods_that_are_not_there_are_problems_too() {
    let world = shared().await;
    let get = world.http.get(format!("{}/query", world.url)).send().await.unwrap();
    assert_eq!(problem(get).await.code, Code::MethodNotAllowed);
    let other = world.http.get(format!("{}/nothing", world.url)).send().await.unwrap();
    assert_eq!(problem(other).await.code, Code::NotFound);
}

#[tokio::test]
async fn a_statement_that_eats_memory_or_the_stack_harms_nobody() {
    let world = World::start(&[]).await;
    let greedy: [(&str, &[Code]); 3] = [
        ("SELECT list_sort(range(150000000))[1]", &[Code::OutOfMemory]),
        (
            "SELECT length(string_agg(repeat('x', 100000000), '')) FROM range(40)",
            &[Code::OutOfMemory, Code::EngineLost, Code::SqlRuntime],
        ),
        ("SELECT json_structure(repeat('[', 200000))", &[Code::EngineLost, Code::SqlRuntime]),
    ];
    for (sql, codes) in greedy {
        let problem = world.acme.problem(&json!({"sql": sql, "timeout_ms": 20_000})).await;
        assert!(codes.contains(&problem.code), "{sql}: {problem:?}");
        assert_eq!(world.acme.rows("SELECT 1").await, json!([[1]]), "after {sql}");
        assert_eq!(world.globex.rows("SELECT count(*) FROM sites").await, json!([[4]]));
    }
    let _: Value = world.acme.rows("SELECT count(*) FROM ds_toydemo001").await;
}
