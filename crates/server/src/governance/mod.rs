//! What they may do, and where.
//!
//! Given a [`Caller`] and what the request names, hands on a [`Permit`]: one warehouse and one role. Only this folder can make a
//! [`Warehouse`], and only from a verified caller. Never trusts the request's word over the token's.

use duck_contract::{Code, Role};

use crate::auth::{Caller, Scope, is_workspace_id};
use crate::fault::Fault;

/// A warehouse that its caller may use, by its name in the catalog.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Warehouse {
    name: String,
    workspace: String,
}

impl Warehouse {
    /// Its name in the catalog.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The workspace whose it is.
    pub fn workspace(&self) -> &str {
        &self.workspace
    }
}

/// What one request may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permit {
    /// Where.
    pub warehouse: Warehouse,
    /// Whether it may change anything there.
    pub role: Role,
}

/// What a request says about where it wants to go.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wish<'a> {
    /// A warehouse's full name.
    pub warehouse: Option<&'a str>,
    /// A workspace.
    pub workspace: Option<&'a str>,
    /// Whether it wants to write.
    pub writes: bool,
}

/// Derives warehouses from workspaces.
pub struct Governance {
    prefix: String,
}

impl Governance {
    /// With the prefix of every warehouse's name.
    pub fn new(prefix: impl Into<String>) -> Self {
        Governance { prefix: prefix.into() }
    }

    /// The warehouse of a workspace: `{prefix}-w_{workspace}`.
    pub fn name_of(&self, workspace: &str) -> String {
        format!("{}-w_{workspace}", self.prefix)
    }

    /// Decides where a request goes and what it may do there.
    pub fn permit(&self, caller: &Caller, wish: Wish<'_>) -> Result<Permit, Fault> {
        let workspace = match caller.scope() {
            Scope::Workspace(own) => own.clone(),
            Scope::Any => self.named(wish)?,
        };
        let name = self.name_of(&workspace);
        let agrees =
            wish.warehouse.is_none_or(|w| w == name) && wish.workspace.is_none_or(|w| w == workspace);
        if !agrees {
            let sentence = "The request names another warehouse than the token's workspace has.";
            return Err(Fault::new(Code::WarehouseMismatch, sentence));
        }
        if wish.writes && !caller.may_write() {
            return Err(Fault::new(Code::WritesNotGranted, "The token does not grant writing."));
        }
        let role = if wish.writes { Role::Writer } else { Role::Reader };
        Ok(Permit { warehouse: Warehouse { name, workspace }, role })
    }

    /// The workspace that a trusted back end names, by itself or by its warehouse.
    fn named(&self, wish: Wish<'_>) -> Result<String, Fault> {
        let unknown = || Fault::new(Code::UnknownWarehouse, "There is no warehouse of that name.");
        let workspace = match (wish.workspace, wish.warehouse) {
            (Some(workspace), _) => workspace,
            (None, Some(name)) => name.strip_prefix(&self.name_of("")).ok_or_else(unknown)?,
            (None, None) => {
                let sentence =
                    "With this token, `warehouse` or `workspace_id` must say which warehouse is meant.";
                return Err(Fault::new(Code::InvalidRequest, sentence));
            }
        };
        if is_workspace_id(workspace) { Ok(workspace.to_owned()) } else { Err(unknown()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{Auth, Settings};
    use crate::secret::Secret;
    use std::time::Duration;

    fn caller(write: bool) -> Caller {
        let secret = Some(Secret::new("0123456789abcdef0123456789abcdef"));
        let auth = Auth::new(Settings { jwt_secret: secret, ..Settings::default() }).unwrap();
        let token = auth.mint("acme", "", write, Duration::from_mins(1)).unwrap();
        futures::executor::block_on(auth.verify(Some(&format!("Bearer {token}")))).unwrap()
    }

    #[test]
    fn the_token_decides_and_the_request_may_only_agree() {
        let governance = Governance::new("carbon");
        let permit = |wish| governance.permit(&caller(false), wish);
        assert_eq!(permit(Wish::default()).unwrap().warehouse.name(), "carbon-w_acme");
        assert!(permit(Wish { warehouse: Some("carbon-w_acme"), ..Wish::default() }).is_ok());
        for wish in [
            Wish { warehouse: Some("carbon-w_globex"), ..Wish::default() },
            Wish { warehouse: Some(""), ..Wish::default() },
            Wish { workspace: Some("globex"), ..Wish::default() },
        ] {
            assert_eq!(permit(wish).unwrap_err().code, Code::WarehouseMismatch);
        }
    }

    #[test]
    fn writing_needs_the_grant() {
        let governance = Governance::new("carbon");
        let wish = Wish { writes: true, ..Wish::default() };
        assert_eq!(governance.permit(&caller(false), wish).unwrap_err().code, Code::WritesNotGranted);
        assert_eq!(governance.permit(&caller(true), wish).unwrap().role, Role::Writer);
        assert_eq!(governance.permit(&caller(true), Wish::default()).unwrap().role, Role::Reader);
    }
}
