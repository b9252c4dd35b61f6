//! From what a token claims to a [`Caller`].

use jsonwebtoken::{Algorithm, Validation};
use serde_json::{Map, Value};

use super::settings::{ClaimNames, IssuerSettings};
use super::{Caller, Grant, Refusal, Scope, is_workspace_id};

/// It goes into every line of the audit record.
const SUBJECT_CHARS_MAX: usize = 256;
/// Roles of one caller; more are not looked at.
const ROLES_MAX: usize = 256;

/// What one issuer's tokens have to say.
pub(super) struct Rules {
    settings: IssuerSettings,
    validation: Validation,
}

impl Rules {
    pub(super) fn new(settings: IssuerSettings) -> Self {
        let mut validation = Validation::new(Algorithm::HS256);
        validation.leeway = settings.leeway_s;
        validation.validate_nbf = true;
        // What is looked at must be there: the library passes a token that lacks it.
        let mut required = vec!["exp"];
        if settings.audience.is_empty() {
            validation.validate_aud = false;
        } else {
            validation.set_audience(&settings.audience);
            required.push("aud");
        }
        if !settings.issuer.is_empty() {
            validation.set_issuer(&[&settings.issuer]);
            required.push("iss");
        }
        validation.set_required_spec_claims(&required);
        Rules { settings, validation }
    }

    /// For a signature of this algorithm and no other.
    pub(super) fn validation(&self, algorithm: Algorithm) -> Validation {
        Validation { algorithms: vec![algorithm], ..self.validation.clone() }
    }

    /// Whether the token could hold if its signature did. Asked first, so that one that cannot costs no fetch.
    pub(super) fn is_plausible(&self, claims: &Map<String, Value>, now_s: u64) -> Result<(), Refusal> {
        // Seconds since 1970 are exact in a float for the next millions of years.
        #[allow(clippy::cast_precision_loss)]
        let before = now_s.saturating_sub(self.settings.leeway_s) as f64;
        if claims.get("exp").and_then(Value::as_f64).is_some_and(|exp| exp < before) {
            return Err(Refusal::Expired);
        }
        self.caller(claims).map(|_| ())
    }

    /// Who the claims of a token speak for.
    pub(super) fn caller(&self, claims: &Map<String, Value>) -> Result<Caller, Refusal> {
        let Self { settings, .. } = self;
        let ClaimNames { workspace, subject, roles, write, write_tables } = &settings.claims;
        if settings.required_claims.iter().any(|name| claim(claims, name).is_none()) {
            return Err(Refusal::Invalid("a required claim is missing"));
        }
        let workspace = claim(claims, workspace).and_then(Value::as_str);
        let workspace = workspace.filter(|text| is_workspace_id(text)).ok_or(Refusal::NoWorkspace)?;
        let roles = claim(claims, roles).map(words).unwrap_or_default();
        let write = claim(claims, write) == Some(&Value::Bool(true))
            || roles.iter().any(|role| settings.write_roles.contains(role));
        // One that cannot be read restricts to nothing.
        let only = claim(claims, write_tables).map(words);
        let subject = claim(claims, subject).and_then(Value::as_str).unwrap_or_default();
        Ok(Caller {
            scope: Scope::Workspace(workspace.to_owned()),
            subject: subject.chars().take(SUBJECT_CHARS_MAX).collect(),
            roles,
            grant: Grant::of(write, only),
        })
    }
}

/// A claim by its name, or by a JSON pointer into one; null is none.
fn claim<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let found = match name.strip_prefix('/') {
        None => claims.get(name),
        Some(path) => {
            let (first, rest) = path.split_at(path.find('/').unwrap_or(path.len()));
            claims.get(&first.replace("~1", "/").replace("~0", "~")).and_then(|value| value.pointer(rest))
        }
    };
    found.filter(|value| !value.is_null())
}

/// A list of texts, or words with spaces between (as in `scope`, RFC 8693).
fn words(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => text.split_whitespace().take(ROLES_MAX).map(str::to_owned).collect(),
        Value::Array(list) => {
            list.iter().filter_map(Value::as_str).take(ROLES_MAX).map(str::to_owned).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rules(text: &str) -> Rules {
        Rules::new(toml::from_str(text).unwrap())
    }

    fn caller(rules: &Rules, claims: &Value) -> Result<Caller, Refusal> {
        rules.caller(claims.as_object().unwrap())
    }

    #[test]
    fn claims_are_found_by_name_or_by_pointer() {
        let rules = rules(
            "write_roles = ['editor']\nrequired_claims = ['azp']\n\
             claims = { workspace = 'https://x.example/workspace', roles = '/realm_access/roles', subject = 'email' }",
        );
        let claims = json!({
            "https://x.example/workspace": "acme", "email": "ann@x", "azp": "app",
            "realm_access": {"roles": ["viewer", "editor", 7]},
        });
        let found = caller(&rules, &claims).unwrap();
        assert_eq!(found.scope(), &Scope::Workspace("acme".into()));
        assert_eq!((found.subject(), found.may_write()), ("ann@x", true));
        assert_eq!(found.roles(), ["viewer", "editor"]);
        let mut fewer = claims.clone();
        fewer["azp"] = Value::Null;
        assert!(matches!(caller(&rules, &fewer), Err(Refusal::Invalid(_))));
        fewer = claims.clone();
        fewer["realm_access"] = json!({"roles": "viewer reader"});
        assert!(!caller(&rules, &fewer).unwrap().may_write());
    }

    #[test]
    fn only_true_grants_writing_and_only_a_plain_id_is_a_workspace() {
        let rules = rules("");
        for write in [json!("true"), json!(1), json!([true]), json!({}), json!(null), json!(false)] {
            let claims = json!({"workspace_id": "acme", "write": write});
            assert!(!caller(&rules, &claims).unwrap().may_write(), "{write}");
        }
        assert!(caller(&rules, &json!({"workspace_id": "acme", "write": true})).unwrap().may_write());
        for workspace in
            [json!(""), json!("../acme"), json!(1), json!(["acme"]), json!(null), json!("a".repeat(129))]
        {
            let refused = caller(&rules, &json!({"workspace_id": workspace}));
            assert!(matches!(refused, Err(Refusal::NoWorkspace)), "{workspace}");
        }
    }

    #[test]
    fn a_grant_for_some_tables_is_for_no_others() {
        let rules = rules("");
        let covers = |tables: Value, table: &str| {
            let claims = json!({"workspace_id": "acme", "write": true, "write_tables": tables});
            caller(&rules, &claims).unwrap().grant().covers("ds", Some(table))
        };
        assert!(
            covers(json!(["ds.t"]), "t") && covers(json!("ds.t staging.*"), "t") && covers(json!(null), "u")
        );
        for unclear in [json!(["ds.t"]), json!([]), json!(true), json!({"ds.u": true}), json!("")] {
            assert!(!covers(unclear.clone(), "u"), "{unclear}");
        }
    }

    #[test]
    fn what_has_expired_is_not_plausible() {
        let rules = rules("leeway_s = 5");
        let at = |exp: Value| {
            let claims = json!({"workspace_id": "acme", "exp": exp});
            rules.is_plausible(claims.as_object().unwrap(), 1_000)
        };
        assert!(at(json!(995)).is_ok());
        assert!(matches!(at(json!(994)), Err(Refusal::Expired)));
        assert!(matches!(at(json!(-1.5)), Err(Refusal::Expired)));
    }
}
