//! What is refused, with which code and which words, and that nothing of one request is there for the next.

use duck_contract::Code;
use serde_json::json;

use crate::world::{World, refused_writing, shared, until_async};

/// Refused to readers and writers, and the sentence says this.
async fn refused_because(world: &World, sql: &str, code: Code, why: &str) {
    for writes in [false, true] {
        let problem = world.acme.problem(&json!({"sql": sql, "allow_writes": writes})).await;
        assert_eq!(problem.code, code, "{sql}: {}", problem.detail);
        assert!(problem.detail.contains(why), "{sql}: {}", problem.detail);
    }
}

#[tokio::test]
async fn functions_with_hidden_effects_are_refused_by_name() {
    let world = shared().await;
    for (sql, why) in [
        ("SELECT * FROM enable_logging('HTTP')", "other requests"),
        (
            "SELECT * FROM system.main.\"Enable_Logging\"(storage = 'file', storage_path = '/tmp/x')",
            "other requests",
        ),
        ("FROM disable_logging()", "EXPLAIN ANALYZE"),
        ("FROM duckdb_logs", "other requests"),
        ("FROM 'duckdb_logs'", "other requests"),
        ("FROM query('FROM duckdb_logs')", "other requests"),
        ("SELECT write_log('x')", "other requests"),
        (
            "SELECT * FROM set_iceberg_table_properties('lake.datasets.sites', {'a': 'b'})",
            "a SELECT changes nothing",
        ),
        (
            "SELECT * FROM remove_iceberg_table_properties('lake.datasets.sites', ['a'])",
            "a SELECT changes nothing",
        ),
        (
            "EXPLAIN ANALYZE FROM set_iceberg_schema_properties('lake.datasets', {'a': 'b'})",
            "a SELECT changes nothing",
        ),
        ("FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))", "send the statement itself"),
        ("FROM query('SELECT ' || 1)", "written out as one text"),
        ("FROM query('CALL force_checkpoint()')", "not among the table functions"),
        ("FROM query('COPY t TO $$x$$')", "COPY, EXPORT and IMPORT are not available"),
        ("FROM checkpoint()", "not among the table functions"),
        ("FROM read_duckdb('s3://lakehouse/x.duckdb')", "not among the table functions"),
        ("FROM arrow_scan(1, 2, 3)", "not among the table functions"),
        ("FROM iceberg_scan('s3://lakehouse/x')", "read by their names"),
    ] {
        refused_because(world, sql, Code::StatementRefused, why).await;
    }
}

#[tokio::test]
async fn the_engines_own_affairs_are_not_shown() {
    let world = shared().await;
    for sql in [
        "FROM duckdb_settings()",
        "SELECT * FROM pg_catalog.pg_settings",
        "FROM duckdb_secrets()",
        "FROM which_secret('s3://lakehouse/x', 's3')",
        "FROM duckdb_extensions()",
        "FROM duckdb_temporary_files()",
        "FROM duckdb_external_file_cache()",
        "FROM iceberg_load_table_response(sites)",
        "SELECT current_setting('temp_directory')",
        "SELECT current_setting('s3_' || 'endpoint')",
        "SELECT json_serialize_plan('SELECT current_setting(''temp_directory'')', optimize := true)",
    ] {
        refused_because(world, sql, Code::StatementRefused, "").await;
    }
    // What stays shows the warehouse alone.
    let hidden = ["127.0.0.1", "http://", "/tmp", "token", "secret", "globex", world.dir.to_str().unwrap()];
    for sql in [
        "SELECT * FROM duckdb_databases()",
        "FROM pragma_database_list",
        "FROM pg_catalog.pg_database",
        "FROM duckdb_schemas()",
        "FROM duckdb_tables()",
        "FROM duckdb_views() WHERE NOT internal",
        "FROM duckdb_variables()",
        "FROM duckdb_prepared_statements()",
        "FROM iceberg_table_properties('lake.datasets.ds_toydemo001')",
        "SHOW ALL TABLES",
        "EXPLAIN ANALYZE FROM ds_toydemo001",
    ] {
        let answer = world.acme.rows(sql).await.to_string();
        for word in hidden {
            assert!(!answer.contains(word), "{sql} shows {word}: {answer}");
        }
    }
}

