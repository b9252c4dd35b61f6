//! Who is asking.
//!
//! Given an `Authorization` header, hands on a [`Caller`], which only this folder can make. Never says why a token does not hold
//! beyond "it does not".

use std::time::Duration;

use duck_contract::Code;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};

use crate::fault::Fault;
use crate::secret::Secret;

/// HS256 with a shorter key can be searched.
const SECRET_BYTES_MIN: usize = 32;

/// How callers prove who they are.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Shared secret of HS256 tokens, at least 32 bytes.
    pub jwt_secret: Option<Secret>,
    /// Required `iss` of a token.
    pub jwt_issuer: Option<String>,
    /// Required `aud` of a token.
    pub jwt_audience: Option<String>,
    /// The token of a trusted back end, which may name any workspace. At least 32 bytes.
    pub service_token: Option<Secret>,
    /// No authentication: whoever reaches the port may do anything. Only on loopback, unless `open_anywhere`.
    pub open: bool,
    /// Allows `open` on an address that others can reach.
    pub open_anywhere: bool,
}

impl Settings {
    /// Everything that is wrong with the settings, for a server that listens on loopback or not.
    pub fn faults(&self, loopback: bool) -> Vec<String> {
        let mut faults = Vec::new();
        let short = |s: &Option<Secret>| s.as_ref().is_some_and(|s| s.reveal().len() < SECRET_BYTES_MIN);
        if short(&self.jwt_secret) {
            faults.push(format!("auth.jwt_secret: shorter than {SECRET_BYTES_MIN} bytes"));
        }
        if short(&self.service_token) {
            faults.push(format!("auth.service_token: shorter than {SECRET_BYTES_MIN} bytes"));
        }
        if self.open && !loopback && !self.open_anywhere {
            faults.push(
                "auth.open: only on a loopback address, unless auth.open_anywhere says otherwise".to_owned(),
            );
        }
        if !self.open && self.jwt_secret.is_none() && self.service_token.is_none() {
            faults.push(
                "auth: none of jwt_secret, service_token, open is set, so nobody could ask anything"
                    .to_owned(),
            );
        }
        faults
    }

    /// What is accepted, for `/config` and the log.
    pub fn modes(&self) -> Vec<&'static str> {
        let mut modes = Vec::new();
        if self.jwt_secret.is_some() {
            modes.push("jwt-hs256");
        }
        if self.service_token.is_some() {
            modes.push("service-token");
        }
        if self.open {
            modes.push("open");
        }
        modes
    }
}

/// Whom a caller speaks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// One workspace, named by a verified token.
    Workspace(String),
    /// A trusted back end, or anybody where there is no authentication: the request names the workspace.
    Any,
}

/// What a token lets its bearer write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grant {
    /// Nothing.
    Nothing,
    /// Whatever the service's policy lets it.
    Everything,
    /// Tables (`schema.table`) and whole schemas (`schema`) by name, without regard to case.
    Only(Vec<String>),
}

impl Grant {
    /// As a token says it: `write`, and perhaps only for these.
    fn of(write: bool, only: Option<Vec<String>>) -> Self {
        match (write, only) {
            (false, _) => Grant::Nothing,
            (true, None) => Grant::Everything,
            (true, Some(names)) => Grant::Only(names),
        }
    }

    /// Whether it is for this table, or for this whole schema.
    pub fn covers(&self, schema: &str, table: Option<&str>) -> bool {
        let Grant::Only(names) = self else { return *self == Grant::Everything };
        let schema = schema.to_lowercase();
        let table = table.map(|table| format!("{schema}.{}", table.to_lowercase()));
        names.iter().map(|name| name.to_lowercase()).any(|name| name == schema || Some(name) == table)
    }
}

/// Somebody who was verified.
#[derive(Debug, Clone)]
pub struct Caller {
    scope: Scope,
    subject: String,
    grant: Grant,
}

impl Caller {
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

    /// Whether their token grants writing anything.
    pub fn may_write(&self) -> bool {
        self.grant != Grant::Nothing
    }
}

/// What a token says.
#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    workspace_id: String,
    #[serde(default)]
    sub: String,
    exp: u64,
    #[serde(default)]
    iat: u64,
    #[serde(default)]
    write: bool,
    /// Tables and schemas to which `write` is restricted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    write_tables: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    iss: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    aud: Option<String>,
}

/// Checks tokens.
pub struct Auth {
    settings: Settings,
    key: Option<(DecodingKey, Validation)>,
}

impl Auth {
    /// Prepares the keys.
    pub fn new(settings: Settings) -> Self {
        let key = settings.jwt_secret.as_ref().and_then(|secret| {
            // One algorithm, so that a token cannot choose another (`none`, or RS256 with the secret as its key).
            let mut validation = Validation::new(Algorithm::HS256);
            validation.leeway = 5;
            validation.validate_nbf = true;
            validation.set_required_spec_claims(&["exp"]);
            match &settings.jwt_audience {
                Some(audience) => validation.set_audience(&[audience]),
                None => validation.validate_aud = false,
            }
            if let Some(issuer) = &settings.jwt_issuer {
                validation.set_issuer(&[issuer]);
            }
            Some((DecodingKey::from_secret(secret.reveal().as_bytes()).ok()?, validation))
        });
        Auth { settings, key }
    }

