//! First tables, made through the front door like anybody's.

use std::time::Duration;

use serde_json::json;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// For one statement.
const STATEMENT_MAX: Duration = Duration::from_mins(1);

/// Table and the query that makes its rows.
pub(crate) type Seed = (&'static str, &'static str);

const ACME: &[Seed] = &[
    (
        "ds_toydemo001",
        "SELECT i AS order_id,
                TIMESTAMPTZ '2026-01-01 08:00:00+00' + INTERVAL (i * 37) MINUTE AS ordered_at,
                ['Wooden train', 'Kite', 'Puzzle 500', 'Plüschbär', 'Yo-yo 🪀'][1 + i % 5] AS product,
                ['ES', 'DE', 'FR', 'MX'][1 + (i * 7) % 4] AS country,
                1 + (i * 13) % 6 AS quantity,
                CAST(5 + (i * 17) % 60 + 0.95 AS DECIMAL(10, 2)) AS unit_price
         FROM range(1, 5001) t(i)",
    ),
    (
        "customers",
        "SELECT i AS customer_id, 'Customer ' || i AS name, ['ES', 'DE', 'FR', 'MX'][1 + (i * 7) % 4] AS country,
                DATE '2024-01-01' + CAST(i % 700 AS INTEGER) AS since, i % 9 = 0 AS wholesale
         FROM range(1, 501) t(i)",
    ),
];

const GLOBEX: &[Seed] = &[
    (
        "ds_toydemo001",
        "SELECT i AS reading_id,
                TIMESTAMPTZ '2026-03-01 00:00:00+00' + INTERVAL (i) MINUTE AS read_at,
                'sensor-' || lpad(CAST(i % 12 AS VARCHAR), 2, '0') AS sensor,
                18 + 7 * sin(i / 229.0) + (i * 31) % 10 / 10.0 AS celsius,
                (i * 31) % 97 = 0 AS alarm
         FROM range(1, 8001) t(i)",
    ),
    (
        "sites",
        "SELECT i AS site_id, ['Springfield', 'Shelbyville', 'Capital City', 'Ogdenville'][i] AS name,
                [40.1, 39.4, 39.8, 41.0][i] AS latitude
         FROM range(1, 5) t(i)",
    ),
];

/// The tables of one of the two organisations. The same name holds other things in each.
pub(super) fn of(workspace: &str) -> &'static [Seed] {
    if workspace == "acme" { ACME } else { GLOBEX }
}

/// Makes what is not there yet.
pub(super) async fn sow(url: &str, workspace: &str, token: &str, seeds: &[Seed]) -> Result<(), Failed> {
    let client = reqwest::Client::builder().no_proxy().timeout(STATEMENT_MAX).build()?;
    let run = async |sql: String| -> Result<(), Failed> {
        let body = json!({"sql": sql, "format": "json", "allow_writes": true});
        let answer = client.post(format!("{url}/query")).bearer_auth(token).json(&body).send().await?;
        if answer.status().is_success() {
            return Ok(());
        }
        Err(format!("seeding {workspace}: {}", answer.text().await?).into())
    };
    let tables = client.get(format!("{url}/tables")).bearer_auth(token).send().await?.text().await?;
    run("CREATE SCHEMA IF NOT EXISTS lake.datasets".to_owned()).await?;
    for (table, rows) in seeds {
        if !tables.contains(&format!("\"{table}\"")) {
            run(format!("CREATE TABLE lake.datasets.{table} AS {rows}")).await?;
        }
    }
    Ok(())
}