#[tokio::test]
async fn files_of_tables_and_of_the_engine_are_not_read() {
    let world = World::start(&[]).await;
    let own = format!("s3://lakehouse/{}", world.acme.warehouse);
    let is_data = |key: &&String| key.starts_with(&world.acme.warehouse) && key.ends_with(".parquet");
    let key = world.stored().iter().find(is_data).unwrap().clone();
    let spill = std::fs::read_link(format!("/proc/{}/cwd", world.workers()[0])).unwrap();
    let spill = spill.to_str().unwrap();
    for (sql, code, why) in [
        (format!("FROM read_parquet('s3://lakehouse/{key}')"), Code::StatementRefused, "what was deleted"),
        (format!("FROM 's3://lakehouse/{key}'"), Code::StatementRefused, "what was deleted"),
        (format!("FROM read_text('{own}/*/metadata/*.json')"), Code::StatementRefused, "what was deleted"),
        (format!("FROM read_text('{own}/' || 'x')"), Code::StatementRefused, "written out"),
        (format!("FROM read_text('{spill}/*')"), Code::OutsideWarehouse, "warehouse alone"),
        ("FROM read_text('*')".to_owned(), Code::OutsideWarehouse, "warehouse alone"),
        (format!("FROM read_text('{own}/x?s3_endpoint=127.0.0.1:1')"), Code::OutsideWarehouse, "settings"),
        (format!("FROM '{own}/../x.parquet'"), Code::OutsideWarehouse, "upwards"),
    ] {
        refused_because(&world, &sql, code, why).await;
    }
    let by_parameter = json!({"sql": "FROM read_parquet(?)", "params": [format!("s3://lakehouse/{key}")]});
    assert_eq!(world.acme.problem(&by_parameter).await.code, Code::StatementRefused);
    let names = world.acme.rows(&format!("SELECT count(*) FROM glob('{own}/**/*.parquet')")).await;
    assert!(names[0][0].as_u64().unwrap() > 0);
}

/// What DuckDB itself would let everybody do: read where it spills. The worker cannot open a file only to read it.
#[tokio::test]
async fn spilled_data_cannot_be_read_even_without_a_look_at_the_text() {
    let settings = [("worker", "memory_mb", "64"), ("worker", "memory_mb_max", "1024")];
    let world = World::start(&settings).await;
    let sorted = "SELECT x FROM (SELECT md5(i::VARCHAR) || repeat('x', 200) AS x FROM range(600_000) t(i)) ORDER BY x LIMIT 1 OFFSET 599_999";
    world.acme.rows(sorted).await;
    // Quoted names are not looked at as paths of the machine, and DuckDB lets everybody read where it spills. An engine that has grown may
    // be ending, and the next one may have no such file.
    let refused = async || {
        for pid in world.workers() {
            let _ = std::fs::write(format!("/proc/{pid}/cwd/planted.csv"), "a\n1\n");
        }
        let problem = world.acme.problem(&json!({"sql": "FROM \"./planted.csv\""})).await;
        assert!([Code::OutsideWarehouse, Code::SqlBinding].contains(&problem.code), "{problem:?}");
        problem.code == Code::OutsideWarehouse
    };
    until_async("the file that is there is refused", refused).await;
}

#[tokio::test]
async fn a_text_that_costs_too_much_to_read_is_refused_at_once() {
    let world = World::start(&[("query", "text", "{ sql_bytes_max = 100_000 }")]).await;
    for (sql, why) in [
        (format!("SELECT {}1{}", "(".repeat(1_000), ")".repeat(1_000)), "brackets deeper than 200"),
        (format!("SELECT {}1", "1+".repeat(499)), "more than 250 operators"),
        (format!("{}{} SELECT 1", "/*".repeat(10_000), "*/".repeat(10_000)), "comments deeper than 200"),
        (format!("SELECT '{{}}'::JSON{}", "->'a'".repeat(50)), "more than 16 arrows"),
        (format!("SELECT 1 WHERE {} true", "true AND ".repeat(9_000)), "more than 5000 ANDs"),
        (format!("SELECT '{}'", "x".repeat(100_000)), "longer than 100000 bytes"),
        ("SELECT\u{1680}1".to_owned(), "two ways"),
    ] {
        refused_because(&world, &sql, Code::StatementRefused, why).await;
    }
    let numbers = (0..15_000).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    let generated = format!("SELECT count(*) FROM ds_toydemo001 WHERE order_id IN ({numbers})");
    assert_eq!(world.acme.rows(&generated).await, json!([[5_000]]));
    let unions = vec!["SELECT 1 AS a"; 300].join(" UNION ALL ");
    assert_eq!(world.acme.rows(&format!("SELECT count(*) FROM ({unions})")).await, json!([[300]]));
}

#[tokio::test]
async fn errors_advise_nothing_that_nobody_can_do() {
    let world = shared().await;
    let deep = format!("SELECT {}true", "NOT ".repeat(1_200));
    for sql in [
        deep.as_str(),
        "SELECT st_area('x')",
        "FROM st_read('x')",
        "FROM 'x.xlsx'",
        "FROM iceberg_metadata('s3://lakehouse/x')",
        "FROM iceberg_snapshots(sites)",
        "SELECT nosuch FROM ds_toydemo001",
    ] {
        let detail = world.acme.problem(&json!({"sql": sql})).await.detail;
        for word in ["INSTALL", "LOAD ", "SET ", "PRAGMA", "127.0.0.1", "lakehouse"] {
            assert!(!detail.contains(word), "{sql}: {detail}");
        }
    }
    let problem = world.acme.problem(&json!({"sql": "FROM iceberg_snapshots('nosuch/place')"})).await;
    assert_eq!(problem.code, Code::OutsideWarehouse, "{}", problem.detail);
}

