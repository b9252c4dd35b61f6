//! What a query answers, and in which form.

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use duck_contract::Code;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use crate::world::{Organisation, shared};

#[tokio::test]
async fn the_same_text_answers_from_each_organisations_own_table() {
    let world = shared().await;
    let sql = "SELECT count(*), min(COLUMNS(*)) FROM datasets.ds_toydemo001";
    let columns = |answer: &Value| answer["columns"].as_array().unwrap().len();
    let acme = world.acme.json(json!({"sql": sql, "format": "json"})).await;
    let globex = world.globex.json(json!({"sql": sql, "format": "json"})).await;
    assert_eq!((acme["rows"][0][0].as_i64(), globex["rows"][0][0].as_i64()), (Some(5_000), Some(8_000)));
    assert_ne!(columns(&acme), columns(&globex));
}

#[tokio::test]
async fn a_table_is_found_by_each_of_its_names() {
    let world = shared().await;
    for name in ["ds_toydemo001", "datasets.ds_toydemo001", "lake.datasets.ds_toydemo001"] {
        assert_eq!(
            world.acme.rows(&format!("SELECT count(*) FROM {name}")).await,
            json!([[5_000]]),
            "{name}"
        );
    }
}

#[tokio::test]
async fn arrow_and_json_say_the_same() {
    let world = shared().await;
    let sql = "SELECT order_id, product FROM ds_toydemo001 ORDER BY order_id";
    let batches = world.acme.arrow(sql).await;
    let rows: Vec<Value> = batches
        .iter()
        .flat_map(|batch| {
            let ids = batch.column(0).as_primitive::<Int64Type>();
            let products = batch.column(1).as_string::<i32>();
            (0..batch.num_rows()).map(|i| json!([ids.value(i), products.value(i)])).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(rows.len(), 5_000);
    assert_eq!(Value::from(rows), world.acme.rows(sql).await);
}

#[tokio::test]
async fn values_of_every_kind_survive_json() {
    let world = shared().await;
    let sql = "SELECT 9223372036854775807, -0.5::DOUBLE, 123.45::DECIMAL(10,2), 'é🪀\"\\', NULL, true, DATE '2026-02-03',
               TIMESTAMP '2026-02-03 04:05:06.789', TIMESTAMPTZ '2026-02-03 04:05:06+02', [1, NULL, 3],
               {'a': 1, 'b': ['x']}, 'c'::ENUM('c', 'd'), '6ba7b810-9dad-11d1-80b4-00c04fd430c8'::UUID";
    let rows = world.acme.rows(sql).await;
    assert_eq!(
        rows,
        json!([[
            9_223_372_036_854_775_807_i64, -0.5, 123.45, "é🪀\"\\", null, true, "2026-02-03", "2026-02-03T04:05:06.789",
            "2026-02-03T02:05:06Z", [1, null, 3], {"a": 1, "b": ["x"]}, "c", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
        ]])
    );
}

#[tokio::test]
async fn a_number_keeps_all_its_digits_in_json() {
    let world = shared().await;
    let sql = "SELECT 170141183460469231731687303715884105727::HUGEINT, [-1::HUGEINT], -0.05::DECIMAL(4,2),
               12345678901234567890.123456789::DECIMAL(38,9), {'d': 7::DECIMAL(3,0)}";
    let text = world.acme.post(&json!({"sql": sql, "format": "json"})).await.text().await.unwrap();
    let rows = r#""rows":[[170141183460469231731687303715884105727,[-1],-0.05,12345678901234567890.123456789,{"d":7}]]"#;
    assert!(text.contains(rows), "{text}");
}

#[tokio::test]
async fn parameters_are_bound_by_position_and_by_name() {
    let world = shared().await;
    let ask = async |sql: &str, params: Value| {
        world.acme.json(json!({"sql": sql, "format": "json", "params": params})).await["rows"].clone()
    };
    assert_eq!(ask("SELECT ? || ?", json!(["a", "b"])).await, json!([["ab"]]));
    assert_eq!(ask("SELECT $2, $1", json!([1, null])).await, json!([[null, 1]]));
    assert_eq!(
        ask("SELECT $x::INT + 1, $y", json!({"y": "'; DROP", "x": 41})).await,
        json!([[42, "'; DROP"]])
    );
    let sql = "SELECT count(*) FROM ds_toydemo001 WHERE order_id <= $n";
    assert_eq!(ask(sql, json!({"n": 7})).await, json!([[7]]));
    for (sql, params) in [("SELECT ?", json!([])), ("SELECT ?", json!([[1]])), ("SELECT $a", json!({"b": 1}))]
    {
        let problem = world.acme.problem(&json!({"sql": sql, "params": params})).await;
        assert_eq!(problem.code, Code::SqlParameters);
    }
}

#[tokio::test]
async fn rows_end_at_max_rows_and_say_so() {
    let world = shared().await;
    let answer = world.acme.post(&json!({"sql": "FROM range(10)", "max_rows": 10})).await;
    assert_eq!(
        (&answer.headers()["x-row-count"], &answer.headers()["x-truncated"]),
        (&"10".parse().unwrap(), &"false".parse().unwrap())
    );
    let answer = world.acme.json(json!({"sql": "FROM range(10)", "max_rows": 3, "format": "json"})).await;
    assert_eq!(
        answer,
        json!({
            "columns": [{"name": "range", "type": "BIGINT"}], "rows": [[0], [1], [2]], "row_count": 3, "truncated": true
        })
    );
    let answer = world.acme.json(json!({"sql": "FROM range(10)", "max_rows": 0, "format": "json"})).await;
    assert_eq!((answer["row_count"].as_i64(), answer["truncated"].as_bool()), (Some(0), Some(true)));
}

#[tokio::test]
async fn a_long_answer_tells_its_counts_in_trailers() {
    let world = shared().await;
    let body = json!({"sql": "SELECT i, repeat('x', 40) FROM range(200000) t(i)", "max_rows": 90_000});
    let (head, bytes, trailers) = raw(&world.acme, &body).await.unwrap();
    assert_eq!(head.headers["trailer"], "x-row-count, x-truncated");
    assert!(bytes.len() > 1 << 20);
    let trailers = trailers.unwrap();
    assert_eq!(
        (&trailers["x-row-count"], &trailers["x-truncated"]),
        (&"90000".parse().unwrap(), &"true".parse().unwrap())
    );
}

#[tokio::test]
async fn a_failure_after_the_first_byte_cannot_be_taken_for_success() {
    let world = shared().await;
    for format in ["arrow", "json"] {
        let sql = "SELECT i, CASE WHEN i = 90000 THEN error('boom') ELSE repeat('x', 100) END AS x FROM range(100000) t(i)";
        let body = json!({"sql": sql, "format": format});
        let answer = world.acme.post(&body).await;
        assert_eq!(answer.status(), 200, "the answer begins before the failure");
        assert!(answer.bytes().await.is_err(), "the connection must be cut");
    }
}

#[tokio::test]
async fn a_statement_ends_at_its_deadline() {
    let world = shared().await;
    let sql = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b";
    let problem = world.acme.problem(&json!({"sql": sql, "timeout_ms": 300})).await;
    assert_eq!(problem.code, Code::Timeout);
    assert_eq!(world.acme.rows("SELECT 1").await, json!([[1]]));
}

#[tokio::test]
async fn a_pivot_is_one_statement() {
    let world = shared().await;
    let sql = "PIVOT (SELECT country, quantity FROM ds_toydemo001) ON country USING count(*)";
    let answer = world.acme.json(json!({"sql": sql, "format": "json"})).await;
    let names: Vec<&str> =
        answer["columns"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["quantity", "DE", "ES", "FR", "MX"]);
}

#[tokio::test]
async fn a_large_sort_spills_and_answers() {
    let world = shared().await;
    // 20 million rows of 60 bytes do not fit a worker's memory.
    let sql = "SELECT count(*), min(k), max(k) FROM (SELECT md5(i::VARCHAR) || 'padding' AS k FROM range(20000000) t(i) ORDER BY k OFFSET 1)";
    let rows = world.globex.rows(sql).await;
    assert_eq!(rows[0][0], json!(19_999_999));
}

/// A query over a connection of its own: head, body, trailers.
async fn raw(
    who: &Organisation,
    body: &Value,
) -> Result<(http::response::Parts, bytes::Bytes, Option<http::HeaderMap>), Box<dyn std::error::Error>> {
    let address = who.url.trim_start_matches("http://");
    let stream = tokio::net::TcpStream::connect(address).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = http::Request::post("/query")
        .header("host", address)
        .header("te", "trailers")
        .header("authorization", format!("Bearer {}", who.token))
        .body(Full::new(bytes::Bytes::from(body.to_string())))?;
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = body.collect().await?;
    let trailers = body.trailers().cloned();
    Ok((head, body.to_bytes(), trailers))
}
