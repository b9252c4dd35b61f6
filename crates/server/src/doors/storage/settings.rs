//! What can be configured about the storage door, and what is wrong with it, all at once.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::secret::Secret;

/// The store behind the door. `check()` names every fault; [`super::Store::new`] refuses settings that have any.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Which kind of store. The fields below say which kinds they belong to.
    pub kind: Kind,
    /// `local`: the folder that holds one folder per bucket.
    pub path: Option<PathBuf>,
    /// `s3`: the URL of the endpoint. Without it, AWS.
    pub endpoint: Option<String>,
    /// `s3`: the region, `us-east-1` if not given (R2 takes `auto`).
    pub region: Option<String>,
    /// `s3`: key id of the key that may read and write.
    pub access_key_id: Option<String>,
    /// `s3`: its secret.
    pub secret_access_key: Option<Secret>,
    /// `s3`: key id of a key that may only read, used for everything a reader asks.
    pub ro_access_key_id: Option<String>,
    /// `s3`: its secret.
    pub ro_secret_access_key: Option<Secret>,
    /// `s3`: `endpoint/bucket/key` rather than `bucket.endpoint/key`. True if not given.
    pub path_style: Option<bool>,
    /// `s3`: plain HTTP to the endpoint is in order. If not given, it is where the endpoint says `http://`.
    pub allow_http: Option<bool>,
    /// `s3`: the bucket that a health probe asks. Without it, any bucket that is in use.
    pub probe_bucket: Option<String>,
    /// Where candidates for deletion are written down. Without it they stand in the log alone.
    pub ledger_path: Option<PathBuf>,
    /// Bounds and deadlines.
    #[serde(default)]
    pub limits: Limits,
}

/// The kinds of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A folder on this machine.
    Local,
    /// The memory of this process; gone with it.
    Memory,
    /// Amazon S3, Cloudflare R2, or whatever speaks like them.
    S3,
}

/// Bounds and deadlines of the storage door.
///
/// The defaults of the deadlines follow what `DuckDB` 1.5.5 does with a store that hangs: it tries twice, so a read has
/// to fail in less than half of the 10 s that a person waits.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// From asking the store to the first byte of its answer, for reads and for short changes.
    pub first_byte_ms_max: u64,
    /// Between two pieces of an answer, while the worker is ready to take one.
    pub idle_ms_max: u64,
    /// To connect to the store.
    pub connect_ms_max: u64,
    /// All attempts together to read one `.avro` file. A failed manifest read aborts the engine.
    pub avro_ms_max: u64,
    /// Attempts to read one `.avro` file.
    pub avro_attempts_max: u32,
    /// An `.avro` answer up to this size is read whole before its first byte goes to the worker.
    pub avro_bytes_max: u64,
    /// How slowly a body may move, in either half of its way, before it is given up.
    pub upload_bytes_per_s_min: u64,
    /// To assemble a multi-part upload.
    pub complete_ms_max: u64,
    /// A probe of the store's health.
    pub probe_ms_max: u64,
    /// After a deadline passed, requests fail at once for this long, then a single one tries.
    pub breaker_open_ms: u64,
    /// Largest body of a PUT, and so the largest part. `DuckDB` sends parts of 8 MB or 80 MB.
    pub part_bytes_max: u64,
    /// Bodies held at once by all workers; one worker may hold half of it.
    pub upload_inflight_bytes_max: u64,
    /// How long an upload waits for room among them.
    pub upload_wait_ms_max: u64,
    /// Open multi-part uploads of all workers.
    pub uploads_max: usize,
    /// Open multi-part uploads of one worker.
    pub uploads_per_worker_max: usize,
    /// Age at which an open multi-part upload is given up.
    pub upload_age_s_max: u64,
    /// Buckets in use.
    pub buckets_max: usize,
    /// Connections of all workers.
    pub connections_max: usize,
    /// To send the head of a request; an idle connection is closed after it, too.
    pub header_read_ms_max: u64,
    /// Headers of a request.
    pub headers_max: usize,
    /// How long running requests may go on after a stop.
    pub drain_ms_max: u64,
    /// Size at which the ledger is set aside as `<name>.1`, which replaces the one before.
    pub ledger_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            first_byte_ms_max: 4_500,
            idle_ms_max: 5_000,
            connect_ms_max: 2_000,
            avro_ms_max: 9_000,
            avro_attempts_max: 4,
            avro_bytes_max: 8 << 20,
            upload_bytes_per_s_min: 512 << 10,
            complete_ms_max: 180_000,
            probe_ms_max: 2_000,
            breaker_open_ms: 10_000,
            part_bytes_max: 128 << 20,
            upload_inflight_bytes_max: 512 << 20,
            upload_wait_ms_max: 10_000,
            uploads_max: 4_096,
            uploads_per_worker_max: 256,
            upload_age_s_max: 6 * 3_600,
            buckets_max: 4_096,
            connections_max: 8_192,
            header_read_ms_max: 120_000,
            headers_max: 64,
            drain_ms_max: 10_000,
            ledger_bytes_max: 64 << 20,
        }
    }
}

impl Limits {
    /// How long a body of this size may take: a first byte, and the rest at the slowest rate.
    pub(super) fn body_deadline(&self, bytes: u64) -> Duration {
        let moving = bytes.saturating_mul(1_000) / self.upload_bytes_per_s_min.max(1);
        Duration::from_millis(self.first_byte_ms_max.saturating_add(moving))
    }
}

