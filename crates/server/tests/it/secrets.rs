//! What public reports say of secrets and of protection that was not there, as behaviour of ours (docs/reports.md).

use std::time::Duration;

use duck_contract::Code;
use serde_json::json;

use crate::between::{Between, Manner};
use crate::faults::Rig;
use crate::s3_world::{KEY_ID, SECRET, Weed};
use crate::world::{World, refused, refused_writing, shared};

/// What a mode for reading elsewhere still let through: files, COPY, INSTALL, a second statement.
#[tokio::test]
async fn who_may_only_read_reads_no_file_writes_none_and_loads_nothing() {
    let world = World::start(&[]).await;
    let foreign = format!("s3://lakehouse/{}", world.globex.warehouse);
    let theirs = world.stored().into_iter().find(|key| key.starts_with(&world.globex.warehouse)).unwrap();
    let theirs = format!("s3://lakehouse/{theirs}");
    let before = world.stored();
    let metadata = "http://169.254.169.254/latest/meta-data/x.csv".to_owned();
    for place in ["/etc/passwd".to_owned(), "file:///etc/passwd".into(), "*".into(), metadata, theirs] {
        for function in [
            "read_text",
            "read_blob",
            "read_csv",
            "read_json",
            "read_parquet",
            "parquet_metadata",
            "parquet_schema",
            "parquet_file_metadata",
            "parquet_kv_metadata",
            "sniff_csv",
            "read_avro",
        ] {
            refused(&world.acme, &format!("FROM {function}('{place}')"), Code::OutsideWarehouse).await;
        }
        // Where it does not look like a file it is a table's name.
        for sql in [format!("FROM '{place}'"), format!("SELECT * FROM query_table('{place}')")] {
            let code = world.acme.problem(&json!({"sql": sql})).await.code;
            assert!(code.status() < 500, "{sql}: {code}");
        }
    }
    refused(&world.acme, "FROM glob('/etc/*')", Code::OutsideWarehouse).await;
    for sql in [
        format!("COPY (SELECT 1) TO '{foreign}/x.csv'"),
        format!("COPY (SELECT 1) TO 's3://lakehouse/{}/x.csv'", world.acme.warehouse),
        "COPY (SELECT 1) TO '/tmp/x.csv'".into(),
        "COPY ds_toydemo001 FROM '/etc/passwd'".into(),
        "EXPORT DATABASE '/tmp/x'".into(),
        "IMPORT DATABASE '/tmp/x'".into(),
        "INSTALL spatial".into(),
        "FORCE INSTALL spatial FROM 'http://127.0.0.1:1'".into(),
        "LOAD spatial".into(),
        "LOAD '/tmp/x.duckdb_extension'".into(),
        "UPDATE EXTENSIONS".into(),
    ] {
        for writes in [false, true] {
            let problem = world.acme.problem(&json!({"sql": sql, "allow_writes": writes})).await;
            assert!(problem.code.status() < 500, "{sql}: {} {}", problem.code, problem.detail);
        }
    }
    for second in ["DROP TABLE ds_toydemo001", "INSERT INTO customers SELECT * FROM customers", "SELECT 2"] {
        for sql in
            [format!("SELECT 1; {second}"), format!("SELECT 1;;{second};"), format!("{second}; SELECT 1")]
        {
            for writes in [false, true] {
                let problem = world.acme.problem(&json!({"sql": sql, "allow_writes": writes})).await;
                assert_eq!(problem.code, Code::MultipleStatements, "{sql}: {}", problem.detail);
            }
        }
    }
    assert_eq!(world.stored(), before);
    assert_eq!(world.acme.rows("SELECT count(*) FROM ds_toydemo001").await, json!([[5_000]]));
}

