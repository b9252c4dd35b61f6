//! What the front itself asks the catalog.

use duck_contract::query::TableName;

use super::fake::{nobody, say};
use super::*;

#[tokio::test]
async fn all_tables_are_listed_page_by_page_and_level_by_level() {
    let world = World::plain(|seen, _| {
        let (path, query) = seen.path.split_once('?').unwrap();
        let token = query.rsplit_once("pageToken=").unwrap().1;
        let parent = query.strip_prefix("parent=").map(|rest| rest.split('&').next().unwrap());
        say(
            200,
            match (path.rsplit_once("/namespaces").unwrap().1, parent, token) {
                ("", None, "") => r#"{"namespaces":[["b"]],"next-page-token":"2 "}"#,
                ("", None, "2%20") => r#"{"namespaces":[["a"]],"next-page-token":null}"#,
                ("", Some("a"), "") => r#"{"namespaces":[["a","x"],["b"],["a"]]}"#,
                ("/b/tables", _, "") => {
                    r#"{"identifiers":[{"namespace":["b"],"name":"t2"}],"next-page-token":"n"}"#
                }
                ("/b/tables", _, "n") => {
                    r#"{"identifiers":[{"namespace":["b"],"name":"t1"}],"next-page-token":"n"}"#
                }
                ("/a%1Fx/tables", _, _) => r#"{"identifiers":[{"namespace":["a","x"],"name":"deep"}]}"#,
                ("", _, _) => r#"{"namespaces":[]}"#,
                _ => r#"{"identifiers":[]}"#,
            },
        )
    })
    .await;
    let named = |schema: &str, name: &str| TableName { schema: schema.into(), name: name.into() };
    let tables = world.upstream.tables("w_a").await.unwrap();
    assert_eq!(tables, [named("a.x", "deep"), named("b", "t1"), named("b", "t2")]);
}

#[tokio::test]
async fn a_warehouse_s_place_comes_from_lakekeeper() {
    let world = World::plain(|seen, _| {
        if seen.is("GET", "/management/v1/warehouse/0198c2b4-0000-7000-8000-000000000001") {
            say(200, r#"{"id":"x","storage-profile":{"type":"s3","bucket":"lake","key-prefix":"prod/w_a","endpoint":"http://r2"}}"#)
        } else {
            say(404, "{}")
        }
    })
    .await;
    let place = world.upstream.place_of("w_uuid").await.unwrap();
    assert_eq!(place.url(), "s3://lake/prod/w_a/");
    assert!(matches!(world.upstream.place_of("nosuch").await, Err(CatalogError::UnknownWarehouse)));
    // A prefix that is no UUID is not Lakekeeper's.
    assert!(matches!(world.upstream.place_of("w_a").await, Err(CatalogError::Unusable { .. })));
}

#[tokio::test]
async fn a_prefix_is_asked_once() {
    let world = World::plain(|_, _| say(200, "{}")).await;
    for _ in 0..3 {
        assert_eq!(&*world.upstream.prefix_of("w_a").await.unwrap(), "p-a");
    }
    assert!(matches!(world.upstream.prefix_of("nosuch").await, Err(CatalogError::UnknownWarehouse)));
    assert_eq!(world.fake.seen("GET", "/v1/config").len(), 2);
}

#[tokio::test]
async fn a_probe_tells_whether_the_catalog_answers() {
    let world = World::plain(|_, _| say(200, "{}")).await;
    assert!(world.upstream.probe().await.is_ok());
    let (_kept, origin) = nobody();
    let upstream = Upstream::new(Settings::open(origin)).unwrap();
    assert!(matches!(upstream.probe().await, Err(CatalogError::Unavailable { .. })));
}
