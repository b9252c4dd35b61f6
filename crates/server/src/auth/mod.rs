//! Who is asking.
//!
//! Given an `Authorization` header, hands on a [`Caller`], which only this folder can make. A token is read (`token`), its issuer is
//! found by what it says, and what could be wrong with it is looked at before anybody is asked for a key (`claims`). The key is a
//! secret that is shared with the issuer, or one of those that it publishes (`jwks`), which are fetched (`published`) when `keys` says
//! so. Never says why a token does not hold beyond "it does not".

mod claims;
mod grant;
mod jwks;
mod keys;
mod published;
mod settings;
mod token;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use duck_contract::Code;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header};
use reqwest::Url;
use serde_json::{Map, Value, json};

use self::claims::Rules;
pub use self::grant::Grant;
pub use self::published::KeyGauges;
use self::published::Published;
pub use self::settings::{Accepted, ClaimNames, IssuerFacts, IssuerSettings, Settings};
use self::token::Token;
use crate::fault::Fault;

/// Whom a caller speaks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// One workspace, named by a verified token.
    Workspace(String),
    /// A trusted back end, or anybody where there is no authentication: the request names the workspace.
    Any,
}

/// Somebody who was verified.
#[derive(Debug, Clone)]
pub struct Caller {
    scope: Scope,
    subject: String,
    roles: Vec<String>,
    grant: Grant,
}

impl Caller {
    /// Somebody who may name any workspace.
    fn any(subject: &str) -> Self {
        Caller { scope: Scope::Any, subject: subject.to_owned(), roles: Vec::new(), grant: Grant::Everything }
    }

    /// Whom they speak for.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Who they are, for the log.
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// What their token lets them write.
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// The roles that their token names. None decides anything here but those of `write_roles`.
    pub fn roles(&self) -> &[String] {
        &self.roles
    }

    /// Whether their token grants writing anything.
    pub fn may_write(&self) -> bool {
        self.grant != Grant::Nothing
    }
}