/// Neither made, nor seen, nor named: not those of the environment either.
#[tokio::test]
async fn no_statement_makes_sees_or_names_a_secret() {
    let world = shared().await;
    for sql in [
        "CREATE SECRET s (TYPE s3, KEY_ID 'k', SECRET 'x')",
        "CREATE OR REPLACE SECRET storage (TYPE s3, KEY_ID 'k', SECRET 'x')",
        "CREATE TEMPORARY SECRET s (TYPE s3)",
        "CREATE PERSISTENT SECRET s (TYPE s3)",
        "CREATE SECRET s (TYPE s3, PROVIDER credential_chain, CHAIN 'env;config')",
        "CREATE SECRET s (TYPE s3, PROVIDER env)",
        "CREATE SECRET s (TYPE http, BEARER_TOKEN 'x')",
        "DROP SECRET storage",
        "FROM duckdb_secrets()",
        "FROM duckdb_secrets(redact = false)",
        "FROM which_secret('s3://lakehouse/x', 's3')",
        "ATTACH 'x' AS y (TYPE iceberg, SECRET storage)",
        "SET s3_access_key_id = 'k'",
        "SELECT current_setting('s3_secret_access_key')",
    ] {
        refused(&world.acme, sql, Code::StatementRefused).await;
        refused_writing(&world.acme, sql, Code::StatementRefused).await;
    }
    for sql in ["SELECT getenv('PATH')", "SELECT getenv('AWS_SECRET_ACCESS_KEY')"] {
        assert!(world.acme.problem(&json!({"sql": sql})).await.code.status() < 500, "{sql}");
    }
}

/// Wherever in the text it stands, and whatever is wrong with the text. The world's end searches the log for this word.
#[tokio::test]
async fn a_secret_in_a_statement_is_not_in_the_log() {
    let world = World::start(&[]).await;
    let planted = "planted-bearer-token";
    for sql in [
        format!("CREATE SECRET s (TYPE s3, KEY_ID 'k', SECRET '{planted}')"),
        format!("SELECT 1; CREATE SECRET s (TYPE s3, KEY_ID 'k', SECRET '{planted}')"),
        format!("/* x */ SELECT 1;\n-- y\nCREATE SECRET s (TYPE s3, SECRET '{planted}')"),
        format!("CREATE SECRET s (TYPE s3, SECRET '{planted}'"),
        format!("SELECT 1; CREATE SECRET s (TYPE s3, SECRET '{planted}'"),
        format!("SELECT 1; CREATE SECRET s (TYPE s3, SECRET = '{planted}')"),
        format!("SELECT FROM WHERE; CREATE SECRET s (TYPE s3, SECRET '{planted}')"),
        format!("ATTACH 'x' AS y (TYPE iceberg, TOKEN '{planted}')"),
        format!("SELECT nosuch FROM ds_toydemo001 -- {planted}"),
        format!("SET s3_secret_access_key = '{planted}'"),
        format!("FROM read_csv('s3://lakehouse/x.csv?s3_secret_access_key={planted}')"),
        format!("FROM 's3://u:{planted}@lakehouse/x.csv'"),
        format!("FROM nosuch({planted} := 1)").replace('-', "_"),
    ] {
        for writes in [false, true] {
            world.acme.problem(&json!({"sql": sql, "allow_writes": writes})).await;
        }
    }
    let params = json!({"sql": "SELECT nosuch($1)", "params": [planted]});
    world.acme.problem(&params).await;
    world.log_holds_no_secret();
}

