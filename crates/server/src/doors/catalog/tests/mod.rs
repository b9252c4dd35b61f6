//! The door over real sockets: a catalog that does as a test tells it, and a worker's requests.

mod access;
mod asking;
mod changes;
mod fake;
mod fuzz;
mod login;
mod reading;

use std::sync::Arc;
use std::time::Duration;

use duck_contract::Role;
use reqwest::Method;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::fake::{Act, Fake, Seen};
use super::*;
use crate::doors::errand::tests::Anything;
use crate::doors::{BoundPass, Errand};

/// A door with a reader and a writer of warehouse `w_a`: workers call it `lake`, the catalog `p-a`.
pub(super) struct World {
    pub(super) fake: Fake,
    pub(super) upstream: Arc<Upstream>,
    pub(super) passes: Passes,
    pub(super) reader: BoundPass,
    pub(super) writer: BoundPass,
    pub(super) stop: CancellationToken,
    pub(super) serving: JoinHandle<Result<(), ServeError>>,
    door: String,
    client: reqwest::Client,
}

impl World {
    /// Short limits; `adjust` gets the catalog's origin and may change that.
    pub(super) async fn start(
        adjust: impl FnOnce(&mut Settings, &str),
        script: impl Fn(&Seen, usize) -> Act + Send + Sync + 'static,
    ) -> Self {
        let fake = Fake::start(script).await;
        let mut settings = Settings::open(format!("{}/catalog", fake.origin));
        (settings.read_ms_max, settings.settle_ms_max, settings.attempt_ms_max) = (1_000, 2_000, 800);
        adjust(&mut settings, &fake.origin);
        let upstream = Arc::new(Upstream::new(settings).unwrap());
        let passes = Passes::default();
        let visitor = |role| {
            let place = Place { bucket: "lake".into(), prefix: "w_a/".into() };
            let pass = passes.issue().bind(Visitor::new("w_a", place, role));
            // A statement is under way for as long as the pass.
            std::mem::forget(pass.visitor.sent(Errand::writing(Box::new(Anything))));
            pass
        };
        let (reader, writer) = (visitor(Role::Reader), visitor(Role::Writer));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let door = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let serving = tokio::spawn(serve(listener, passes.clone(), upstream.clone(), stop.clone()));
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { fake, upstream, passes, reader, writer, stop, serving, door, client }
    }

    /// As [`World::start`], without adjustments.
    pub(super) async fn plain(script: impl Fn(&Seen, usize) -> Act + Send + Sync + 'static) -> Self {
        Self::start(|_, _| {}, script).await
    }

    pub(super) fn ask(&self, pass: &BoundPass, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.ask_as(&pass.keys().bearer, method, path)
    }

    pub(super) fn ask_as(&self, bearer: &str, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, format!("{}{path}", self.door)).bearer_auth(bearer)
    }

    pub(super) async fn get(&self, pass: &BoundPass, path: &str) -> (u16, String) {
        told(self.ask(pass, Method::GET, path)).await
    }

    pub(super) async fn post(&self, pass: &BoundPass, path: &str, body: impl Into<String>) -> (u16, String) {
        told(self.ask(pass, Method::POST, path).body(body.into())).await
    }
}

pub(super) async fn told(request: reqwest::RequestBuilder) -> (u16, String) {
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

/// Waits until the condition holds, at most five seconds.
pub(super) async fn until(condition: impl Fn() -> bool) {
    for _ in 0..500 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never came true");
}

/// As a worker asks for it.
pub(super) const TABLE: &str = "/v1/lake/namespaces/n/tables/t";
pub(super) const COMMIT: &str = "/v1/lake/transactions/commit";

/// A commit of snapshot 7 to table `n.t`.
pub(super) fn commit() -> String {
    let snapshot = r#"{"snapshot-id":7,"manifest-list":"s3://lake/w_a/t/metadata/snap-7.avro"}"#;
    format!(
        r#"{{"table-changes":[{{"identifier":{{"namespace":["n"],"name":"t"}},"updates":[{{"action":"add-snapshot","snapshot":{snapshot}}}]}}]}}"#
    )
}

/// A loaded table with these snapshots.
pub(super) fn table(snapshots: &[i64]) -> String {
    let snapshots: Vec<String> = snapshots.iter().map(|id| format!(r#"{{"snapshot-id":{id}}}"#)).collect();
    format!(r#"{{"metadata":{{"location":"s3://lake/w_a/t","snapshots":[{}]}}}}"#, snapshots.join(","))
}
