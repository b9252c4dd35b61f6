//! Public data sets, loaded through the server into Iceberg tables and asked there, against DuckDB's own answers on the same
//! files.

use std::path::PathBuf;

use duck_contract::Code;
use serde_json::{Value, json};

use crate::world::{Organisation, World, python, refused, refused_writing};

/// Where `scripts/test-setup.sh` puts them.
fn source() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/test-data/vega-datasets@3.2.1/data")
}

/// Puts files of the data sets under a warehouse's own prefix.
fn put(world: &World, warehouse: &str, files: &[&str]) {
    let folder = world.dir.join("store/lakehouse").join(warehouse).join("files");
    std::fs::create_dir_all(&folder).unwrap();
    for file in files {
        std::fs::copy(source().join(file), folder.join(file))
            .expect("scripts/test-setup.sh fetches the data sets");
    }
}

/// One data set: the table's name, its file, and the query that reads the file, `{}` standing for its place.
struct Set {
    table: &'static str,
    file: &'static str,
    read: &'static str,
}

/// Every value as DuckDB's own text, so that both sides are compared digit by digit.
fn as_text(sql: &str) -> String {
    format!("SELECT COLUMNS(*)::VARCHAR FROM ({sql})")
}

/// Loads the sets through the server, and asks the server and DuckDB the same: every row of every set, and these besides.
async fn same(sets: &[Set], questions: &[&str]) {
    let world = World::start(&[]).await;
    let acme = &world.acme;
    put(&world, &acme.warehouse, &sets.iter().map(|set| set.file).collect::<Vec<_>>());
    let mut setup = Vec::new();
    for Set { table, file, read } in sets {
        let place = |folder: &str| read.replace("{}", &format!("'{folder}/{file}'"));
        let theirs = place(&format!("s3://lakehouse/{}/files", acme.warehouse));
        acme.write(&format!("CREATE TABLE lake.datasets.{table} AS {theirs}")).await;
        setup.push(format!("CREATE TABLE {table} AS {}", place(source().to_str().unwrap())));
    }
    // A sum over the rows' hashes compares sets that are too long to be sent.
    let whole = |table: &str| format!("SELECT count(*), sum(hash(x::VARCHAR)::HUGEINT) FROM {table} AS x");
    let mut asked: Vec<String> = questions.iter().map(|sql| as_text(sql)).collect();
    for Set { table, .. } in sets {
        asked.push(as_text(&whole(table)));
        asked.push(as_text(&format!("SELECT column_name, column_type FROM (DESCRIBE {table})")));
    }
    let answers = python("ask_duckdb.py", &json!({"setup": setup, "ask": asked}));
    for (sql, expected) in asked.iter().zip(answers.as_array().unwrap()) {
        assert!(!expected.as_array().unwrap().is_empty(), "{sql} has no rows");
        assert_eq!(&rows(acme, sql).await, expected, "{sql}");
    }
}

async fn rows(who: &Organisation, sql: &str) -> Value {
    let answer = who.json(json!({"sql": sql, "format": "json"})).await;
    assert_eq!(answer["truncated"], false, "{sql}");
    answer["rows"].clone()
}

#[tokio::test]
async fn json_files_become_tables_with_the_same_values() {
    let sets = [
        Set { table: "cars", file: "cars.json", read: "SELECT * FROM read_json({})" },
        // Titles are numbers here and there, so DuckDB calls the column JSON, which Iceberg does not have.
        Set {
            table: "movies",
            file: "movies.json",
            read: "SELECT * REPLACE (CAST(Title AS VARCHAR) AS Title) FROM read_json({})",
        },
        Set {
            table: "flights_200k",
            file: "flights-200k.json",
            read: "SELECT * REPLACE (CAST(delay AS BIGINT) AS delay) FROM read_json({})",
        },
        Set {
            table: "earthquakes",
            file: "earthquakes.json",
            read: "SELECT f.id, f.properties.mag AS mag, f.properties.place AS place, epoch_ms(f.properties.time) AS at,
                          f.geometry AS geometry, f.properties.tsunami = 1 AS tsunami
                   FROM (SELECT unnest(features) AS f FROM read_json({}, maximum_object_size = 30000000))",
        },
    ];
    let questions = [
        "SELECT * FROM cars ORDER BY ALL",
        "SELECT * FROM movies ORDER BY ALL",
        "SELECT Origin, count(*), avg(Horsepower), sum(Weight_in_lbs), min(Year), max(Miles_per_Gallon) FROM cars
         GROUP BY Origin ORDER BY Origin",
        "SELECT \"Major Genre\" AS genre, count(*), sum(\"Worldwide Gross\"), max(\"IMDB Rating\") FROM movies
         GROUP BY genre ORDER BY genre",
        "SELECT count(*), sum(delay), min(delay), max(distance), sum(distance), median(delay) FROM flights_200k",
        "SELECT distance // 500 AS far, count(*), sum(delay) FROM flights_200k GROUP BY far ORDER BY far",
        "SELECT * FROM earthquakes ORDER BY id",
        "SELECT round(mag) AS m, count(*), max(geometry.coordinates[3]), list_sort(list(id))[1] FROM earthquakes
         GROUP BY m ORDER BY m",
    ];
    same(&sets, &questions).await;
}

