//! A table's life: made, staged, loaded, renamed, dropped, purged, and still there after a restart.

use object_store::ObjectStoreExt as _;
use object_store::path::Path;
use reqwest::Method;
use serde_json::{Value, json};

use crate::world::{World, append, finish, new_table, refused, send, staged_table};

#[tokio::test]
async fn a_table_lives_in_memory() {
    lives(World::start().await).await;
}

#[tokio::test]
async fn a_table_lives_in_a_folder() {
    lives(World::in_folders().await).await;
}

async fn lives(world: World) {
    let made = world.post("/namespaces/n/tables", new_table("t")).await;
    assert_eq!(made.status, 200, "{made:?}");
    assert_eq!(made.body["config"], json!({}));
    assert_eq!(made.body["metadata"]["format-version"], 2);
    refused(&world.post("/namespaces/n/tables", new_table("t")).await, 409, "AlreadyExistsException");

    let loaded = world.get("/namespaces/n/tables/t").await;
    assert_eq!(loaded.text, made.text);
    assert_eq!(world.head("/namespaces/n/tables/t").await, 204);
    assert_eq!(world.head("/namespaces/n/tables/u").await, 404);

    let committed = world.append("t", 1, None).await;
    assert_eq!(committed.status, 200, "{committed:?}");
    assert_ne!(committed.body["metadata-location"], made.body["metadata-location"]);
    assert_eq!(world.snapshot("t").await, Some(1));

    // What a reader of the store finds is what the catalog says.
    let file = committed.body["metadata-location"].as_str().unwrap().strip_prefix("s3://lake/").unwrap();
    let stored = world.store("lake").get(&Path::from(file)).await.unwrap().bytes().await.unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&stored).unwrap(), committed.body["metadata"]);
    let log = committed.body["metadata"]["metadata-log"].as_array().unwrap();
    assert_eq!(log[0]["metadata-file"], made.body["metadata-location"]);

    assert_eq!(world.delete("/namespaces/n/tables/t").await.status, 204);
    refused(&world.get("/namespaces/n/tables/t").await, 404, "NoSuchTableException");
    refused(&world.delete("/namespaces/n/tables/t").await, 404, "NoSuchTableException");
}

#[tokio::test]
async fn a_staged_table_is_there_once_it_is_finished() {
    let world = World::start().await;
    let staged = world.post("/namespaces/n/tables", staged_table("t")).await;
    assert_eq!(staged.status, 200, "{staged:?}");
    assert_eq!(staged.body["metadata-location"], Value::Null);
    assert_eq!(world.keys("lake", "").await, Vec::<String>::new());
    refused(&world.get("/namespaces/n/tables/t").await, 404, "NoSuchTableException");
    assert_eq!(world.get("/namespaces/n/tables").await.body["identifiers"], json!([]));

    let uuid = &staged.body["metadata"]["table-uuid"];
    let mut commit = finish(uuid);
    let first = append(1, None);
    commit["updates"].as_array_mut().unwrap().extend(first["updates"].as_array().unwrap().iter().cloned());
    let finished = world.post("/namespaces/n/tables/t", commit.clone()).await;
    assert_eq!(finished.status, 200, "{finished:?}");
    assert_eq!(&finished.body["metadata"]["table-uuid"], uuid);
    assert_eq!(finished.body["metadata"]["location"], staged.body["metadata"]["location"]);
    assert_eq!(world.snapshot("t").await, Some(1));
    refused(&world.post("/namespaces/n/tables/t", commit).await, 409, "CommitFailedException");
}

#[tokio::test]
async fn each_staged_table_is_finished_by_its_own_uuid() {
    let world = World::start().await;
    let first = world.post("/namespaces/n/tables", staged_table("t")).await.body["metadata"].clone();
    let second = world.post("/namespaces/n/tables", staged_table("t")).await.body["metadata"].clone();
    assert_ne!(first["location"], second["location"]);
    let finished = world.post("/namespaces/n/tables/t", finish(&first["table-uuid"])).await;
    assert_eq!(finished.body["metadata"]["location"], first["location"]);
    let late = world.post("/namespaces/n/tables/t", finish(&second["table-uuid"])).await;
    refused(&late, 409, "CommitFailedException");
    let unknown = world.post("/namespaces/n/tables/u", finish(&json!(uuid::Uuid::new_v4()))).await;
    refused(&unknown, 404, "NoSuchTableException");
}

