//! What a token looks like before anything of it is believed.
//!
//! Everything here is cheap and asks nobody: garbage must not cost more than reading it.

use jsonwebtoken::{Algorithm, Header};
use serde_json::{Map, Value};

/// Longer tokens are not read. Headers of 8 to 16 KiB are what proxies let through.
const TOKEN_BYTES_MAX: usize = 16 << 10;
const KID_BYTES_MAX: usize = 256;

/// A token whose signature nobody has checked.
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) algorithm: Algorithm,
    pub(super) kid: Option<String>,
    /// What it claims.
    pub(super) claims: Map<String, Value>,
}

impl<'a> Token<'a> {
    /// `None` when it is none, when its algorithm is `none` or unknown, or when it names extensions that must be understood (`crit`).
    pub(super) fn read(text: &'a str) -> Option<Token<'a>> {
        let whole = text.len() <= TOKEN_BYTES_MAX
            && text.split('.').count() == 3
            && text.split('.').all(|part| !part.is_empty());
        if !whole {
            return None;
        }
        let Header { alg, kid, crit, .. } = jsonwebtoken::decode_header(text).ok()?;
        if crit.is_some() || kid.as_ref().is_some_and(|kid| kid.is_empty() || kid.len() > KID_BYTES_MAX) {
            return None;
        }
        let claims = jsonwebtoken::dangerous::insecure_decode_claims(text).ok()?;
        Some(Token { text, algorithm: alg, kid, claims })
    }

    /// Who it says has issued it.
    pub(super) fn issuer(&self) -> Option<&str> {
        self.claims.get("iss").and_then(Value::as_str)
    }
}