    /// Verifies the value of an `Authorization` header.
    pub fn verify(&self, authorization: Option<&str>) -> Result<Caller, Fault> {
        let Some(authorization) = authorization else {
            if self.settings.open {
                return Ok(Caller {
                    scope: Scope::Any,
                    subject: "anonymous".to_owned(),
                    grant: Grant::Everything,
                });
            }
            return Err(unauthenticated("A bearer token is needed."));
        };
        let token = bearer(authorization).ok_or_else(|| unauthenticated("A bearer token is needed."))?;
        if let Some(service) = &self.settings.service_token
            && same(service.reveal(), token)
        {
            return Ok(Caller { scope: Scope::Any, subject: "service".to_owned(), grant: Grant::Everything });
        }
        let Some((key, validation)) = &self.key else {
            return Err(unauthenticated("The token does not hold."));
        };
        let claims = jsonwebtoken::decode::<Claims>(token, key, validation)
            .map_err(|e| match e.kind() {
                ErrorKind::ExpiredSignature => unauthenticated("The token has expired."),
                _ => unauthenticated("The token does not hold.").because(e),
            })?
            .claims;
        if !is_workspace_id(&claims.workspace_id) {
            return Err(unauthenticated("The token names no workspace."));
        }
        let grant = Grant::of(claims.write, claims.write_tables);
        Ok(Caller { scope: Scope::Workspace(claims.workspace_id), subject: claims.sub, grant })
    }

    /// A token for a workspace, good for `ttl` from now. `None` when no JWT secret is configured.
    pub fn mint(&self, workspace: &str, subject: &str, write: bool, ttl: Duration) -> Option<String> {
        let secret = self.settings.jwt_secret.as_ref()?;
        let now = jsonwebtoken::get_current_timestamp();
        let claims = Claims {
            workspace_id: workspace.to_owned(),
            sub: subject.to_owned(),
            exp: now + ttl.as_secs(),
            iat: now,
            write,
            write_tables: None,
            iss: self.settings.jwt_issuer.clone(),
            aud: self.settings.jwt_audience.clone(),
        };
        let key = EncodingKey::from_secret(secret.reveal().as_bytes()).ok()?;
        jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &key).ok()
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

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn auth() -> Auth {
        Auth::new(Settings { jwt_secret: Some(Secret::new(SECRET)), ..Settings::default() })
    }

    #[test]
    fn a_minted_token_holds_and_names_its_workspace() {
        let token = auth().mint("acme", "ann", true, Duration::from_mins(1)).unwrap();
        let caller = auth().verify(Some(&format!("Bearer {token}"))).unwrap();
        assert_eq!(caller.scope(), &Scope::Workspace("acme".to_owned()));
        assert!(caller.may_write());
    }

    #[test]
    fn a_token_signed_with_another_key_or_algorithm_does_not_hold() {
        let other =
            Settings { jwt_secret: Some(Secret::new(SECRET.replace('0', "z"))), ..Settings::default() };
        let token = Auth::new(other).mint("acme", "", false, Duration::from_mins(1)).unwrap();
        assert_eq!(auth().verify(Some(&format!("Bearer {token}"))).unwrap_err().code, Code::Unauthenticated);
        let claims = serde_json::json!({"workspace_id": "acme", "exp": 4_000_000_000_u64, "iat": 0});
        let key = EncodingKey::from_secret(SECRET.as_bytes()).unwrap();
        for algorithm in [Algorithm::HS384, Algorithm::HS512] {
            let token = jsonwebtoken::encode(&Header::new(algorithm), &claims, &key).unwrap();
            assert!(auth().verify(Some(&format!("Bearer {token}"))).is_err());
        }
    }

    #[test]
    fn a_grant_is_for_everything_or_for_what_it_names() {
        let grant =
            |write, only: &[&str]| Grant::of(write, Some(only.iter().map(|n| (*n).to_owned()).collect()));
        assert!(Grant::of(true, None).covers("ds", Some("t")));
        assert!(
            !Grant::of(false, None).covers("ds", Some("t")) && !grant(false, &["ds"]).covers("ds", Some("t"))
        );
        let some = grant(true, &["ds.Orders", "staging"]);
        assert!(
            some.covers("DS", Some("orders"))
                && some.covers("staging", Some("any"))
                && some.covers("staging", None)
        );
        assert!(
            !some.covers("ds", Some("other")) && !some.covers("ds", None) && !some.covers("stagin", None)
        );
        assert!(!grant(true, &[]).covers("ds", Some("t")));
    }

    #[test]
    fn settings_that_let_nobody_or_everybody_in_are_faults() {
        assert_eq!(Settings::default().faults(true).len(), 1);
        let open = Settings { open: true, ..Settings::default() };
        assert!(open.faults(true).is_empty());
        assert_eq!(open.faults(false).len(), 1);
        let short = Settings { jwt_secret: Some(Secret::new("short")), ..Settings::default() };
        assert_eq!(short.faults(true).len(), 1);
    }
}
