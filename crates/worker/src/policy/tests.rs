//! The policy as a whole, with the names that a bare engine knows.

use arrow::array::AsArray;

use super::*;
use crate::sys::duckdb::{Connection, Database, Prepared, Value};

const OWN: &str = "s3://lakehouse/w_a/";
const TABLE: &str = "s3://lakehouse/w_a/01a2295b-d209-73af-92f8-be4bab60d4b5/data/x.parquet";

fn bare() -> (Connection, Policy) {
    let connection = Database::open(&[("errors_as_json", "true")]).unwrap().connect().unwrap();
    let names = Names::of(&connection).unwrap();
    let default_schema = "datasets".to_owned();
    (connection, Policy { names, place: OWN.to_owned(), role: Role::Reader, default_schema })
}

fn code(role: Role, kind: Kind, sql: &str) -> Option<Code> {
    let (_, policy) = bare();
    let policy = Policy { role, ..policy };
    policy
        .read(sql, TextLimits::default())
        .and_then(|reading| policy.check(&reading, kind))
        .err()
        .map(|f| f.code)
}

#[test]
fn what_may_name_a_table_is_known() {
    let (_, policy) = bare();
    let names = |sql: &str| policy.read(sql, TextLimits::default()).unwrap().names_tables();
    for sql in ["SELECT 42", "SELECT 'from t', \"from\" -- from t", "VALUES (1)"] {
        assert!(!names(sql), "{sql}");
    }
    for sql in [
        "FROM t",
        "INSERT INTO t VALUES (1)",
        "SELECT (SELECT max(a) from t)",
        "TABLE t",
        "DESCRIBE t",
        "SUMMARIZE t",
        "PIVOT t ON c",
    ] {
        assert!(names(sql), "{sql}");
    }
}

#[test]
fn a_reader_accepts_only_statements_that_read() {
    assert_eq!(code(Role::Reader, Kind::Select, "SELECT 1"), None);
    assert_eq!(code(Role::Reader, Kind::Explain, "EXPLAIN (ANALYZE) SELECT 1"), None);
    assert_eq!(code(Role::Reader, Kind::Explain, "EXPLAIN WITH a AS (SELECT 1) FROM a"), None);
    for (kind, sql) in [
        (Kind::Insert, "INSERT INTO t VALUES (1)"),
        (Kind::Create, "create /* x */ table t(i int)"),
        (Kind::Drop, "DROP TABLE t"),
        (Kind::Explain, "EXPLAIN ANALYZE DELETE FROM t"),
        (Kind::Explain, "EXPLAIN ANALYZE WITH a AS (SELECT 1) INSERT INTO t FROM a"),
    ] {
        assert_eq!(code(Role::Reader, kind, sql), Some(Code::ReadOnly), "{sql}");
        assert_eq!(code(Role::Writer, kind, sql), None, "{sql}");
    }
}

#[test]
fn a_semicolon_ends_a_statement_unless_it_is_text() {
    let (_, policy) = bare();
    let one = |sql: &str| policy.read(sql, TextLimits::default()).unwrap().is_one_statement();
    for sql in [
        "PIVOT t ON c",
        "PIVOT t ON c; -- end\n ;",
        "SELECT ';' /* ; /* ; */ */, \";\", $$;$$, $a$;$a$, E'\\';'",
        "SELECT 'it''s;'",
    ] {
        assert!(one(sql), "{sql}");
    }
    for sql in ["SELECT 1; SELECT 2", ";x", "PIVOT t ON c;/**/DROP TABLE t", "SELECT 1 --\r; SELECT 2"] {
        assert!(!one(sql), "{sql}");
    }
}

#[test]
fn nobody_makes_secrets_or_tables_in_the_engine() {
    for (kind, sql) in [
        (Kind::Create, "CREATE SECRET s (TYPE s3)"),
        (Kind::Create, "CREATE OR REPLACE PERSISTENT SECRET s (TYPE s3)"),
        (Kind::Create, "CREATE MACRO f(x) AS x"),
        (Kind::Create, "CREATE TABLE IF NOT EXISTS \"memory\".main.t(i int)"),
        (Kind::Drop, "-- c\n DROP SECRET storage"),
        (Kind::Other(25), "ATTACH 'x' AS y"),
        (Kind::Explain, "EXPLAIN COPY t TO 's3://x'"),
    ] {
        assert_eq!(code(Role::Writer, kind, sql), Some(Code::StatementRefused), "{sql}");
    }
    assert_eq!(code(Role::Writer, Kind::Create, "CREATE TABLE memory(i int)"), None);
}