/// Each of these would change what a later request on the same engine sees, if anything of it stayed.
#[tokio::test]
async fn nothing_of_one_request_is_there_for_the_next() {
    let world = World::start(&[]).await;
    let acme = &world.acme;
    // What may be done, and ends with its request; and what is refused.
    for sql in [
        "CREATE TEMP TABLE left_behind AS SELECT 'mine' AS x",
        "CREATE TEMP VIEW left_behind AS SELECT 'mine' AS x",
        "CREATE OR REPLACE TEMP MACRO left_behind(x) AS 'mine'",
        "CREATE TEMP MACRO sum(x) AS 'mine'",
        "CREATE TEMP MACRO left_behind() AS TABLE SELECT 'mine' AS x",
        "PIVOT (SELECT 'mine' AS k, 1 AS v) ON k USING sum(v)",
        "SELECT setseed(0.25)",
    ] {
        for writes in [false, true] {
            acme.json(json!({"sql": sql, "format": "json", "allow_writes": writes})).await;
        }
    }
    for sql in [
        "CREATE MACRO memory.main.now() AS 'mine'",
        "CREATE MACRO lake.datasets.sum(x) AS 'mine'",
        "CREATE TYPE left_behind AS ENUM ('mine')",
        "CREATE SEQUENCE left_behind",
        "CREATE TABLE memory.main.left_behind AS SELECT 'mine' AS x",
        "CREATE TEMP SEQUENCE left_behind",
        "CREATE TEMP TYPE left_behind AS ENUM ('mine')",
        "SET VARIABLE v = 'mine'",
        "SET TimeZone = 'Asia/Tokyo'",
        "SET search_path = 'temp'",
        "USE temp",
        "PREPARE left_behind AS SELECT 'mine'",
        "BEGIN",
        "ATTACH ':memory:' AS left_behind",
        "PRAGMA enable_profiling",
        "CALL enable_logging()",
        "CALL pragma_database_size()",
        "CREATE SECRET left_behind (TYPE s3)",
        "LOAD json",
    ] {
        refused_writing(acme, sql, Code::StatementRefused).await;
        let code = acme.problem(&json!({"sql": sql})).await.code;
        assert!([Code::StatementRefused, Code::ReadOnly].contains(&code), "{sql}: {code}");
    }
    // There is no database in the engine where anything could stay, by any spelling of the policy.
    for sql in ["INSERT INTO memory.main.x VALUES (1)", "FROM memory.main.left_behind"] {
        refused_writing(acme, sql, Code::SqlBinding).await;
    }
    for writes in [false, true] {
        let rows = async |sql: &str| {
            acme.json(json!({"sql": sql, "format": "json", "allow_writes": writes})).await["rows"].clone()
        };
        for (sql, expected) in [
            ("SELECT count(*) FROM duckdb_tables() WHERE database_name <> 'lake'", json!([[0]])),
            ("SELECT count(*) FROM duckdb_views() WHERE NOT internal", json!([[0]])),
            ("SELECT count(*) FROM duckdb_functions() WHERE NOT internal", json!([[0]])),
            ("SELECT count(*) FROM duckdb_types() WHERE NOT internal", json!([[0]])),
            ("SELECT count(*) FROM duckdb_types() WHERE list_contains(labels, 'mine')", json!([[0]])),
            ("SELECT count(*) FROM duckdb_sequences()", json!([[0]])),
            ("SELECT count(*) FROM duckdb_variables()", json!([[0]])),
            ("SELECT count(*) FROM duckdb_prepared_statements()", json!([[0]])),
            ("SELECT getvariable('v')", json!([[null]])),
            (
                "SELECT current_setting('TimeZone'), current_database(), current_schema()",
                json!([["UTC", "lake", "datasets"]]),
            ),
            ("SELECT sum(i)::BIGINT FROM range(4) t(i)", json!([[6]])),
            ("SHOW DATABASES", json!([["lake"]])),
        ] {
            assert_eq!(rows(sql).await, expected, "{sql}, writes: {writes}");
        }
        assert_ne!(rows("SELECT random()").await, rows("SELECT random()").await);
        for sql in
            ["FROM left_behind", "SELECT left_behind(1)", "FROM left_behind()", "SELECT NULL::left_behind"]
        {
            let problem = acme.problem(&json!({"sql": sql, "allow_writes": writes})).await;
            assert_eq!(problem.code, Code::SqlBinding, "{sql}: {}", problem.detail);
        }
    }
}
