//! Where a table may lie.

use serde_json::{Value, json};

use crate::world::{World, finish, new_table, refused, set_property, staged_table};

fn at(location: &str, mut body: Value) -> Value {
    body["location"] = location.into();
    body
}

#[tokio::test]
async fn a_location_outside_the_warehouse_is_refused() {
    let world = World::start().await;
    world.catalog.create_warehouse("w_b", "lake", "prod/w_b").await.unwrap();
    for outside in [
        "s3://lake/prod/w_b/t",
        "s3://lake/prod/w_aa/t",
        "s3://lake/prod/w_a",
        "s3://lake/prod",
        "s3://lake/elsewhere",
        "s3://pond/prod/w_a/t",
        "s3a://lake/prod/w_a/t",
        "file:///prod/w_a/t",
        "prod/w_a/t",
        "",
        "s3://lake/prod/w_a/../w_b/t",
        "s3://lake/prod/w_a/./t",
        "s3://lake/prod/w_a//t",
        "s3://lake//prod/w_a/t",
        "s3://lake/prod/w_a/t?x",
    ] {
        let made = world.post("/namespaces/n/tables", at(outside, new_table("t"))).await;
        refused(&made, 400, "InvalidLocation");
        let staged = world.post("/namespaces/n/tables", at(outside, staged_table("t"))).await;
        refused(&staged, 400, "InvalidLocation");
    }
    assert_eq!(world.keys("lake", "").await, Vec::<String>::new());
}

#[tokio::test]
async fn a_location_inside_the_warehouse_is_kept() {
    let world = World::in_folders().await;
    let inside = "s3://lake/prod/w_a/my tables/%2e%2e/t";
    let made = world.post("/namespaces/n/tables", at(&format!("{inside}/"), new_table("t"))).await;
    assert_eq!(made.body["metadata"]["location"], inside);
    let keys = world.keys("lake", "").await;
    assert!(
        keys.len() == 1 && keys[0].starts_with("prod/w_a/my tables/%2e%2e/t/metadata/00000-"),
        "{keys:?}"
    );
    assert!(world.dir.path().join("lake/prod/w_a/my tables/%2e%2e/t/metadata").is_dir());
    assert_eq!(world.delete("/namespaces/n/tables/t?purgeRequested=true").await.status, 204);
    assert_eq!(world.keys("lake", "").await, Vec::<String>::new());
}

#[tokio::test]
async fn tables_do_not_lie_in_one_another() {
    let world = World::start().await;
    let mine = "s3://lake/prod/w_a/x/t";
    assert_eq!(world.post("/namespaces/n/tables", at(mine, new_table("t"))).await.status, 200);
    for overlapping in [mine, "s3://lake/prod/w_a/x/t/inside", "s3://lake/prod/w_a/x"] {
        let made = world.post("/namespaces/n/tables", at(overlapping, new_table("u"))).await;
        refused(&made, 409, "LocationAlreadyTaken");
        let staged = world.post("/namespaces/n/tables", at(overlapping, staged_table("u"))).await;
        refused(&staged, 409, "LocationAlreadyTaken");
    }
    let beside = at("s3://lake/prod/w_a/x/t2", new_table("u"));
    assert_eq!(world.post("/namespaces/n/tables", beside).await.status, 200);
}

#[tokio::test]
async fn of_two_staged_at_one_place_only_one_is_made() {
    let world = World::start().await;
    let place = "s3://lake/prod/w_a/x";
    let first = world.post("/namespaces/n/tables", at(place, staged_table("t"))).await;
    let second = world.post("/namespaces/n/tables", at(place, staged_table("u"))).await;
    assert_eq!((first.status.as_u16(), second.status.as_u16()), (200, 200));
    let finished = world.post("/namespaces/n/tables/t", finish(&first.body["metadata"]["table-uuid"])).await;
    assert_eq!(finished.status, 200);
    let late = world.post("/namespaces/n/tables/u", finish(&second.body["metadata"]["table-uuid"])).await;
    refused(&late, 409, "LocationAlreadyTaken");
    assert_eq!(world.keys("lake", "").await.len(), 1);
}

#[tokio::test]
async fn a_table_never_moves() {
    let world = World::start().await;
    let location = world.table("t").await["location"].as_str().unwrap().to_owned();
    let moved =
        |to: &str| json!({"requirements": [], "updates": [{"action": "set-location", "location": to}]});
    for to in ["s3://lake/prod/w_a/other", "s3://lake/prod/w_b/t", "s3://pond/t", "nonsense"] {
        refused(&world.post("/namespaces/n/tables/t", moved(to)).await, 400, "InvalidLocation");
    }
    assert_eq!(world.post("/namespaces/n/tables/t", moved(&location)).await.status, 200);
}

#[tokio::test]
async fn no_property_leads_writers_elsewhere() {
    let world = World::start().await;
    world.table("t").await;
    for name in ["write.data.path", "write.metadata.path", "write.object-storage.path", "some.location"] {
        let property = set_property(name, "s3://lake/prod/w_b/x");
        refused(&world.post("/namespaces/n/tables/t", property).await, 409, "UnsupportedPropertyException");
        let mut body = new_table("u");
        body["properties"] = json!({name: "s3://lake/prod/w_b/x"});
        refused(&world.post("/namespaces/n/tables", body).await, 409, "UnsupportedPropertyException");
    }
}

#[tokio::test]
async fn paths_inside_a_snapshot_are_not_looked_at() {
    let world = World::start().await;
    world.table("t").await;
    let mut commit = crate::world::append(7, None);
    commit["updates"][0]["snapshot"]["manifest-list"] = "s3://lake/prod/w_b/t/metadata/snap.avro".into();
    assert_eq!(world.post("/namespaces/n/tables/t", commit).await.status, 200);
    assert_eq!(world.snapshot("t").await, Some(7));
}