#[test]
fn a_function_is_refused_however_it_is_called() {
    let (_, policy) = bare();
    for sql in [
        "SELECT * FROM enable_logging('HTTP')",
        "FROM Enable_Logging ( )",
        "FROM\u{a0}enable_logging()",
        "SELECT * FROM system.main.\"enable_logging\"()",
        "SELECT * FROM/**/\"ENABLE_LOGGING\"/* ( */()",
        "SELECT 1 --\r, (SELECT 1 FROM enable_logging())",
        "EXPLAIN ANALYZE SELECT * FROM disable_logging()",
        "INSERT INTO t SELECT 1 FROM duckdb_log_contexts()",
        "CREATE TEMP MACRO m() AS TABLE FROM duckdb_logs()",
        "DESCRIBE FROM truncate_duckdb_logs()",
        "SELECT write_log('x')",
        "INSERT INTO t (SELECT write_log('x'))",
        "CREATE TABLE t AS (FROM enable_logging())",
        "UNPIVOT t ON a INTO NAME n VALUE v JOIN duckdb_logs() USING (x)",
        "SELECT ('x').write_log()",
        "FROM duckdb_logs",
        "FROM 'duckdb_logs'",
        "FROM E'duckdb\\x5flogs'",
        "FROM $$duckdb_logs$$, t",
        "FROM t, 'duckdb'\n'_logs'",
        "FROM main.\"DuckDB_Logs\"",
        "SELECT count(*) FROM pg_settings",
        "FROM duckdb_logs_parsed('HTTP')",
        "FROM query('FROM duckdb_logs')",
        "FROM query($$FROM query('FROM duckdb_settings()')$$)",
        "FROM query('SELECT ' || $1)",
        "FROM query('CALL enable_logging()')",
        "FROM query_table('system.main.duckdb_logs')",
        "FROM query_table(['t', 'duckdb_logs'])",
        "FROM query_table('duckdb_' || 'logs')",
        "FROM query_table($1)",
        "FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
        "SELECT json_serialize_plan('SELECT current_setting(''temp_directory'')', optimize := true)",
        "SELECT current_setting('temp_directory')",
        "SELECT current_setting('temp_' || 'directory')",
        "FROM duckdb_settings()",
        "FROM duckdb_secrets()",
        "FROM which_secret('s3://x', 's3')",
        "FROM duckdb_temporary_files()",
        "FROM arrow_scan(1, 2, 3)",
        "FROM read_duckdb('s3://lakehouse/w_a/files/x.duckdb')",
    ] {
        let failure = policy.read(sql, TextLimits::default()).err();
        assert_eq!(failure.as_ref().map(|f| f.code), Some(Code::StatementRefused), "{sql}: {failure:?}");
    }
}

#[test]
fn what_only_looks_like_it_is_accepted() {
    let policy = Policy { role: Role::Writer, ..bare().1 };
    for sql in [
        "SELECT 'enable_logging()', \"enable_logging\", write_log, duckdb_secrets.x FROM duckdb_secrets",
        "SELECT 1 -- enable_logging()\n /* write_log('x') */",
        "SELECT $$ FROM duckdb_logs() $$",
        "SELECT query, current_setting, settings FROM t WHERE query = 'ATTACH x'",
        "SELECT current_setting('TimeZone')",
        "FROM query('SELECT 1')",
        "FROM query_table('lake.datasets.t')",
        "SELECT * FROM t WHERE kind IN ('duckdb_logs') AND name = 'pg_settings' AND url = '/etc/passwd'",
        "SELECT trim('x' FROM 'xax'), extract(year FROM d), d IS DISTINCT FROM '/x' FROM t",
        "FROM read_csv('s3://lakehouse/w_a/files/*.csv', delim = '|', nullstr = '/')",
        "FROM read_parquet(['s3://lakehouse/w_a/f/a.parquet', 's3://lakehouse/w_a/f/b.parquet'])",
        "FROM read_parquet($1), read_parquet(?), read_csv($file, header = true)",
        "FROM glob('s3://lakehouse/w_a/**')",
        "SELECT 'a'\n'b', 'c'",
        "CREATE TABLE query (a INT)",
        "CREATE TABLE IF NOT EXISTS lake.datasets.\"glob\"(a INT)",
        "INSERT INTO query (a, b) VALUES (1, 2)",
        "INSERT INTO datasets.read_csv(a) SELECT 1",
        "SELECT * FROM t WHERE t.path GLOB ('/etc/' || x)",
        "SELECT a::INT, b->>'x'->'y', c[1:2], {'k': 1}.k, MAP {'a': 1}['a'] FROM t",
    ] {
        let failure = policy.read(sql, TextLimits::default()).err();
        assert!(failure.is_none(), "{sql}: {failure:?}");
    }
}

