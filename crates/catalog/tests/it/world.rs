//! A catalog behind a real socket, the stores it writes to, and a client with a token.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use duck_catalog::{Buckets, Catalog, Settings, Warehouse};
use futures::TryStreamExt as _;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

pub(crate) const CLIENT: &str = "duck";
pub(crate) const SECRET: &str = "quack:quack";

struct Stores(HashMap<&'static str, Arc<dyn ObjectStore>>);

impl Stores {
    fn in_memory() -> Stores {
        let store = || Arc::new(InMemory::new()) as Arc<dyn ObjectStore>;
        Stores(HashMap::from([("lake", store()), ("pond", store())]))
    }

    fn in_folders(root: &Path) -> Stores {
        let store = |name| {
            let folder = root.join(name);
            std::fs::create_dir_all(&folder).unwrap();
            Arc::new(LocalFileSystem::new_with_prefix(folder).unwrap()) as Arc<dyn ObjectStore>
        };
        Stores(HashMap::from([("lake", store("lake")), ("pond", store("pond"))]))
    }
}

impl Buckets for Stores {
    fn bucket(&self, name: &str) -> Result<Arc<dyn ObjectStore>, object_store::Error> {
        self.0.get(name).cloned().ok_or_else(|| object_store::Error::NotFound {
            path: name.to_owned(),
            source: "no such bucket".into(),
        })
    }
}

/// One warehouse `w_a` at `s3://lake/prod/w_a`, with a namespace `n`.
pub(crate) struct World {
    pub(crate) catalog: Catalog,
    pub(crate) warehouse: Warehouse,
    pub(crate) url: String,
    pub(crate) dir: TempDir,
    http: reqwest::Client,
    token: String,
    buckets: Arc<Stores>,
    server: JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// What came back.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) etag: Option<String>,
    pub(crate) text: String,
    pub(crate) body: Value,
}

impl World {
    pub(crate) async fn start() -> World {
        Self::open(tempfile::tempdir().unwrap(), Stores::in_memory(), 3600).await
    }

    pub(crate) async fn with_token_life(ttl_s: u64) -> World {
        Self::open(tempfile::tempdir().unwrap(), Stores::in_memory(), ttl_s).await
    }

    pub(crate) async fn in_folders() -> World {
        let dir = tempfile::tempdir().unwrap();
        let stores = Stores::in_folders(dir.path());
        Self::open(dir, stores, 3600).await
    }

    /// Stops the server and starts another on the same files.
    pub(crate) async fn reopened(mut self) -> World {
        self.server.abort();
        let _ = (&mut self.server).await;
        let dir = std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap());
        drop(self);
        let stores = Stores::in_folders(dir.path());
        Self::open(dir, stores, 3600).await
    }

    async fn open(dir: TempDir, stores: Stores, token_ttl_s: u64) -> World {
        let buckets = Arc::new(stores);
        let settings = Settings {
            database: dir.path().join("catalog.sqlite"),
            client_id: CLIENT.to_owned(),
            client_secret: SECRET.to_owned(),
            token_ttl_s,
        };
        let catalog = Catalog::open(settings, buckets.clone()).unwrap();
        let warehouse = catalog.create_warehouse("w_a", "lake", "prod/w_a").await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = catalog.router();
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let mut world = World {
            catalog,
            warehouse,
            url,
            dir,
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            token: String::new(),
            buckets,
            server,
        };
        world.token = world.new_token().await;
        let made = world.post("/namespaces", json!({"namespace": ["n"]})).await;
        assert!(made.status == 200 || made.status == 409, "{made:?}");
        world
    }

    async fn new_token(&self) -> String {
        let form = [("grant_type", "client_credentials"), ("client_id", CLIENT), ("client_secret", SECRET)];
        let request = self.http.post(format!("{}/catalog/v1/oauth/tokens", self.url)).form(&form);
        let answer = send(request).await;
        answer.body["access_token"].as_str().unwrap().to_owned()
    }

    /// A request without a token, to a path from the server's root.
    pub(crate) fn stranger(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url))
    }

    /// A request with the token, to a path from the server's root.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.stranger(method, path).bearer_auth(&self.token)
    }

    /// A request to a path below the warehouse's prefix.
    pub(crate) fn inside(&self, method: Method, path: &str) -> RequestBuilder {
        self.request(method, &format!("/catalog/v1/{}{path}", self.warehouse.id))
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        send(self.inside(Method::GET, path)).await
    }

    pub(crate) async fn head(&self, path: &str) -> StatusCode {
        send(self.inside(Method::HEAD, path)).await.status
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        send(self.inside(Method::POST, path).json(&body)).await
    }

    pub(crate) async fn post_with_key(&self, key: &str, path: &str, body: Value) -> Answer {
        send(self.inside(Method::POST, path).header("idempotency-key", key).json(&body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        send(self.inside(Method::DELETE, path)).await
    }

    /// Makes a table in `n` and returns its metadata.
    pub(crate) async fn table(&self, name: &str) -> Value {
        let made = self.post("/namespaces/n/tables", new_table(name)).await;
        assert_eq!(made.status, 200, "{made:?}");
        made.body["metadata"].clone()
    }

    /// Commits a snapshot on top of `parent` to a table in `n`.
    pub(crate) async fn append(&self, table: &str, id: i64, parent: Option<i64>) -> Answer {
        self.post(&format!("/namespaces/n/tables/{}", encoded(table)), append(id, parent)).await
    }

    /// The current snapshot of a table in `n`; `None` when it has none.
    pub(crate) async fn snapshot(&self, table: &str) -> Option<i64> {
        let loaded = self.get(&format!("/namespaces/n/tables/{}", encoded(table))).await;
        assert_eq!(loaded.status, 200, "{loaded:?}");
        loaded.body["metadata"]["current-snapshot-id"].as_i64().filter(|id| *id != -1)
    }

    pub(crate) fn store(&self, bucket: &str) -> Arc<dyn ObjectStore> {
        self.buckets.bucket(bucket).unwrap()
    }

    /// Every key in a bucket below a prefix.
    pub(crate) async fn keys(&self, bucket: &str, prefix: &str) -> Vec<String> {
        let prefix = object_store::path::Path::from(prefix);
        let found: Vec<_> = self.store(bucket).list(Some(&prefix)).try_collect().await.unwrap();
        let mut keys: Vec<_> = found.into_iter().map(|object| object.location.to_string()).collect();
        keys.sort();
        keys
    }
}

pub(crate) async fn send(request: RequestBuilder) -> Answer {
    let response = request.send().await.unwrap();
    let status = response.status();
    let etag = response.headers().get("etag").map(|etag| etag.to_str().unwrap().to_owned());
    let text = response.text().await.unwrap();
    let body = serde_json::from_str(&text).unwrap_or_default();
    Answer { status, etag, text, body }
}

/// Asserts a refusal in the specification's shape.
#[track_caller]
pub(crate) fn refused(answer: &Answer, status: u16, kind: &str) {
    assert_eq!(answer.status.as_u16(), status, "{answer:?}");
    assert_eq!(answer.body["error"]["type"], kind, "{answer:?}");
    assert_eq!(answer.body["error"]["code"], status, "{answer:?}");
    assert!(!answer.body["error"]["message"].as_str().unwrap().is_empty());
}

/// A name as one segment of a path.
pub(crate) fn encoded(name: &str) -> String {
    name.bytes().fold(String::new(), |path, byte| format!("{path}%{byte:02X}"))
}

pub(crate) fn new_table(name: &str) -> Value {
    json!({
        "name": name,
        "schema": {"type": "struct", "schema-id": 0, "fields": [
            {"id": 1, "name": "id", "required": true, "type": "long"},
            {"id": 2, "name": "name", "required": false, "type": "string"},
        ]},
    })
}

pub(crate) fn staged_table(name: &str) -> Value {
    let mut body = new_table(name);
    body["stage-create"] = true.into();
    body
}

/// The commit that finishes a staged table.
pub(crate) fn finish(uuid: &Value) -> Value {
    json!({
        "requirements": [{"type": "assert-create"}],
        "updates": [{"action": "assign-uuid", "uuid": uuid}],
    })
}

/// A commit that puts snapshot `id` on top of `parent`.
pub(crate) fn append(id: i64, parent: Option<i64>) -> Value {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let mut snapshot = json!({
        "snapshot-id": id, "sequence-number": 1, "timestamp-ms": u64::try_from(now.as_millis()).unwrap(),
        "manifest-list": format!("s3://lake/prod/w_a/t/metadata/snap-{id}.avro"),
        "summary": {"operation": "append"}, "schema-id": 0,
    });
    if let Some(parent) = parent {
        snapshot["parent-snapshot-id"] = parent.into();
        // Higher than whatever came before; a real client counts.
        snapshot["sequence-number"] = u64::try_from(now.as_micros()).unwrap().into();
    }
    json!({
        "requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": parent}],
        "updates": [
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": id},
        ],
    })
}

/// A commit that always applies.
pub(crate) fn set_property(name: &str, value: &str) -> Value {
    json!({"requirements": [], "updates": [{"action": "set-properties", "updates": {name: value}}]})
}

/// One entry of a transaction over several tables of `n`.
pub(crate) fn change_of(table: &str, mut commit: Value) -> Value {
    commit["identifier"] = json!({"namespace": ["n"], "name": table});
    commit
}
