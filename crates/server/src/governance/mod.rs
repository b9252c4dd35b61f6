//! What they may do, and where.
//!
//! Given a [`Caller`] and what the request names, hands on a [`Permit`]: one warehouse, one role, and for a writer the [`Writ`] that
//! the doors ask at every change. Only this folder can make a [`Warehouse`], and only from a verified caller. Never trusts the
//! request's word over the token's, and never opens what the service's policy keeps closed.

mod policy;
mod stops;
mod writes;

use std::sync::Arc;

use duck_contract::{Code, Role};

pub use self::writes::{Settings, Writes};
use crate::auth::{Caller, Grant, Scope, is_workspace_id};
use crate::doors::{Act, Errand, Rights};
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
#[derive(Debug, Clone)]
pub struct Permit {
    /// Where.
    pub warehouse: Warehouse,
    /// Whether it may change anything there.
    pub role: Role,
    /// Who asked.
    pub subject: String,
    writ: Option<Writ>,
}

impl Permit {
    /// What a writer may change.
    pub fn writ(&self) -> Option<&Writ> {
        self.writ.as_ref()
    }

    /// What its statement is sent to do.
    pub fn errand(&self) -> Arc<Errand> {
        match &self.writ {
            Some(writ) => Errand::writing(Box::new(writ.clone())),
            None => Errand::reading(),
        }
    }
}

/// The two locks of a change: the token's grant and the service's policy, as they are when it is asked.
#[derive(Debug, Clone)]
pub struct Writ {
    workspace: String,
    /// By which rule of the policy it was given.
    rule: String,
    grant: Grant,
    writes: Writes,
}

impl Rights for Writ {
    fn check(&self, act: Act<'_>) -> Result<(), Fault> {
        let granted = match act {
            Act::Change(table) | Act::Create(table) => {
                self.grant.covers(&table.namespace.join("."), Some(&table.name))
            }
            Act::Schema(levels) => self.grant.covers(&levels.join("."), None),
        };
        if !granted {
            let what = match act {
                Act::Change(table) | Act::Create(table) => format!("the table {}", table.dotted()),
                Act::Schema(levels) => format!("the schema {}", levels.join(".")),
            };
            return Err(Fault::new(
                Code::WritesNotGranted,
                format!("The token does not grant writing to {what}."),
            ));
        }
        self.writes.check(&self.workspace, act)
    }

    fn rule(&self, act: Act<'_>) -> Option<String> {
        Some(self.writes.rule(&self.workspace, act))
    }
}

impl Writ {
    /// The rule of the policy by which it was given.
    pub fn given_by(&self) -> &str {
        &self.rule
    }
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
    writes: Writes,
}

impl Governance {
    /// With the prefix of every warehouse's name, and who may write.
    pub fn new(prefix: impl Into<String>, writes: Writes) -> Self {
        Governance { prefix: prefix.into(), writes }
    }

    /// Who may write.
    pub fn writes(&self) -> &Writes {
        &self.writes
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
        let writ = if wish.writes { Some(self.writ(caller, &workspace)?) } else { None };
        let role = if writ.is_some() { Role::Writer } else { Role::Reader };
        let subject = caller.subject().to_owned();
        Ok(Permit { warehouse: Warehouse { name, workspace }, role, subject, writ })
    }

    /// For what the service itself writes in a workspace that its configuration names. The policy of writes holds for it, too.
    pub fn own(&self, workspace: &str, subject: &str) -> Result<Permit, Fault> {
        let rule = self.writes.check_any(workspace)?;
        let (name, workspace) = (self.name_of(workspace), workspace.to_owned());
        let (grant, writes) = (Grant::Everything, self.writes.clone());
        let writ = Some(Writ { workspace: workspace.clone(), rule, grant, writes });
        let warehouse = Warehouse { name, workspace };
        Ok(Permit { warehouse, role: Role::Writer, subject: subject.to_owned(), writ })
    }

    /// The workspace that a request is about, as far as that can be told without a permit.
    pub fn meant<'w>(&self, caller: &'w Caller, wish: Wish<'w>) -> &'w str {
        let named = || Some(wish.warehouse?.strip_prefix(&self.name_of("")).unwrap_or_default());
        match caller.scope() {
            Scope::Workspace(own) => own,
            Scope::Any => wish.workspace.or_else(named).unwrap_or_default(),
        }
    }

    fn writ(&self, caller: &Caller, workspace: &str) -> Result<Writ, Fault> {
        if !caller.may_write() {
            return Err(Fault::new(Code::WritesNotGranted, "The token does not grant writing."));
        }
        let rule = self.writes.check_any(workspace)?;
        let (workspace, grant) = (workspace.to_owned(), caller.grant().clone());
        Ok(Writ { workspace, rule, grant, writes: self.writes.clone() })
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

    fn governance(policy: &str) -> Governance {
        Governance::new("carbon", Writes::by(policy))
    }

    const OPEN: &str = "write_target = 'iceberg_native'";

    #[test]
    fn the_token_decides_and_the_request_may_only_agree() {
        let governance = governance(OPEN);
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
        let governance = governance(OPEN);
        let wish = Wish { writes: true, ..Wish::default() };
        assert_eq!(governance.permit(&caller(false), wish).unwrap_err().code, Code::WritesNotGranted);
        assert_eq!(governance.permit(&caller(true), wish).unwrap().role, Role::Writer);
        assert_eq!(governance.permit(&caller(true), Wish::default()).unwrap().role, Role::Reader);
    }

    #[test]
    fn writing_needs_the_policy_as_well() {
        let wish = Wish { writes: true, ..Wish::default() };
        let fault = governance("").permit(&caller(true), wish).unwrap_err();
        assert_eq!(fault.code, Code::WriteTargetClosed);
        let table = |name: &str| crate::doors::Table { namespace: vec!["ds".into()], name: name.into() };
        let only = governance("[workspaces.acme.tables]\n'ds.t' = 'iceberg_native'");
        let permit = only.permit(&caller(true), wish).unwrap();
        let check = |act: Act<'_>| permit.writ().unwrap().check(act).map_err(|fault| fault.code);
        assert_eq!(check(Act::Change(&table("t"))), Ok(()));
        assert_eq!(check(Act::Change(&table("u"))), Err(Code::WriteTargetClosed));
        assert_eq!(check(Act::Create(&table("u"))), Err(Code::WriteTargetClosed));
    }
}
