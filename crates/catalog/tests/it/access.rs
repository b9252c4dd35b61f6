//! Tokens, the configuration a client begins with, and the warehouses there are.

use reqwest::Method;
use serde_json::json;

use crate::world::{CLIENT, SECRET, World, new_table, refused, send};

const TOKENS: &str = "/catalog/v1/oauth/tokens";

#[tokio::test]
async fn only_the_client_gets_a_token() {
    let world = World::start().await;
    let grant = [("grant_type", "client_credentials")];
    let basic = world.stranger(Method::POST, TOKENS).basic_auth(CLIENT, Some(SECRET)).form(&grant);
    let given = send(basic).await;
    assert_eq!(given.status, 200);
    assert_eq!((&given.body["token_type"], &given.body["expires_in"]), (&json!("bearer"), &json!(3600)));

    let wrong = send(world.stranger(Method::POST, TOKENS).basic_auth(CLIENT, Some("no")).form(&grant)).await;
    assert_eq!((wrong.status.as_u16(), &wrong.body["error"]), (401, &json!("invalid_client")));
    let nobody = send(world.stranger(Method::POST, TOKENS).form(&grant)).await;
    assert_eq!((nobody.status.as_u16(), &nobody.body["error"]), (401, &json!("invalid_client")));
    let form = [("grant_type", "password"), ("client_id", CLIENT), ("client_secret", SECRET)];
    let other_grant = send(world.stranger(Method::POST, TOKENS).form(&form)).await;
    assert_eq!(other_grant.body["error"], "unsupported_grant_type");
}

#[tokio::test]
async fn without_a_token_nothing_is_told() {
    let world = World::start().await;
    let namespaces = format!("/catalog/v1/{}/namespaces", world.warehouse.id);
    for path in ["/catalog/v1/config?warehouse=w_a", &namespaces, "/management/v1/warehouse", "/nowhere"] {
        refused(&send(world.stranger(Method::GET, path)).await, 401, "NotAuthorizedException");
        let forged = world.stranger(Method::GET, path).bearer_auth("forged");
        refused(&send(forged).await, 401, "NotAuthorizedException");
    }
}

#[tokio::test]
async fn an_expired_token_is_refused() {
    let world = World::with_token_life(1).await;
    let until_expired = async {
        loop {
            let answer = world.get("/namespaces").await;
            match answer.status.as_u16() {
                200 => tokio::task::yield_now().await,
                _ => break answer,
            }
        }
    };
    let answer = tokio::time::timeout(std::time::Duration::from_secs(20), until_expired).await.unwrap();
    refused(&answer, 401, "NotAuthorizedException");
}

#[tokio::test]
async fn a_name_leads_to_the_prefix() {
    let world = World::start().await;
    let config = send(world.request(Method::GET, "/catalog/v1/config?warehouse=w_a")).await;
    assert_eq!(config.status, 200);
    assert_eq!(config.body["defaults"]["prefix"], world.warehouse.id.to_string());
    assert_eq!(config.body["defaults"]["rest-page-size"], "100");
    assert_eq!(config.body["overrides"]["uri"], format!("{}/catalog", world.url));
    let unknown = send(world.request(Method::GET, "/catalog/v1/config?warehouse=w_b")).await;
    refused(&unknown, 404, "NoSuchWarehouseException");
    refused(&send(world.request(Method::GET, "/catalog/v1/config")).await, 400, "BadRequestException");
    let stranger = format!("/catalog/v1/{}/namespaces", uuid::Uuid::new_v4());
    refused(&send(world.request(Method::GET, &stranger)).await, 404, "NoSuchWarehouseException");
    refused(
        &send(world.request(Method::GET, "/catalog/v1/w_a/namespaces")).await,
        404,
        "NoSuchWarehouseException",
    );
}

#[tokio::test]
async fn the_management_routes_say_where_a_warehouse_lies() {
    let world = World::start().await;
    let id = world.warehouse.id.to_string();
    let one = send(world.request(Method::GET, &format!("/management/v1/warehouse/{id}"))).await;
    assert_eq!(one.status, 200);
    assert_eq!(one.body["name"], "w_a");
    assert_eq!(one.body["status"], "active");
    assert_eq!(
        one.body["storage-profile"],
        json!({"type": "s3", "bucket": "lake", "key-prefix": "prod/w_a"})
    );
    let all = send(world.request(Method::GET, "/management/v1/warehouse")).await;
    assert_eq!(all.body["warehouses"], json!([one.body]));
    let none = send(world.request(Method::GET, "/management/v1/warehouse/none")).await;
    refused(&none, 404, "NoSuchWarehouseException");
}

