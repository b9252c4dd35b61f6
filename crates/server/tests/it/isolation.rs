//! acme's session cannot reach globex. The whole corpus of attacks comes later; these are the ways each layer must stop.

use duck_contract::Code;
use serde_json::{Value, json};

use crate::world::{World, refused, refused_writing, shared};

#[tokio::test]
async fn a_foreign_catalog_is_not_there() {
    let world = shared().await;
    for name in ["globex", "lake_b", "\"duck-dev-w_globex\""] {
        refused(&world.acme, &format!("SELECT * FROM {name}.datasets.sites"), Code::SqlBinding).await;
    }
    let attach =
        format!("ATTACH '{}' AS g (TYPE iceberg, ENDPOINT '{}')", world.globex.warehouse, world.catalog_url);
    refused(&world.acme, &attach, Code::StatementRefused).await;
    refused_writing(&world.acme, &attach, Code::StatementRefused).await;
}

#[tokio::test]
async fn a_foreign_path_is_refused_however_it_is_spelled() {
    let world = shared().await;
    let (own, foreign) = (&world.acme.warehouse, &world.globex.warehouse);
    for path in [
        format!("s3://lakehouse/{foreign}/x.parquet"),
        format!("s3://lakehouse/{foreign}/*/data/*.parquet"),
        format!("s3://lakehouse/{own}/../{foreign}/x.parquet"),
        format!("s3://lakehouse/{own}/%2e%2e/{foreign}/x.parquet"),
        format!("s3://lakehouse/{own}//../{foreign}/x.parquet"),
        format!("s3://lakehouse/{own}-other/x.parquet"),
        "s3://lakehouse/*/*/data/*.parquet".to_owned(),
        "s3://other/x.parquet".to_owned(),
        "/etc/passwd".to_owned(),
        "file:///etc/passwd".to_owned(),
        "http://127.0.0.1:1/x.parquet".to_owned(),
        world.catalog_url.clone(),
        world.dir.join("catalog.sqlite").to_string_lossy().into_owned(),
    ] {
        for function in ["read_parquet", "read_text", "read_csv", "glob"] {
            let body = json!({"sql": format!("SELECT * FROM {function}('{path}')"), "format": "json"});
            let answer = world.acme.post(&body).await;
            let (status, text) = (answer.status().as_u16(), answer.text().await.unwrap());
            // An escape stays a literal key inside the own prefix: then there is simply nothing. And glob gives back a path
            // without wildcards as it came, without looking.
            let inside = path.contains("%2e%2e") && status != 200;
            let echo = function == "glob" && text.contains(&format!("\"rows\":[[\"{path}\"]]"));
            assert!(
                inside || echo || text.contains("\"outside_warehouse\""),
                "{function} {path}: {status} {text}"
            );
            assert!(echo || !text.contains(foreign.as_str()) && !text.contains("root:"), "{text}");
        }
    }
}

#[tokio::test]
async fn nothing_is_written_outside_the_own_prefix() {
    let world = shared().await;
    let before: Vec<String> =
        world.stored().into_iter().filter(|key| key.starts_with(&world.globex.warehouse)).collect();
    let foreign = format!("s3://lakehouse/{}", world.globex.warehouse);
    for sql in [
        format!("CREATE TABLE lake.datasets.evil(i INTEGER) WITH (location = '{foreign}/evil')"),
        format!("CREATE TABLE lake.datasets.evil2(i INTEGER) WITH ('write.data.path' = '{foreign}/evil')"),
        format!("CREATE TABLE lake.datasets.evil3 WITH (location = '{foreign}/evil') AS SELECT 1 AS i"),
    ] {
        refused_writing(&world.acme, &sql, Code::OutsideWarehouse).await;
    }
    let copy = format!("COPY (SELECT 1) TO '{foreign}/x.parquet'");
    refused_writing(&world.acme, &copy, Code::StatementRefused).await;
    let after: Vec<String> =
        world.stored().into_iter().filter(|key| key.starts_with(&world.globex.warehouse)).collect();
    assert_eq!(before, after);
}