/// Why a token opens nothing.
#[derive(Debug)]
enum Refusal {
    /// Its time has passed.
    Expired,
    /// It names no workspace.
    NoWorkspace,
    /// Anything else that is wrong with it; why, for the log.
    Invalid(&'static str),
    /// The same, in the library's words.
    Library(jsonwebtoken::errors::Error),
    /// Nobody can tell; why, for the log.
    Unavailable(&'static str),
}

impl From<jsonwebtoken::errors::Error> for Refusal {
    fn from(e: jsonwebtoken::errors::Error) -> Self {
        match e.kind() {
            ErrorKind::ExpiredSignature => Refusal::Expired,
            _ => Refusal::Library(e),
        }
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        const INVALID: &str = "The token does not hold.";
        match refusal {
            Refusal::Expired => unauthenticated("The token has expired."),
            Refusal::NoWorkspace => unauthenticated("The token names no workspace."),
            Refusal::Invalid(why) => unauthenticated(INVALID).because(why),
            Refusal::Library(e) => unauthenticated(INVALID).because(e),
            Refusal::Unavailable(why) => {
                let sentence = "The token cannot be checked now: its issuer's keys cannot be had. Try again.";
                Fault::new(Code::AuthUnavailable, sentence).because(why)
            }
        }
    }
}

/// Why tokens could not be checked at all.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// A secret or an address that the settings' faults would have named.
    #[error("auth: the issuer {0:?} cannot be used")]
    Issuer(String),
    /// No TLS roots, for instance.
    #[error("auth: this system has no usable HTTP client for issuers' keys: {0}")]
    Client(#[source] reqwest::Error),
}

/// Where an issuer's keys come from.
enum Source {
    Shared(DecodingKey),
    Published(Arc<Published>),
}

/// Somebody whose tokens are accepted.
struct Issuer {
    rules: Rules,
    algorithms: Vec<Algorithm>,
    source: Source,
}

impl Issuer {
    async fn verify(&self, token: &Token<'_>) -> Result<Caller, Refusal> {
        if !self.algorithms.contains(&token.algorithm) {
            return Err(Refusal::Invalid("an algorithm that the issuer does not use"));
        }
        self.rules.is_plausible(&token.claims, jsonwebtoken::get_current_timestamp())?;
        // One algorithm, so that a token cannot choose another (`none`, or HS256 with a public key as its secret).
        let validation = self.rules.validation(token.algorithm);
        let check = |key: &DecodingKey| {
            jsonwebtoken::decode::<Map<String, Value>>(token.text, key, &validation).map(|data| data.claims)
        };
        let claims = match &self.source {
            Source::Shared(key) => check(key)?,
            Source::Published(keys) => keys.check(token.kid.as_deref(), token.algorithm, check).await?,
        };
        self.rules.caller(&claims)
    }
}

/// Checks tokens.
pub struct Auth {
    settings: Settings,
    issuers: HashMap<String, Issuer>,
    /// The one of `jwt_secret` without `jwt_issuer`.
    unnamed: Option<Issuer>,
}

impl Auth {
    /// Prepares the keys. Those that are published are fetched when the first token needs them.
    pub fn new(settings: Settings) -> Result<Self, AuthError> {
        let all = settings.all_issuers();
        let client = all.iter().any(|issuer| issuer.jwks_uri.is_some()).then(published::client);
        let client = client.transpose().map_err(AuthError::Client)?;
        let overall = Arc::default();
        let mut auth = Auth { settings, issuers: HashMap::new(), unnamed: None };
        for issuer in all {
            let name = issuer.issuer.clone();
            let unfit = || AuthError::Issuer(name.clone());
            let source = match (&issuer.secret, &issuer.jwks_uri, &client) {
                (Some(secret), None, _) => {
                    Source::Shared(DecodingKey::from_secret(secret.reveal().as_bytes()).map_err(|_| unfit())?)
                }
                (None, Some(uri), Some(client)) => {
                    let uri = Url::parse(uri).map_err(|_| unfit())?;
                    Source::Published(Arc::new(Published::new(
                        &issuer,
                        uri,
                        client.clone(),
                        Arc::clone(&overall),
                    )))
                }
                _ => return Err(unfit()),
            };
            let algorithms = issuer.accepted().into_iter().map(Accepted::algorithm).collect();
            let issuer = Issuer { rules: Rules::new(issuer), algorithms, source };
            if name.is_empty() {
                auth.unnamed = Some(issuer);
            } else {
                auth.issuers.insert(name, issuer);
            }
        }
        Ok(auth)
    }

    /// Verifies the value of an `Authorization` header. Takes as long as one fetch of an issuer's keys when they are not at hand.
    pub async fn verify(&self, authorization: Option<&str>) -> Result<Caller, Fault> {
        let Some(authorization) = authorization else {
            if self.settings.open {
                return Ok(Caller::any("anonymous"));
            }
            return Err(unauthenticated("A bearer token is needed."));
        };
        let token = bearer(authorization).ok_or_else(|| unauthenticated("A bearer token is needed."))?;
        if let Some(service) = &self.settings.service_token
            && same(service.reveal(), token)
        {
            return Ok(Caller::any("service"));
        }
        let token = Token::read(token).ok_or(Refusal::Invalid("it is no token that could hold"))?;
        let issuer = self.issuer(&token).ok_or(Refusal::Invalid("nobody whom we know has issued it"))?;
        Ok(issuer.verify(&token).await?)
    }

    fn issuer(&self, token: &Token<'_>) -> Option<&Issuer> {
        token.issuer().and_then(|name| self.issuers.get(name)).or(self.unnamed.as_ref())
    }

    /// A token for a workspace, good for `ttl` from now. `None` when no JWT secret is configured.
    pub fn mint(&self, workspace: &str, subject: &str, write: bool, ttl: Duration) -> Option<String> {
        let secret = self.settings.jwt_secret.as_ref()?;
        let now = jsonwebtoken::get_current_timestamp();
        let mut claims = json!({
            "workspace_id": workspace, "sub": subject, "exp": now + ttl.as_secs(), "iat": now, "write": write,
        });
        for (name, value) in [("iss", &self.settings.jwt_issuer), ("aud", &self.settings.jwt_audience)] {
            if let Some(value) = value {
                claims[name] = json!(value);
            }
        }
        let key = EncodingKey::from_secret(secret.reveal().as_bytes()).ok()?;
        jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &key).ok()
    }

    /// How the keys of issuers that publish them are.
    pub fn gauges(&self) -> Vec<KeyGauges> {
        let of = |issuer: &Issuer| match &issuer.source {
            Source::Published(keys) => Some(keys.gauges()),
            Source::Shared(_) => None,
        };
        let mut gauges: Vec<_> = self.issuers.values().filter_map(of).collect();
        gauges.sort_by(|a, b| a.issuer.cmp(&b.issuer));
        gauges
    }
}

/// Whether the text can be a workspace's id: it becomes part of a warehouse's name and of keys in the store.
pub fn is_workspace_id(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Compares without stopping at the first difference.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |all, (x, y)| all | (x ^ y)) == 0
}

