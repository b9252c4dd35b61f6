//! Namespaces and the names in them.

use reqwest::Method;
use serde_json::json;

use crate::world::{World, encoded, new_table, refused, send};

#[tokio::test]
async fn namespaces_nest() {
    let world = World::start().await;
    refused(
        &world.post("/namespaces", json!({"namespace": ["a", "b"]})).await,
        404,
        "NoSuchNamespaceException",
    );
    assert_eq!(world.post("/namespaces", json!({"namespace": ["a"]})).await.status, 200);
    let made = world.post("/namespaces", json!({"namespace": ["a", "b"], "properties": {"k": "v"}})).await;
    assert_eq!(made.status, 200);
    refused(&world.post("/namespaces", json!({"namespace": ["a"]})).await, 409, "AlreadyExistsException");
    assert_eq!(world.get("/namespaces").await.body["namespaces"], json!([["a"], ["n"]]));
    assert_eq!(world.get("/namespaces?parent=a").await.body["namespaces"], json!([["a", "b"]]));
    assert_eq!(world.get("/namespaces?parent=a%1Fb").await.body["namespaces"], json!([]));
    refused(&world.get("/namespaces?parent=x").await, 404, "NoSuchNamespaceException");
    assert_eq!(world.get("/namespaces/a%1Fb").await.body, made.body);
    assert_eq!(world.head("/namespaces/a%1Fb").await, 204);
    assert_eq!(world.head("/namespaces/a%1Fc").await, 404);
}

#[tokio::test]
async fn a_namespace_is_dropped_only_when_empty() {
    let world = World::start().await;
    world.post("/namespaces", json!({"namespace": ["n", "inner"]})).await;
    refused(&world.delete("/namespaces/n").await, 409, "NamespaceNotEmptyException");
    assert_eq!(world.delete("/namespaces/n%1Finner").await.status, 204);
    world.table("t").await;
    refused(&world.delete("/namespaces/n").await, 409, "NamespaceNotEmptyException");
    world.delete("/namespaces/n/tables/t").await;
    assert_eq!(world.delete("/namespaces/n").await.status, 204);
    refused(&world.delete("/namespaces/n").await, 404, "NoSuchNamespaceException");
    refused(&world.post("/namespaces/n/tables", new_table("t")).await, 404, "NoSuchNamespaceException");
}

#[tokio::test]
async fn properties_are_set_removed_and_missed() {
    let world = World::start().await;
    let update = json!({"updates": {"a": "1", "b": "2"}, "removals": ["z"]});
    let updated = world.post("/namespaces/n/properties", update).await;
    assert_eq!(updated.body, json!({"updated": ["a", "b"], "removed": [], "missing": ["z"]}));
    let updated = world.post("/namespaces/n/properties", json!({"removals": ["a"]})).await;
    assert_eq!(updated.body["removed"], json!(["a"]));
    let properties = world.get("/namespaces/n").await.body["properties"].clone();
    assert_eq!(properties, json!({"b": "2", "location": "s3://lake/prod/w_a"}));
    let both = json!({"updates": {"a": "1"}, "removals": ["a"]});
    refused(&world.post("/namespaces/n/properties", both).await, 422, "UnprocessableEntityException");
}

#[tokio::test]
async fn a_namespaces_location_is_the_warehouses_root_and_never_outside() {
    let world = World::start().await;
    let made = world.post("/namespaces", json!({"namespace": ["m"]})).await;
    assert_eq!(made.body["properties"]["location"], "s3://lake/prod/w_a");
    for outside in
        ["s3://lake/prod/w_b", "s3://lake/prod/w_aa", "s3://pond/prod/w_a", "s3://lake/prod/w_a/../w_b"]
    {
        let body = json!({"namespace": ["x"], "properties": {"location": outside}});
        refused(&world.post("/namespaces", body).await, 400, "InvalidLocation");
        let body = json!({"updates": {"location": outside}});
        refused(&world.post("/namespaces/n/properties", body).await, 400, "InvalidLocation");
    }
    let body = json!({"namespace": ["x"], "properties": {"location": "s3://lake/prod/w_a/x"}});
    assert_eq!(world.post("/namespaces", body).await.body["properties"]["location"], "s3://lake/prod/w_a/x");
}