#[tokio::test]
async fn a_session_knows_no_secret_that_opens_anything() {
    let world = shared().await;
    let file = std::fs::read_to_string(world.dir.join("duck-server.toml")).unwrap();
    let file: toml::Table = file.parse().unwrap();
    let secrets =
        [&file["auth"]["jwt_secret"], &file["auth"]["service_token"], &file["catalog"]["client_secret"]];
    for sql in [
        "SELECT * FROM duckdb_secrets()",
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM duckdb_databases()",
        "SELECT getenv('PATH')",
    ] {
        let answer = world.acme.post(&json!({"sql": sql, "format": "json"})).await.text().await.unwrap();
        for secret in secrets {
            assert!(!answer.contains(secret.as_str().unwrap()), "{sql}: {answer}");
        }
        assert!(!answer.contains("globex"), "{sql}: {answer}");
    }
    refused(&world.acme, "CREATE SECRET g (TYPE s3, KEY_ID 'x', SECRET 'y')", Code::StatementRefused).await;
    refused(&world.acme, "DROP SECRET storage", Code::StatementRefused).await;
}

/// Metadata that a hostile client of the catalog wrote: acme's table, globex's files. Three depths, each stopped elsewhere.
#[tokio::test]
async fn hostile_table_metadata_leads_nowhere() {
    let world = World::start(&[]).await;
    let foreign = metadata(&world, &world.globex.warehouse, "ds_toydemo001").await;
    let manifest_list = foreign["snapshots"][0]["manifest-list"].as_str().unwrap().to_owned();
    assert!(manifest_list.contains("globex"));

    // The manifest list is globex's: the catalog itself takes it, the catalog door does not hand it on.
    world.acme.write("CREATE TABLE lake.datasets.poisoned1(reading_id BIGINT)").await;
    poison(&world, "poisoned1", &manifest_list).await;
    refused(&world.acme, "SELECT * FROM poisoned1", Code::OutsideWarehouse).await;

    // The manifest list is acme's, but what it names is globex's: only the storage door and DuckDB's own rule see that. The
    // copy is byte for byte, so its entries point at globex's manifests.
    world.acme.write("CREATE TABLE lake.datasets.poisoned2(reading_id BIGINT)").await;
    let key = manifest_list.strip_prefix("s3://lakehouse/").unwrap();
    let own_key = format!("{}/copied/list.avro", world.acme.warehouse);
    let root = world.dir.join("store/lakehouse");
    std::fs::create_dir_all(root.join(&own_key).parent().unwrap()).unwrap();
    std::fs::copy(root.join(key), root.join(&own_key)).unwrap();
    poison(&world, "poisoned2", &format!("s3://lakehouse/{own_key}")).await;
    refused(&world.acme, "SELECT * FROM poisoned2", Code::OutsideWarehouse).await;

    // Neither harms the other tables, nor globex.
    assert_eq!(world.acme.rows("SELECT count(*) FROM ds_toydemo001").await, json!([[5_000]]));
    assert_eq!(world.globex.rows("SELECT count(*) FROM ds_toydemo001").await, json!([[8_000]]));
}

async fn metadata(world: &World, warehouse: &str, table: &str) -> Value {
    let prefix = world.prefix(warehouse).await;
    world.catalog(&format!("/v1/{prefix}/namespaces/datasets/tables/{table}")).await["metadata"].clone()
}

/// Commits a snapshot with this manifest list straight to the catalog.
async fn poison(world: &World, table: &str, manifest_list: &str) {
    let prefix = world.prefix(&world.acme.warehouse).await;
    let token = world.catalog_token().await;
    let body = json!({
        "requirements": [],
        "updates": [
            {"action": "add-snapshot", "snapshot": {
                "snapshot-id": 4_242, "sequence-number": 1, "timestamp-ms": now_ms(),
                "manifest-list": manifest_list, "summary": {"operation": "append"}, "schema-id": 0}},
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 4_242},
        ],
    });
    let url = format!("{}/v1/{prefix}/namespaces/datasets/tables/{table}", world.catalog_url);
    let answer = world.http.post(url).bearer_auth(token).json(&body).send().await.unwrap();
    let (status, text) = (answer.status(), answer.text().await.unwrap());
    assert!(status.is_success(), "{status} {text}");
}

fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}