#[tokio::test]
async fn a_renamed_table_keeps_its_data() {
    let world = World::start().await;
    world.post("/namespaces", json!({"namespace": ["m"]})).await;
    let location = world.table("t").await["location"].clone();
    world.table("taken").await;
    let rename = async |to: Value| {
        let body = json!({"source": {"namespace": ["n"], "name": "t"}, "destination": to});
        world.post("/tables/rename", body).await
    };
    refused(&rename(json!({"namespace": ["n"], "name": "taken"})).await, 409, "AlreadyExistsException");
    refused(&rename(json!({"namespace": ["x"], "name": "t"})).await, 404, "NoSuchNamespaceException");
    assert_eq!(rename(json!({"namespace": ["m"], "name": "u"})).await.status, 204);
    refused(&rename(json!({"namespace": ["m"], "name": "v"})).await, 404, "NoSuchTableException");
    assert_eq!(world.head("/namespaces/n/tables/t").await, 404);
    assert_eq!(world.get("/namespaces/m/tables/u").await.body["metadata"]["location"], location);
}

#[tokio::test]
async fn a_drop_keeps_the_files_and_a_purge_removes_only_its_own() {
    let world = World::start().await;
    let kept = world.table("kept").await["location"].as_str().unwrap().to_owned();
    let gone = world.table("gone").await["location"].as_str().unwrap().to_owned();
    let key = |location: &str| location.strip_prefix("s3://lake/").unwrap().to_owned();
    let (kept, gone) = (key(&kept), key(&gone));
    let data = Path::from(format!("{gone}/data/1.parquet"));
    let neighbour = Path::from(format!("{gone}x/data/1.parquet"));
    for path in [&data, &neighbour] {
        world.store("lake").put(path, "rows".into()).await.unwrap();
    }
    assert_eq!(world.delete("/namespaces/n/tables/kept?purgeRequested=false").await.status, 204);
    assert_eq!(world.delete("/namespaces/n/tables/gone?purgeRequested=True").await.status, 204);
    assert_eq!(world.keys("lake", &kept).await.len(), 1);
    assert_eq!(world.keys("lake", &gone).await, Vec::<String>::new());
    assert!(world.store("lake").head(&neighbour).await.is_ok());
}

#[tokio::test]
async fn an_unchanged_table_is_not_sent_again() {
    let world = World::start().await;
    world.table("t").await;
    let path = "/namespaces/n/tables/t";
    let etag = world.get(path).await.etag.unwrap();
    let known = |etag: &str| send(world.inside(Method::GET, path).header("if-none-match", etag));
    for said in [etag.clone(), format!("W/{etag}"), format!("\"other\", {etag}"), "*".to_owned()] {
        let unchanged = known(&said).await;
        assert_eq!((unchanged.status.as_u16(), unchanged.text.as_str()), (304, ""), "{said}");
        assert_eq!(unchanged.etag.as_ref(), Some(&etag));
    }
    let committed = world.append("t", 1, None).await;
    let changed = known(&etag).await;
    assert_eq!(changed.status, 200);
    assert_eq!(changed.etag, committed.etag);
}

#[tokio::test]
async fn everything_is_still_there_after_a_restart() {
    let world = World::in_folders().await;
    world.table("t").await;
    world.append("t", 1, None).await;
    let staged = world.post("/namespaces/n/tables", staged_table("u")).await.body["metadata"].clone();
    let keyed = world.post_with_key("k", "/namespaces", json!({"namespace": ["m"]})).await;
    let before = (world.warehouse.clone(), world.get("/namespaces/n/tables/t").await.text);

    let world = world.reopened().await;
    assert_eq!(world.warehouse, before.0);
    assert_eq!(world.get("/namespaces/n/tables/t").await.text, before.1);
    assert_eq!(world.append("t", 2, Some(1)).await.status, 200);
    assert_eq!(world.post("/namespaces/n/tables/u", finish(&staged["table-uuid"])).await.status, 200);
    let replayed = world.post_with_key("k", "/namespaces", json!({"namespace": ["m"]})).await;
    assert_eq!((replayed.status.as_u16(), replayed.text), (200, keyed.text));
}

#[tokio::test]
async fn a_table_of_an_unknown_type_is_refused() {
    let world = World::start().await;
    let mut body = new_table("t");
    body["schema"]["fields"][0]["type"] = "variant".into();
    refused(&world.post("/namespaces/n/tables", body).await, 400, "BadRequestException");
    let mut body = new_table("t");
    body["properties"] = json!({"format-version": "9"});
    refused(&world.post("/namespaces/n/tables", body).await, 400, "BadRequestException");
    let mut body = new_table("t");
    body["properties"] = json!({"format-version": "3"});
    assert_eq!(world.post("/namespaces/n/tables", body).await.body["metadata"]["format-version"], 3);
}