#[test]
fn files_of_tables_and_of_others_are_not_read() {
    let (_, policy) = bare();
    for (sql, expected) in [
        (format!("FROM read_parquet('{TABLE}')"), Code::StatementRefused),
        (format!("FROM read_parquet(['{OWN}f/x.parquet', '{TABLE}'])"), Code::StatementRefused),
        (format!("FROM '{TABLE}'"), Code::StatementRefused),
        (format!("FROM t JOIN \"{TABLE}\" USING (i)"), Code::StatementRefused),
        (format!("FROM ('{TABLE}' CROSS JOIN t)"), Code::StatementRefused),
        (format!("FROM query_table('{TABLE}')"), Code::StatementRefused),
        (format!("FROM read_text('{OWN}**')"), Code::StatementRefused),
        (format!("FROM read_text(concat('{OWN}', 'f/x'))"), Code::StatementRefused),
        (format!("FROM iceberg_metadata('{OWN}x/../../w_b')"), Code::StatementRefused),
        ("FROM read_text('/tmp/spill/*')".to_owned(), Code::OutsideWarehouse),
        ("FROM read_text('*')".to_owned(), Code::OutsideWarehouse),
        (format!("FROM read_text('{OWN}x?s3_endpoint=a:1')"), Code::OutsideWarehouse),
        (format!("FROM '{OWN}../w_b/x.parquet'"), Code::OutsideWarehouse),
    ] {
        let expected = if sql.contains("iceberg") { None } else { Some(expected) };
        // A bare engine does not know the functions of the extension.
        assert_eq!(policy.read(&sql, TextLimits::default()).err().map(|f| f.code), expected, "{sql}");
    }
    let reading = policy.read("FROM read_parquet($1)", TextLimits::default()).unwrap();
    let params = |path: &str| Params::Positional(vec![Json::String(path.to_owned())]);
    assert!(policy.check_parameters(&reading, Some(&params(TABLE))).is_err());
    assert!(policy.check_parameters(&reading, Some(&params(&format!("{OWN}f/x")))).is_ok());
}

#[test]
fn generated_sql_is_read_and_bombs_are_not() {
    let (_, policy) = bare();
    let read = |sql: &str| policy.read(sql, TextLimits::default()).map(|_| ());
    let numbers: Vec<_> = (0..20_000).map(|n| n.to_string()).collect();
    for sql in [
        format!("SELECT * FROM t WHERE a IN ({})", numbers.join(",")),
        format!("SELECT {}", numbers[..1_000].join(" AS c,")),
        vec!["SELECT 1"; 300].join(" UNION ALL "),
        format!("SELECT * FROM t WHERE {}", vec!["a = 1 AND b <> 2"; 2_000].join(" OR ")),
        format!("SELECT {}1{}", "(".repeat(150), ")".repeat(150)),
        format!("SELECT {}", vec!["a"; 200].join(" || ")),
        format!("SELECT '{}'", "x".repeat(3 << 20)),
        format!("INSERT INTO t VALUES {}", vec!["(-1, +2, 3 - 4)"; 5_000].join(", ")),
    ] {
        assert_eq!(read(&sql).err(), None, "{}", &sql[..60]);
    }
    for sql in [
        format!("SELECT {}1{}", "(".repeat(1_000), ")".repeat(1_000)),
        format!("SELECT {}1", "1+".repeat(499)),
        format!("SELECT {}1", "- ".repeat(499)),
        format!("{}{} SELECT 1", "/*".repeat(25_000), "*/".repeat(25_000)),
        "/*".repeat(25_000),
        format!("SELECT '{{}}'::JSON{}", "->'a'".repeat(50)),
        format!("SELECT 1{}", " UNION ALL SELECT 1".repeat(19_999)),
        format!("SELECT{} true", " true AND".repeat(50_000)),
        format!("SELECT '{}'", "x".repeat(5 << 20)),
    ] {
        assert_eq!(read(&sql).err().map(|f| f.code), Some(Code::StatementRefused), "{}", &sql[..60]);
    }
}

/// DuckDB's own parse of the text, where it is a SELECT.
fn parsed(serialize: &Prepared<'_>, sql: &str) -> String {
    serialize.bind(1, &Value::Text(sql.to_owned())).unwrap();
    let batch = serialize.execute().unwrap().next().unwrap().unwrap();
    batch.column(0).as_string::<i32>().value(0).to_owned()
}

/// Thousands of texts of which DuckDB's parser says whether they call the function: then the scan has seen it.
#[test]
fn what_the_engine_would_call_is_seen() {
    let (connection, policy) = bare();
    let pieces = [
        "'", "\"", "$$", "$q$", "E'", "\\", "\\'", "''", "/*", "*/", "--", "\n", "\r", "e", "1", "1e5", ".",
        "\u{a0}", "\u{2003}", "\u{feff}", "ü", "||", "a", ",",
    ];
    let serialize = connection.split("SELECT json_serialize_sql($1::VARCHAR)").unwrap().prepare(0).unwrap();
    let (mut called, mut seen) = (0, 0);
    for n in 0..pieces.len().pow(3) {
        let piece = |i: u32| pieces[n / pieces.len().pow(i) % pieces.len()];
        let (a, b, c) = (piece(0), piece(1), piece(2));
        let sql = format!("SELECT 'x'{a}{b}a{c}, duckdb_secrets('{a}{b}\n') --'{c}\n/*\"'*/");
        let refused = policy.read(&sql, TextLimits::default()).is_err();
        seen += u32::from(refused);
        let tree = parsed(&serialize, &sql);
        if tree.contains("\"function_name\":\"duckdb_secrets\"") {
            called += 1;
            assert!(refused, "{sql}");
        }
    }
    assert!(called > 500 && seen > called, "{called} {seen}");
}
