//! A door on a port of its own, and workers that hold passes for it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use duck_contract::Role;
use object_store::aws::AmazonS3Builder;
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::super::{Candidate, Door, Kind, Ledger, Settings, Store};
use crate::doors::errand::tests::Anything;
use crate::doors::{BoundPass, Errand, Passes, Place, Table, Visitor};

pub(super) struct Rig {
    pub(super) address: SocketAddr,
    pub(super) passes: Passes,
    pub(super) store: Store,
    pub(super) door: Door,
    pub(super) folder: TempDir,
    stop: CancellationToken,
    /// What an S3 backend has behind it.
    _behind: Option<(Box<Rig>, BoundPass)>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Rig {
    pub(super) async fn of(kind: Kind) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = Settings::of(kind);
        settings.path = (kind == Kind::Local).then(|| folder.path().join("buckets"));
        if kind != Kind::S3 {
            return Self::with(settings, folder, None).await;
        }
        // A door is an S3 endpoint, so one can stand behind another.
        let behind = Box::new(Box::pin(Self::of(Kind::Memory)).await);
        let pass = behind.worker("", Role::Writer);
        settings.endpoint = Some(format!("http://{}", behind.address));
        settings.access_key_id = Some(pass.keys().access_key_id.clone());
        settings.secret_access_key = Some(pass.keys().secret_access_key.clone().into());
        settings.allow_http = Some(true);
        Self::with(settings, folder, Some((behind, pass))).await
    }

    pub(super) async fn with(
        mut settings: Settings,
        folder: TempDir,
        behind: Option<(Box<Self>, BoundPass)>,
    ) -> Self {
        settings.ledger_path = Some(folder.path().join("ledger.jsonl"));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let ledger = Ledger::of(&settings);
        let (passes, store, stop) =
            (Passes::default(), Store::new(settings).unwrap(), CancellationToken::new());
        let door = Door::new(passes.clone(), store.clone(), ledger);
        tokio::spawn(door.clone().serve(listener, stop.clone()));
        Self { address, passes, store, door, folder, stop, _behind: behind }
    }

    /// A pass for `s3://lake/<prefix>`, and a statement under way that may write anywhere there.
    pub(super) fn worker(&self, prefix: &str, role: Role) -> BoundPass {
        let place = Place { bucket: "lake".into(), prefix: prefix.into() };
        let pass = self.passes.issue().bind(Visitor::new(format!("of {prefix}"), place.clone(), role));
        let errand = Errand::writing(Box::new(Anything));
        let table = Table { namespace: vec!["n".into()], name: "t".into() };
        errand.drafted(&table, place.url().trim_end_matches('/'));
        // For as long as the pass.
        std::mem::forget(pass.visitor.sent(errand));
        pass
    }

    /// A well-behaved S3 client with this pass, which never asks twice.
    pub(super) fn client(&self, pass: &BoundPass) -> Arc<dyn ObjectStore> {
        let client = AmazonS3Builder::new()
            .with_endpoint(format!("http://{}", self.address))
            .with_bucket_name("lake")
            .with_region("us-east-1")
            .with_access_key_id(&pass.keys().access_key_id)
            .with_secret_access_key(&pass.keys().secret_access_key)
            .with_client_options(ClientOptions::new().with_allow_http(true))
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() });
        Arc::new(client.build().unwrap())
    }

    pub(super) fn ledger(&self) -> Vec<Candidate> {
        let path: PathBuf = self.folder.path().join("ledger.jsonl");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// The same bytes every time, and no two pieces alike.
pub(super) fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_u32;
    let next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[0]
    };
    std::iter::repeat_with(next).take(len).collect()
}
