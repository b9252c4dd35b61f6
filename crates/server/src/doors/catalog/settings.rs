//! What an operator writes about the catalog, and what is wrong with it.

use std::time::Duration;

use reqwest::Url;
use serde::{Deserialize, Serialize};

use crate::secret::Secret;

/// The catalog behind the door.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Base of the Iceberg REST API, such as `https://lakekeeper.example/catalog`; `/v1/…` is appended.
    pub uri: String,
    /// Token endpoint for `OAuth2` client credentials. Without it the catalog is spoken to without a login.
    #[serde(default)]
    pub oauth2_uri: Option<String>,
    /// Client id at the token endpoint.
    #[serde(default)]
    pub client_id: Option<String>,
    /// Client secret at the token endpoint.
    #[serde(default)]
    pub client_secret: Option<Secret>,
    /// Scope to ask for, where the identity provider wants one.
    #[serde(default)]
    pub scope: Option<String>,
    /// A read is given up after so many milliseconds.
    #[serde(default = "defaults::read_ms_max")]
    pub read_ms_max: u64,
    /// A change is repeated for so many milliseconds until its outcome is known.
    #[serde(default = "defaults::settle_ms_max")]
    pub settle_ms_max: u64,
    /// One attempt at a change takes at most so many milliseconds. The first gets a quarter, each further one twice as
    /// much as the one before.
    #[serde(default = "defaults::attempt_ms_max")]
    pub attempt_ms_max: u64,
}

mod defaults {
    pub(super) fn read_ms_max() -> u64 {
        5_000
    }
    pub(super) fn settle_ms_max() -> u64 {
        60_000
    }
    pub(super) fn attempt_ms_max() -> u64 {
        20_000
    }
}

/// Everything that is wrong with the settings, at once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the catalog's settings do not hold: {}", .0.join("; "))]
pub struct Faults(pub Vec<&'static str>);

impl Settings {
    /// Settings for a catalog that asks for no login, with every limit at its default.
    pub fn open(uri: impl Into<String>) -> Self {
        Self {
            uri: uri.into(),
            oauth2_uri: None,
            client_id: None,
            client_secret: None,
            scope: None,
            read_ms_max: defaults::read_ms_max(),
            settle_ms_max: defaults::settle_ms_max(),
            attempt_ms_max: defaults::attempt_ms_max(),
        }
    }

    /// The longest a change can take at this door: settling it, then reading back. An engine's HTTP timeout must be longer,
    /// or it gives up on a commit that is about to succeed and deletes its data files.
    pub fn change_time_max(&self) -> Duration {
        Duration::from_millis(self.settle_ms_max.saturating_add(self.read_ms_max))
    }

    /// Checks what can be checked without asking anyone.
    pub fn validate(&self) -> Result<(), Faults> {
        let mut faults = Vec::new();
        if !is_plain_http(&self.uri) {
            faults.push("`uri` must be an http(s) URL without user, query and fragment");
        }
        if self.oauth2_uri.as_deref().is_some_and(|uri| !is_plain_http(uri)) {
            faults.push("`oauth2_uri` must be an http(s) URL without user, query and fragment");
        }
        let login = [self.oauth2_uri.is_some(), self.client_id.is_some(), self.client_secret.is_some()];
        if login.contains(&true) && login.contains(&false) {
            faults.push("`oauth2_uri`, `client_id` and `client_secret` go together");
        }
        if [self.read_ms_max, self.settle_ms_max, self.attempt_ms_max].contains(&0) {
            faults.push("`read_ms_max`, `settle_ms_max` and `attempt_ms_max` must be at least 1");
        }
        if faults.is_empty() { Ok(()) } else { Err(Faults(faults)) }
    }

    /// The base without trailing slashes.
    pub(super) fn base(&self) -> &str {
        self.uri.trim_end_matches('/')
    }

    /// Base of Lakekeeper's management API, which lies beside `…/catalog`.
    pub(super) fn management(&self) -> Option<String> {
        self.base().strip_suffix("/catalog").map(|origin| format!("{origin}/management"))
    }
}

fn is_plain_http(uri: &str) -> bool {
    Url::parse(uri).is_ok_and(|url| {
        matches!(url.scheme(), "http" | "https")
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_printed() {
        let mut settings = Settings::open("http://localhost/catalog");
        settings.client_secret = Some(Secret::new("hunter2"));
        assert!(!format!("{settings:?}").contains("hunter2"));
    }

    #[test]
    fn all_faults_are_listed_at_once() {
        let mut settings = Settings::open("ftp://localhost/catalog");
        settings.client_id = Some("duck".into());
        settings.read_ms_max = 0;
        assert_eq!(settings.validate().unwrap_err().0.len(), 3);
        assert_eq!(Settings::open("https://lakekeeper.example/catalog").validate(), Ok(()));
    }

    #[test]
    fn an_unknown_setting_is_a_fault() {
        assert!(serde_json::from_str::<Settings>(r#"{"uri":"http://localhost","timeout":3}"#).is_err());
        let settings: Settings = serde_json::from_str(r#"{"uri":"http://localhost"}"#).unwrap();
        assert_eq!((settings.read_ms_max, settings.settle_ms_max), (5_000, 60_000));
    }
}