fn unauthenticated(sentence: &'static str) -> Fault {
    Fault::new(Code::Unauthenticated, sentence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";
    const IN_FAR_FUTURE: u64 = 4_000_000_000;

    fn settings() -> Settings {
        Settings { jwt_secret: Some(Secret::new(SECRET)), ..Settings::default() }
    }

    async fn verify(settings: Settings, token: &str) -> Result<Caller, Fault> {
        Auth::new(settings).unwrap().verify(Some(&format!("Bearer {token}"))).await
    }

    fn signed(algorithm: Algorithm, header: Header, claims: &Value) -> String {
        let key = EncodingKey::from_secret(SECRET.as_bytes()).unwrap();
        jsonwebtoken::encode(&Header { alg: algorithm, ..header }, claims, &key).unwrap()
    }

    #[tokio::test]
    async fn a_minted_token_holds_and_names_its_workspace() {
        let named = Settings {
            jwt_issuer: Some("us".to_owned()),
            jwt_audience: Some("duck".to_owned()),
            ..settings()
        };
        for settings in [settings(), named] {
            let minted = Auth::new(settings.clone()).unwrap();
            let token = minted.mint("acme", "ann", true, Duration::from_mins(1)).unwrap();
            let caller = verify(settings, &token).await.unwrap();
            assert_eq!(caller.scope(), &Scope::Workspace("acme".to_owned()));
            assert!(caller.may_write());
        }
    }

    #[tokio::test]
    async fn a_token_signed_with_another_key_or_algorithm_does_not_hold() {
        let other =
            Settings { jwt_secret: Some(Secret::new(SECRET.replace('0', "z"))), ..Settings::default() };
        let token = Auth::new(other).unwrap().mint("acme", "", false, Duration::from_mins(1)).unwrap();
        assert_eq!(verify(settings(), &token).await.unwrap_err().code, Code::Unauthenticated);
        let claims = json!({"workspace_id": "acme", "exp": IN_FAR_FUTURE});
        for algorithm in [Algorithm::HS384, Algorithm::HS512] {
            assert!(verify(settings(), &signed(algorithm, Header::default(), &claims)).await.is_err());
        }
        let good = signed(Algorithm::HS256, Header::default(), &claims);
        assert!(verify(settings(), &good).await.is_ok());
    }

    #[tokio::test]
    async fn a_token_with_extensions_that_must_be_understood_does_not_hold() {
        let claims = json!({"workspace_id": "acme", "exp": IN_FAR_FUTURE});
        let mut header = Header { crit: Some(vec!["b64".to_owned()]), ..Header::default() };
        header.extras.insert("b64", true);
        assert!(verify(settings(), &signed(Algorithm::HS256, header, &claims)).await.is_err());
        let long = Header { kid: Some("k".repeat(257)), ..Header::default() };
        assert!(verify(settings(), &signed(Algorithm::HS256, long, &claims)).await.is_err());
    }

    #[tokio::test]
    async fn issuer_and_audience_are_required_where_they_are_configured() {
        let strict = Settings {
            jwt_issuer: Some("us".to_owned()),
            jwt_audience: Some("duck".to_owned()),
            ..settings()
        };
        let holds = async |more: Value| {
            let mut claims = json!({"workspace_id": "acme", "exp": IN_FAR_FUTURE});
            claims.as_object_mut().unwrap().append(more.clone().as_object_mut().unwrap());
            verify(strict.clone(), &signed(Algorithm::HS256, Header::default(), &claims)).await.is_ok()
        };
        assert!(holds(json!({"iss": "us", "aud": "duck"})).await);
        assert!(holds(json!({"iss": "us", "aud": ["other", "duck"]})).await);
        for more in [
            json!({}),
            json!({"iss": "us"}),
            json!({"aud": "duck"}),
            json!({"iss": "them", "aud": "duck"}),
            json!({"iss": ["us"], "aud": "duck"}),
            json!({"iss": "us", "aud": "other"}),
            json!({"iss": "us", "aud": []}),
            json!({"iss": "us", "aud": "duck", "nbf": IN_FAR_FUTURE}),
        ] {
            assert!(!holds(more.clone()).await, "{more}");
        }
    }

    #[tokio::test]
    async fn each_issuer_signs_for_itself() {
        let issuer = |name: &str, secret: &str| IssuerSettings {
            issuer: name.to_owned(),
            secret: Some(Secret::new(secret)),
            ..IssuerSettings::default()
        };
        let two = Settings {
            issuers: vec![issuer("a", SECRET), issuer("b", "another secret, of 32 bytes or so")],
            ..Settings::default()
        };
        let token = |name: &str| {
            let claims = json!({"workspace_id": "acme", "exp": IN_FAR_FUTURE, "iss": name});
            signed(Algorithm::HS256, Header::default(), &claims)
        };
        assert!(verify(two.clone(), &token("a")).await.is_ok());
        assert!(verify(two.clone(), &token("b")).await.is_err());
        assert!(verify(two, &token("c")).await.is_err());
    }
}