/// A catalog and a store that say back what they were sent: our login and our key's signature. Neither answers nor log have it.
#[tokio::test(flavor = "multi_thread")]
async fn what_catalog_and_store_say_of_our_login_is_told_to_nobody() {
    let weed = Weed::start().await;
    let home = tempfile::tempdir().unwrap();
    let world = weed.world(home.path(), &[]).await;
    let catalog = Between::before(reqwest::Url::parse(&world.catalog_url).unwrap().port().unwrap()).await;
    let store = Between::before(weed.s3_port()).await;
    let uri = format!("http://127.0.0.1:{}/catalog", catalog.port);
    let endpoint = format!("http://127.0.0.1:{}", store.port);
    let environment = [
        ("LAKEHOUSE_CATALOG_URI", uri.as_str()),
        ("LAKEHOUSE_S3_ENDPOINT", endpoint.as_str()),
        ("LAKEHOUSE_S3_ACCESS_KEY_ID", KEY_ID),
        ("LAKEHOUSE_S3_SECRET_ACCESS_KEY", SECRET),
        ("LAKEHOUSE_S3_REGION", "us-east-1"),
    ];
    let rig = Rig::start(world, home, &environment);
    let (sql, rows) = ("SELECT count(*) FROM datasets.ds_toydemo001", json!([[5_000]]));
    rig.recovers(sql, &rows, "at first").await;
    let mut answers = Vec::new();
    for sick in [&catalog, &store] {
        for status in [400, 403, 404, 409, 500, 503] {
            rig.forget_workers().await;
            sick.behaves(Manner::Echo(status));
            for body in [
                json!({"sql": sql}),
                json!({"sql": format!("CREATE TABLE datasets.t{status} AS SELECT 1 AS a"), "allow_writes": true}),
            ] {
                let answer = rig.acme.post(&body).await;
                assert!(!answer.status().is_success(), "{status}: it was asked nothing");
                let head = format!("{:?}", answer.headers());
                answers.extend([head, answer.text().await.unwrap()]);
            }
            let health = format!("{}/health?deep=1", rig.acme.url);
            answers.push(rig.acme.http.get(health).send().await.unwrap().text().await.unwrap());
            sick.behaves(Manner::Well);
            rig.recovers(sql, &rows, &format!("after {status}")).await;
        }
    }
    let answers = answers.concat();
    let log = std::fs::read_to_string(&rig.server.log).unwrap();
    let logins = [catalog.logins(), store.logins()].concat();
    let words: Vec<&str> = logins
        .iter()
        .flat_map(|login| {
            login.split([' ', '=', ',']).filter(|part| part.len() > 30 && !part.contains([';', '/']))
        })
        .chain([KEY_ID, SECRET])
        .collect();
    assert!(words.iter().filter(|word| word.len() == 64).count() > 4, "signatures were shown: {words:?}");
    assert!(catalog.logins().iter().any(|login| login.starts_with("Bearer ")), "and a token");
    for word in words {
        assert!(!answers.contains(word), "an answer has {word}");
        let line = log.lines().find(|line| line.contains(word));
        assert!(line.is_none(), "the log has {word}: {line:?}");
    }
}

/// The login that was good when the statement began is not when it commits.
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_outlives_the_login_under_which_it_began() {
    let (rig, catalog, _identity) = Rig::before_catalog(Manner::Well).await;
    rig.acme.write("CREATE TABLE datasets.slow (n BIGINT)").await;
    let acme = rig.acme.clone();
    // Some seconds of work between reading the table's metadata and committing.
    let slow = "INSERT INTO datasets.slow SELECT count(*) FROM range(20_000) a, range(30_000) b WHERE (a.range * b.range) % 7 = 3";
    let statement = tokio::spawn(async move { acme.write(slow).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!statement.is_finished(), "it is under way");
    catalog.behaves(Manner::Ended);
    assert_eq!(statement.await.unwrap(), json!([[1]]));
    assert!(!catalog.logins().is_empty(), "a login had ended");
    assert_eq!(rig.acme.rows("SELECT count(*), min(n) > 0 FROM datasets.slow").await, json!([[1, true]]));
}

/// Files by the hundred, read by many at once, again and again.
#[tokio::test(flavor = "multi_thread")]
async fn many_files_read_at_once_are_read_right_every_time() {
    let world = World::start(&[]).await;
    let folder = world.dir.join("store/lakehouse").join(&world.acme.warehouse).join("files/many");
    std::fs::create_dir_all(&folder).unwrap();
    for file in 0..300 {
        std::fs::write(folder.join(format!("{file}.txt")), format!("{file}")).unwrap();
    }
    world.acme.write("CREATE TABLE datasets.many (n BIGINT)").await;
    for n in 0..30 {
        world.acme.write(&format!("INSERT INTO datasets.many SELECT {n} * 10 + i FROM range(10) t(i)")).await;
    }
    let files = format!("read_text('s3://lakehouse/{}/files/many/*.txt')", world.acme.warehouse);
    let asked = [
        (
            format!("SELECT count(*), sum(content::BIGINT), count(DISTINCT filename) FROM {files}"),
            json!([[300, 44_850, 300]]),
        ),
        (
            "SELECT count(*), sum(n), count(DISTINCT n) FROM datasets.many".to_owned(),
            json!([[300, 44_850, 300]]),
        ),
        (
            format!("SELECT count(*), sum(n) FROM datasets.many JOIN {files} ON n = content::BIGINT"),
            json!([[300, 44_850]]),
        ),
    ];
    let clients = (0..6).map(|client| {
        let (acme, asked) = (&world.acme, &asked);
        async move {
            for round in 0..12 {
                let (sql, expected) = &asked[(client + round) % asked.len()];
                assert_eq!(&acme.rows(sql).await, expected, "client {client}, round {round}: {sql}");
            }
        }
    });
    futures::future::join_all(clients).await;
    world.is_at_rest().await;
}