#[tokio::test]
async fn listings_come_in_pages() {
    let world = World::start().await;
    for number in 0..5 {
        world.table(&format!("t{number}")).await;
        world.post("/namespaces", json!({"namespace": [format!("s{number}")]})).await;
    }
    for (path, list, total) in [("/namespaces/n/tables", "identifiers", 5), ("/namespaces", "namespaces", 6)]
    {
        let (mut seen, mut token, mut pages) = (Vec::new(), String::new(), 0);
        loop {
            let page = world.get(&format!("{path}?pageSize=2&pageToken={token}")).await;
            assert_eq!(page.status, 200, "{page:?}");
            let items = page.body[list].as_array().unwrap();
            assert!(items.len() <= 2);
            seen.extend(items.iter().map(ToString::to_string));
            pages += 1;
            match page.body["next-page-token"].as_str() {
                Some(next) => token = next.to_owned(),
                None => break,
            }
        }
        assert_eq!((seen.len(), pages), (total, 3), "{path}");
        assert!(seen.is_sorted());
        assert_eq!(world.get(path).await.body[list].as_array().unwrap().len(), total);
        refused(&world.get(&format!("{path}?pageToken=!")).await, 400, "BadRequestException");
    }
}

#[tokio::test]
async fn odd_names_are_only_names() {
    let world = World::in_folders().await;
    let odd = [
        "with space",
        "ünïcödé 🦆",
        "a/b",
        "../../esc",
        "..",
        "quo'te\"s",
        "%20",
        "?#&=",
        "a.b",
        "C:\\x",
        "-",
        "ns:t",
        "s3://pond/x",
    ];
    for name in odd {
        let namespace = encoded(name);
        let made = world.post("/namespaces", json!({"namespace": [name]})).await;
        assert_eq!(made.status, 200, "{name}: {made:?}");
        // A segment of dots alone is resolved away by every HTTP client before it is sent.
        if name == ".." {
            continue;
        }
        let tables = format!("/namespaces/{namespace}/tables");
        let made = world.post(&tables, new_table(name)).await;
        assert_eq!(made.status, 200, "{name}: {made:?}");
        let table = format!("{tables}/{namespace}");
        let location = made.body["metadata"]["location"].as_str().unwrap().to_owned();
        let opaque = location.strip_prefix("s3://lake/prod/w_a/").unwrap();
        assert!(uuid::Uuid::parse_str(opaque).is_ok(), "{location}");
        let listed = world.get(&tables).await;
        assert_eq!(listed.body["identifiers"], json!([{"namespace": [name], "name": name}]));
        assert_eq!(world.get(&table).await.body["metadata"], made.body["metadata"]);
        let renamed = json!({
            "source": {"namespace": [name], "name": name},
            "destination": {"namespace": ["n"], "name": name},
        });
        assert_eq!(world.post("/tables/rename", renamed).await.status, 204);
        let table = format!("/namespaces/n/tables/{namespace}");
        assert_eq!(world.delete(&format!("{table}?purgeRequested=true")).await.status, 204, "{name}");
    }
    assert_eq!(world.keys("lake", "").await, Vec::<String>::new());
    let mut beside: Vec<_> =
        std::fs::read_dir(world.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    beside.retain(|name| !name.to_string_lossy().starts_with("catalog.sqlite"));
    beside.sort();
    assert_eq!(beside, ["lake", "pond"]);
}

#[tokio::test]
async fn names_nobody_could_type_are_refused() {
    let world = World::start().await;
    let long = "x".repeat(256);
    for name in ["", "a\u{0}b", "a\nb", "a\u{1f}b", &long] {
        let made = world.post("/namespaces", json!({"namespace": [name]})).await;
        refused(&made, 400, "BadRequestException");
        refused(&world.post("/namespaces/n/tables", new_table(name)).await, 400, "BadRequestException");
    }
    refused(&world.post("/namespaces", json!({"namespace": []})).await, 400, "BadRequestException");
    let many = vec!["x"; 17];
    refused(&world.post("/namespaces", json!({"namespace": many})).await, 400, "BadRequestException");
    let mangled = world.inside(Method::GET, &format!("/namespaces/n/tables/{}", encoded("x' OR '1'='1")));
    refused(&send(mangled).await, 404, "NoSuchTableException");
}