impl Settings {
    /// A store of this kind with nothing else said.
    pub fn of(kind: Kind) -> Self {
        Self {
            kind,
            path: None,
            endpoint: None,
            region: None,
            access_key_id: None,
            secret_access_key: None,
            ro_access_key_id: None,
            ro_secret_access_key: None,
            path_style: None,
            allow_http: None,
            probe_bucket: None,
            ledger_path: None,
            limits: Limits::default(),
        }
    }

    /// Everything that is wrong, a sentence each; none names a secret.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut say = |wrong: bool, what: &str| {
            if wrong {
                faults.push(what.to_owned());
            }
        };
        say(self.kind == Kind::Local && self.path.is_none(), "storage: kind `local` needs `path`");
        say(self.kind != Kind::Local && self.path.is_some(), "storage: `path` belongs to kind `local`");
        if self.kind == Kind::S3 {
            let whole = self.access_key_id.is_some() && self.secret_access_key.is_some();
            say(!whole, "storage: kind `s3` needs `access_key_id` and `secret_access_key`");
            let refused = self.is_plain() && self.allow_http == Some(false);
            say(refused, "storage: an `http://` endpoint, and `allow_http = false`");
        } else {
            let given = self.endpoint.is_some() || self.access_key_id.is_some();
            say(given, "storage: `endpoint` and keys belong to kind `s3`");
        }
        let halves = self.ro_access_key_id.is_some() != self.ro_secret_access_key.is_some();
        say(halves, "storage: `ro_access_key_id` and `ro_secret_access_key` come together");
        let limits = &self.limits;
        let zero = limits.first_byte_ms_max == 0 || limits.idle_ms_max == 0 || limits.connections_max == 0;
        say(zero, "storage.limits: deadlines and `connections_max` are at least 1");
        let half = limits.upload_inflight_bytes_max / 2;
        say(
            limits.part_bytes_max > half,
            "storage.limits: `part_bytes_max` is at most half of `upload_inflight_bytes_max`",
        );
        let many = limits.upload_inflight_bytes_max >> 10 > u64::from(u32::MAX);
        say(many, "storage.limits: `upload_inflight_bytes_max` is at most 4 TiB");
        faults
    }

    /// Whether the endpoint is spoken to without TLS. Keys stay secret all the same (requests are signed), data do not.
    pub(super) fn is_plain(&self) -> bool {
        self.endpoint.as_ref().is_some_and(|url| url.starts_with("http://"))
    }

    /// The text without our keys and what was signed with them, for the log: a store repeats them in its errors.
    pub(super) fn redact(&self, text: &str) -> String {
        let secrets = [&self.secret_access_key, &self.ro_secret_access_key];
        let ids = [&self.access_key_id, &self.ro_access_key_id];
        let known = secrets
            .into_iter()
            .flatten()
            .map(Secret::reveal)
            .chain(ids.into_iter().flatten().map(String::as_str));
        let text =
            known.filter(|key| !key.is_empty()).fold(text.to_owned(), |text, key| text.replace(key, DOTS));
        without_signatures(&text)
    }
}

/// A signature opens what it signs for a quarter of an hour.
fn without_signatures(text: &str) -> String {
    const SIGNATURE: &str = "Signature=";
    let mut parts = text.split(SIGNATURE);
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_hexdigit());
        clean.push_str(SIGNATURE);
        clean.push_str(if rest.len() < part.len() { DOTS } else { "" });
        clean.push_str(rest);
    }
    clean
}

const DOTS: &str = "••••";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_never_printed() {
        let mut settings = Settings::of(Kind::S3);
        settings.secret_access_key = Some("hush".to_owned().into());
        let shown = format!("{settings:?} {}", serde_json::to_string(&settings).unwrap());
        assert!(!shown.contains("hush"), "{shown}");
        assert_eq!(settings.redact("key hush!"), format!("key {DOTS}!"));
    }

    #[test]
    fn what_a_store_repeats_of_our_request_is_not_kept() {
        let text =
            "403: Credential=KEY/20261130/r/s3/aws4_request, Signature=0a1b2c, x Signature= y Signature=ff";
        let mut settings = Settings::of(Kind::S3);
        settings.access_key_id = Some("KEY".to_owned());
        let kept = settings.redact(text);
        assert_eq!(
            kept,
            format!(
                "403: Credential={DOTS}/20261130/r/s3/aws4_request, Signature={DOTS}, x Signature= y Signature={DOTS}"
            )
        );
    }

    #[test]
    fn every_fault_is_named_at_once() {
        let mut settings = Settings::of(Kind::S3);
        settings.endpoint = Some("http://127.0.0.1:9".into());
        settings.allow_http = Some(false);
        settings.ro_access_key_id = Some("id".into());
        assert_eq!(settings.faults().len(), 3, "{:?}", settings.faults());
    }

    #[test]
    fn an_unknown_setting_is_refused() {
        assert!(toml::from_str::<Settings>("kind = 'memory'\nbukket = 'x'").is_err());
        assert!(toml::from_str::<Settings>("kind = 'memory'\n[limits]\nfirst_byte_ms_max = 1").is_ok());
    }
}
