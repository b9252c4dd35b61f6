//! What analysts send runs, and answers as bare DuckDB does on the same data: the policy is in nobody's way.

use serde_json::json;

use crate::world::{World, python};

#[tokio::test(flavor = "multi_thread")]
async fn what_analysts_send_runs_and_answers_as_the_engine_alone_does() {
    let world = World::start(&[]).await;
    let ask = json!({
        "url": world.url,
        "token": world.acme.token,
        "sql": include_str!("analytics.sql"),
        "files": [
            format!("s3://lakehouse/{}/files", world.acme.warehouse),
            world.dir.join(format!("store/lakehouse/{}/files", world.acme.warehouse)),
        ],
    });
    let found = tokio::task::spawn_blocking(move || python("analytics.py", &ask)).await.unwrap();
    let faults: Vec<_> = found["faults"].as_array().unwrap().iter().filter_map(|f| f.as_str()).collect();
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), found["run"], faults.join("\n\n"));
    assert!(found["run"].as_u64().unwrap() >= 150 && found["compared"].as_u64().unwrap() >= 120, "{found}");
}