#[tokio::test]
async fn csv_files_become_tables_with_the_same_values() {
    let sets = [
        Set {
            table: "stocks",
            file: "stocks.csv",
            read: "SELECT symbol, strptime(date, '%b %-d %Y')::DATE AS day, price FROM read_csv({})",
        },
        Set { table: "weather", file: "seattle-weather.csv", read: "SELECT * FROM read_csv({})" },
        Set { table: "unemployment", file: "unemployment.tsv", read: "SELECT * FROM read_csv({})" },
    ];
    let questions = [
        "SELECT * FROM stocks ORDER BY ALL",
        "SELECT * FROM weather ORDER BY ALL",
        "SELECT * FROM unemployment ORDER BY ALL",
        "SELECT symbol, count(*), min(day), max(price), last(price ORDER BY day) FROM stocks GROUP BY symbol ORDER BY symbol",
        "SELECT symbol, day, avg(price) OVER (PARTITION BY symbol ORDER BY day ROWS 2 PRECEDING) FROM stocks ORDER BY ALL",
        "SELECT weather, month(date) AS m, count(*), round(avg(temp_max), 9), sum(precipitation::DECIMAL(9, 2)) FROM weather
         GROUP BY ALL ORDER BY ALL",
        "SELECT s.symbol, w.weather, count(*) FROM stocks s JOIN weather w ON (month(w.date), day(w.date)) = (month(s.day), day(s.day))
         GROUP BY ALL ORDER BY ALL",
    ];
    same(&sets, &questions).await;
}

#[tokio::test]
async fn three_million_flights_join_with_their_airports() {
    let sets = [
        Set { table: "flights", file: "flights-3m.parquet", read: "SELECT * FROM read_parquet({})" },
        Set { table: "airports", file: "airports.csv", read: "SELECT * FROM read_csv({})" },
    ];
    let questions = [
        "SELECT count(*), sum(delay), sum(distance), min(date), max(date), count(DISTINCT origin) FROM flights",
        "SELECT a.state, count(*), sum(f.delay), max(f.distance), min(f.date)
         FROM flights f JOIN airports a ON a.iata = f.origin GROUP BY a.state ORDER BY a.state",
        "SELECT o.city, d.city, count(*) AS n FROM flights f
         JOIN airports o ON o.iata = f.origin JOIN airports d ON d.iata = f.destination
         WHERE f.delay > 120 GROUP BY ALL ORDER BY n DESC, o.city, d.city LIMIT 50",
        "SELECT hour(date) AS h, count(*), sum(delay) FROM flights GROUP BY h ORDER BY h",
        "SELECT * FROM airports WHERE iata NOT IN (SELECT origin FROM flights) ORDER BY iata",
    ];
    same(&sets, &questions).await;
}

#[tokio::test]
async fn what_iceberg_cannot_hold_or_a_reader_cannot_find_is_said_in_so_many_words() {
    let world = World::start(&[]).await;
    let acme = &world.acme;
    put(&world, &acme.warehouse, &["movies.json", "cars.json"]);
    put(&world, &world.globex.warehouse, &["cars.json"]);
    let file = |name: &str| format!("'s3://lakehouse/{}/files/{name}'", acme.warehouse);
    for (table, select) in [
        // As DuckDB reads it, one column is JSON.
        ("movies", format!("SELECT * FROM read_json({})", file("movies.json"))),
        ("unsigned", "SELECT 1::UBIGINT AS x".to_owned()),
        ("tiny", "SELECT 1::TINYINT AS x".to_owned()),
        ("timed", "SELECT INTERVAL 1 DAY AS x".to_owned()),
        ("bits", "SELECT '101'::BIT AS x".to_owned()),
        ("tag", "SELECT 'a'::ENUM ('a', 'b') AS x".to_owned()),
        ("either", "SELECT union_value(a := 1) AS x".to_owned()),
    ] {
        refused_writing(acme, &format!("CREATE TABLE datasets.{table} AS {select}"), Code::NotSupported)
            .await;
    }
    // A HUGEINT is a DECIMAL(38, 0) there, with the same value.
    acme.write("CREATE TABLE datasets.huge AS SELECT 12345678901234567890123456789::HUGEINT AS x").await;
    let huge = rows(acme, "SELECT x::VARCHAR, typeof(x) FROM datasets.huge").await;
    assert_eq!(huge, json!([["12345678901234567890123456789", "DECIMAL(38,0)"]]));
    acme.write("DROP TABLE datasets.huge").await;
    refused(acme, &format!("SELECT * FROM read_json({})", file("nothing.json")), Code::SqlRuntime).await;
    refused(acme, &format!("SELECT * FROM read_parquet({})", file("cars.json")), Code::SqlRuntime).await;
    let foreign =
        format!("SELECT * FROM read_json('s3://lakehouse/{}/files/cars.json')", world.globex.warehouse);
    refused(acme, &foreign, Code::OutsideWarehouse).await;
    refused(acme, "SELECT * FROM datasets.huge", Code::SqlBinding).await;
    // Nothing of it was made. (The catalog is asked: DuckDB goes on listing a table that it has once loaded.)
    let prefix = world.prefix(&acme.warehouse).await;
    let listed = world.catalog(&format!("/v1/{prefix}/namespaces/datasets/tables")).await;
    let mut names: Vec<_> =
        listed["identifiers"].as_array().unwrap().iter().map(|table| &table["name"]).collect();
    names.sort_by_key(ToString::to_string);
    assert_eq!(json!(names), json!(["customers", "ds_toydemo001"]));
}