#[tokio::test]
async fn a_warehouse_can_be_made_while_the_server_runs() {
    let world = World::start().await;
    let create = async |name: &str, bucket: &str, prefix: &str| {
        let body = json!({
            "warehouse-name": name, "project-id": "ignored", "storage-credential": {"type": "s3"},
            "storage-profile": {"type": "s3", "bucket": bucket, "key-prefix": prefix, "sts-enabled": false},
        });
        send(world.request(Method::POST, "/management/v1/warehouse").json(&body)).await
    };
    let made = create("w_b", "lake", "/prod/w_b/").await;
    assert_eq!(made.status, 201, "{made:?}");
    let config = send(world.request(Method::GET, "/catalog/v1/config?warehouse=w_b")).await;
    assert_eq!(config.body["defaults"]["prefix"], made.body["warehouse-id"]);
    let again = create("w_b", "lake", "prod/w_b").await;
    assert_eq!(again.body["warehouse-id"], made.body["warehouse-id"]);

    refused(&create("w_b", "lake", "prod/elsewhere").await, 409, "WarehouseConflictException");
    refused(&create("w_c", "lake", "prod/w_b/inside").await, 409, "WarehouseConflictException");
    refused(&create("w_c", "lake", "prod").await, 409, "WarehouseConflictException");
    refused(&create("w_c", "lake", "").await, 409, "WarehouseConflictException");
    refused(&create("w_c", "lake", "prod/../x").await, 400, "BadRequestException");
    refused(&create("w_c", "nowhere", "x").await, 400, "BadRequestException");
    refused(&create("", "lake", "x").await, 400, "BadRequestException");
    assert_eq!(create("w_bb", "lake", "prod/w_bb").await.status, 201);
    assert_eq!(create("w_pond", "pond", "").await.status, 201);
}

#[tokio::test]
async fn two_warehouses_do_not_see_each_other() {
    let world = World::start().await;
    world.table("t").await;
    let other = world.catalog.create_warehouse("w_b", "lake", "prod/w_b").await.unwrap();
    let path = |rest: &str| format!("/catalog/v1/{}{rest}", other.id);
    let table = send(world.request(Method::GET, &path("/namespaces/n/tables/t"))).await;
    refused(&table, 404, "NoSuchNamespaceException");
    let create = |path: String, body| send(world.request(Method::POST, &path).json(&body));
    assert_eq!(create(path("/namespaces"), json!({"namespace": ["n"]})).await.status, 200);
    let table = send(world.request(Method::GET, &path("/namespaces/n/tables/t"))).await;
    refused(&table, 404, "NoSuchTableException");
    let made = create(path("/namespaces/n/tables"), new_table("t")).await;
    let location = made.body["metadata"]["location"].as_str().unwrap();
    assert!(location.starts_with("s3://lake/prod/w_b/"), "{location}");
    let dropped =
        send(world.request(Method::DELETE, &path("/namespaces/n/tables/t?purgeRequested=true"))).await;
    assert_eq!(dropped.status, 204);
    assert_eq!(world.snapshot("t").await, None);
}

#[tokio::test]
async fn an_answer_is_in_shape_whatever_was_asked() {
    let world = World::start().await;
    refused(&world.get("/nowhere").await, 404, "NotFoundException");
    refused(&send(world.inside(Method::PUT, "/namespaces")).await, 405, "MethodNotAllowedException");
    refused(&send(world.inside(Method::POST, "/namespaces").body("{")).await, 400, "BadRequestException");
    let deep = "[".repeat(100_000);
    refused(&send(world.inside(Method::POST, "/namespaces").body(deep)).await, 400, "BadRequestException");
    refused(&world.get("/namespaces/%FF").await, 400, "BadRequestException");
    refused(&world.get("/namespaces?pageSize=many").await, 400, "BadRequestException");
    let large = vec![b' '; 9 << 20];
    refused(
        &send(world.inside(Method::POST, "/namespaces").body(large)).await,
        413,
        "PayloadTooLargeException",
    );
}
