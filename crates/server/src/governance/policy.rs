//! What may be written where, as a file says. Plain: no I/O, no clock.
//!
//! The narrower rule wins: a table of a workspace, a table anywhere, the workspace, the canary, the default. The kill switch stands
//! above all of them. Names are compared without regard to case, because some catalogs do not regard it either.

use std::collections::BTreeMap;

use serde::Serialize;
use sha2::{Digest, Sha256};
use toml::{Table as Toml, Value};

use crate::doors::{Act, Table};

/// Failures after which a workspace's writes stop by themselves, and within which time, where the file says nothing.
const STOP_FAILURES: u32 = 5;
const STOP_WINDOW_S: u64 = 300;

/// Whether something may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Target {
    /// No.
    None,
    /// To the Iceberg table itself.
    IcebergNative,
}

/// Whether tables may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum NewTables {
    /// No.
    Deny,
    /// Where the workspace may write.
    Inherit,
    /// Yes.
    Allow,
}

/// The workspaces that may write although nobody named them.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Canary {
    /// How many of a hundred.
    percent: f64,
    /// Chooses other ones.
    salt: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
struct Workspace {
    write_target: Option<Target>,
    new_tables: Option<NewTables>,
    tables: BTreeMap<String, Target>,
}

/// A whole policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Policy {
    kill: bool,
    write_target: Target,
    new_tables: NewTables,
    canary: Canary,
    tables: BTreeMap<String, Target>,
    workspaces: BTreeMap<String, Workspace>,
    /// After so many failures …
    pub(super) stop_failures: u32,
    /// … within so many seconds a workspace's writes stop.
    pub(super) stop_window_s: u64,
}

/// What a policy says of one act, and which rule of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) open: bool,
    pub(super) rule: String,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            kill: false,
            write_target: Target::None,
            new_tables: NewTables::Inherit,
            canary: Canary { percent: 0.0, salt: String::new() },
            tables: BTreeMap::new(),
            workspaces: BTreeMap::new(),
            stop_failures: STOP_FAILURES,
            stop_window_s: STOP_WINDOW_S,
        }
    }
}

impl Policy {
    /// From a file's text, or everything that is wrong with it.
    pub(super) fn read(text: &str) -> Result<Policy, Vec<String>> {
        let toml: Toml = text.parse().map_err(|e: toml::de::Error| vec![e.message().to_owned()])?;
        let mut reader = Reader { faults: Vec::new() };
        let policy = reader.policy(&toml);
        if reader.faults.is_empty() { Ok(policy) } else { Err(reader.faults) }
    }

    /// What it says of an act in a workspace.
    pub(super) fn decide(&self, workspace: &str, act: Act<'_>) -> Decision {
        let decision = |open, rule: String| Decision { open, rule };
        if self.kill {
            return decision(false, "kill".to_owned());
        }
        let own = self.workspaces.get(workspace);
        if let Act::Change(table) | Act::Create(table) = act
            && let Some((target, rule)) = self.of_table(workspace, own, table)
        {
            return decision(target == Target::IcebergNative, rule);
        }
        if matches!(act, Act::Change(_)) {
            return self.of_workspace(workspace, own);
        }
        let (new, rule) = match own.and_then(|own| own.new_tables) {
            Some(new) => (new, format!("workspaces.{workspace}.new_tables")),
            None => (self.new_tables, "new_tables".to_owned()),
        };
        match new {
            NewTables::Deny => decision(false, rule),
            NewTables::Allow => decision(true, rule),
            NewTables::Inherit => self.of_workspace(workspace, own),
        }
    }

    /// What it says where no narrower rule does; also whether a workspace could write anything at all.
    pub(super) fn overview(&self, workspace: &str) -> Decision {
        let own = self.workspaces.get(workspace);
        let mut decision = self.of_workspace(workspace, own);
        let opens = |tables: &BTreeMap<String, Target>| tables.values().any(|t| *t == Target::IcebergNative);
        let new = own.and_then(|own| own.new_tables).unwrap_or(self.new_tables);
        if !decision.open && (own.is_some_and(|own| opens(&own.tables)) || opens(&self.tables)) {
            decision = Decision { open: true, rule: "tables".to_owned() };
        }
        if !decision.open && new == NewTables::Allow {
            decision = Decision { open: true, rule: "new_tables".to_owned() };
        }
        if self.kill { Decision { open: false, rule: "kill".to_owned() } } else { decision }
    }

    fn of_table(&self, workspace: &str, own: Option<&Workspace>, table: &Table) -> Option<(Target, String)> {
        let name = table.dotted().to_lowercase();
        let closes = |tables: &BTreeMap<String, Target>| tables.values().any(|t| *t == Target::None);
        if !name.is_ascii() && (own.is_some_and(|own| closes(&own.tables)) || closes(&self.tables)) {
            // A catalog may take it for one of those that are closed: there are many ways to write the same name.
            return Some((Target::None, "tables (the name is not ASCII)".to_owned()));
        }
        if let Some(target) = own.and_then(|own| own.tables.get(&name)) {
            return Some((*target, format!("workspaces.{workspace}.tables.\"{name}\"")));
        }
        self.tables.get(&name).map(|target| (*target, format!("tables.\"{name}\"")))
    }

    fn of_workspace(&self, workspace: &str, own: Option<&Workspace>) -> Decision {
        let decision = |target, rule: String| Decision { open: target == Target::IcebergNative, rule };
        if let Some(target) = own.and_then(|own| own.write_target) {
            return decision(target, format!("workspaces.{workspace}.write_target"));
        }
        if self.canary.holds(workspace) {
            return decision(Target::IcebergNative, "canary".to_owned());
        }
        decision(self.write_target, "write_target".to_owned())
    }
}

impl Canary {
    /// The same answer for the same name and salt, wherever and whenever it is asked.
    fn holds(&self, workspace: &str) -> bool {
        let digest =
            Sha256::new().chain_update(&self.salt).chain_update([0]).chain_update(workspace).finalize();
        let bytes: [u8; 4] = [digest[0], digest[1], digest[2], digest[3]];
        f64::from(u32::from_be_bytes(bytes)) / 4_294_967_296.0 * 100.0 < self.percent
    }
}

/// Reads values and keeps every fault it meets.
struct Reader {
    faults: Vec<String>,
}

impl Reader {
    fn policy(&mut self, toml: &Toml) -> Policy {
        let mut policy = Policy::default();
        for (key, value) in toml {
            match key.as_str() {
                "kill" => policy.kill = self.flag(key, value),
                "write_target" => policy.write_target = self.target(key, value),
                "new_tables" => policy.new_tables = self.new_tables(key, value),
                "tables" => policy.tables = self.tables(key, value),
                "canary" => policy.canary = self.canary(value),
                "stop" => {
                    for (name, value) in self.section(key, value) {
                        match name.as_str() {
                            "failures" => policy.stop_failures = self.count("stop.failures", value),
                            "window_s" => policy.stop_window_s = self.count("stop.window_s", value).into(),
                            _ => self.unknown(&format!("stop.{name}")),
                        }
                    }
                }
                "workspaces" => {
                    for (name, value) in self.section(key, value) {
                        let workspace = self.workspace(&format!("workspaces.{name}"), value);
                        policy.workspaces.insert(name.clone(), workspace);
                    }
                }
                _ => self.unknown(key),
            }
        }
        policy
    }

    fn workspace(&mut self, at: &str, value: &Value) -> Workspace {
        let mut workspace = Workspace::default();
        for (name, value) in self.section(at, value) {
            let at = format!("{at}.{name}");
            match name.as_str() {
                "write_target" => workspace.write_target = Some(self.target(&at, value)),
                "new_tables" => workspace.new_tables = Some(self.new_tables(&at, value)),
                "tables" => workspace.tables = self.tables(&at, value),
                _ => self.unknown(&at),
            }
        }
        workspace
    }

    fn canary(&mut self, value: &Value) -> Canary {
        let mut canary = Canary { percent: 0.0, salt: String::new() };
        for (name, value) in self.section("canary", value) {
            match (name.as_str(), value) {
                ("percent", Value::Integer(percent)) if (0..=100).contains(percent) => {
                    canary.percent = f64::from(u8::try_from(*percent).unwrap_or(0));
                }
                ("percent", Value::Float(percent)) if (0.0..=100.0).contains(percent) => {
                    canary.percent = *percent;
                }
                ("percent", _) => self.faults.push("canary.percent: not a number from 0 to 100".to_owned()),
                ("salt", Value::String(salt)) => canary.salt.clone_from(salt),
                ("salt", _) => self.faults.push("canary.salt: not a text".to_owned()),
                _ => self.unknown(&format!("canary.{name}")),
            }
        }
        canary
    }

    fn tables(&mut self, at: &str, value: &Value) -> BTreeMap<String, Target> {
        let mut tables = BTreeMap::new();
        for (name, value) in self.section(at, value) {
            let at = format!("{at}.\"{name}\"");
            if !name.contains('.') || !name.is_ascii() {
                self.faults.push(format!("{at}: a table is named as \"schema.table\", in ASCII"));
            }
            if tables.insert(name.to_lowercase(), self.target(&at, value)).is_some() {
                self.faults.push(format!("{at}: the same table is named twice"));
            }
        }
        tables
    }

    fn section<'t>(
        &mut self,
        at: &str,
        value: &'t Value,
    ) -> impl Iterator<Item = (&'t String, &'t Value)> + use<'t> {
        if !value.is_table() {
            self.faults.push(format!("{at}: not a section"));
        }
        value.as_table().into_iter().flatten()
    }

    fn flag(&mut self, at: &str, value: &Value) -> bool {
        value.as_bool().unwrap_or_else(|| {
            self.faults.push(format!("{at}: not true or false"));
            false
        })
    }

    fn count(&mut self, at: &str, value: &Value) -> u32 {
        let count = value.as_integer().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
        count.unwrap_or_else(|| {
            self.faults.push(format!("{at}: not a number from 1"));
            1
        })
    }

    fn target(&mut self, at: &str, value: &Value) -> Target {
        match value.as_str() {
            Some("none") => Target::None,
            Some("iceberg_native") => Target::IcebergNative,
            _ => {
                self.faults.push(format!("{at}: neither \"none\" nor \"iceberg_native\""));
                Target::None
            }
        }
    }

    fn new_tables(&mut self, at: &str, value: &Value) -> NewTables {
        match value.as_str() {
            Some("deny") => NewTables::Deny,
            Some("inherit") => NewTables::Inherit,
            Some("allow") => NewTables::Allow,
            _ => {
                self.faults.push(format!("{at}: none of \"deny\", \"inherit\", \"allow\""));
                NewTables::Deny
            }
        }
    }

    fn unknown(&mut self, at: &str) {
        self.faults.push(format!("{at}: no such setting"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(name: &str) -> Table {
        Table { namespace: vec!["ds".into()], name: name.into() }
    }

    const OPEN: &str = "write_target = 'iceberg_native'";

    fn decided(policy: &str, workspace: &str, act: Act<'_>) -> (bool, String) {
        let Decision { open, rule } = Policy::read(policy).unwrap().decide(workspace, act);
        (open, rule)
    }

    #[test]
    fn nothing_is_open_that_no_rule_opens() {
        let schema = ["ds".to_owned()];
        for act in [Act::Change(&table("t")), Act::Create(&table("t")), Act::Schema(&schema)] {
            assert_eq!(decided("", "a", act), (false, "write_target".into()));
        }
    }

    #[test]
    fn the_narrower_rule_wins() {
        let policy = r#"
            write_target = "iceberg_native"
            new_tables = "allow"
            [tables]
            "ds.audit" = "none"
            "ds.notes" = "none"
            [workspaces.a]
            write_target = "none"
            new_tables = "inherit"
            [workspaces.a.tables]
            "ds.Notes" = "iceberg_native"
            [workspaces.b]
            new_tables = "deny"
        "#;
        for (workspace, act, open, rule) in [
            ("c", Act::Change(&table("t")), true, "write_target"),
            ("c", Act::Create(&table("t")), true, "new_tables"),
            ("c", Act::Change(&table("AUDIT")), false, "tables.\"ds.audit\""),
            ("c", Act::Create(&table("audit")), false, "tables.\"ds.audit\""),
            ("a", Act::Change(&table("t")), false, "workspaces.a.write_target"),
            ("a", Act::Create(&table("t")), false, "workspaces.a.write_target"),
            ("a", Act::Change(&table("notes")), true, "workspaces.a.tables.\"ds.notes\""),
            ("b", Act::Change(&table("t")), true, "write_target"),
            ("b", Act::Create(&table("t")), false, "workspaces.b.new_tables"),
        ] {
            assert_eq!(decided(policy, workspace, act), (open, rule.to_owned()), "{workspace} {act:?}");
            let killed = format!("kill = true\n{policy}");
            assert_eq!(decided(&killed, workspace, act), (false, "kill".to_owned()));
        }
        // What cannot be told apart from a closed table for certain is closed, too.
        let audit = table("aud\u{131}t");
        assert!(!decided(policy, "c", Act::Change(&audit)).0);
        assert!(decided(OPEN, "c", Act::Change(&audit)).0);
        let policy = Policy::read(policy).unwrap();
        // Something of it is open: that one table.
        assert!(policy.overview("a").open);
    }

    #[test]
    fn the_canary_is_a_stable_share() {
        let share = |percent: f64, salt: &str| {
            let canary = Canary { percent, salt: salt.into() };
            (0..2_000).filter(|i| canary.holds(&format!("w{i}"))).collect::<Vec<_>>()
        };
        let ten = share(10.0, "");
        assert!((140..260).contains(&ten.len()), "{}", ten.len());
        assert_eq!(ten, share(10.0, ""));
        // A larger share holds everybody who was in the smaller one.
        assert!(ten.iter().all(|i| share(30.0, "").contains(i)));
        assert_ne!(ten, share(10.0, "other"));
        assert_eq!((share(0.0, "").len(), share(100.0, "").len()), (0, 2_000));
        assert_eq!(
            decided("[canary]\npercent = 100", "x", Act::Change(&table("t"))),
            (true, "canary".into())
        );
    }

    #[test]
    fn every_fault_of_a_file_is_named() {
        let text = r#"
            kill = "yes"
            write_target = "all"
            wrong = 1
            [canary]
            percent = 101
            [stop]
            failures = 0
            [tables]
            orders = "none"
            [workspaces.a]
            new_tables = "maybe"
            [workspaces.a.tables]
            "ds.t" = true
        "#;
        let faults = Policy::read(text).unwrap_err();
        for part in [
            "kill",
            "write_target",
            "wrong",
            "canary.percent",
            "stop.failures",
            "tables.\"orders\"",
            "workspaces.a.new_tables",
            "workspaces.a.tables.\"ds.t\"",
        ] {
            assert!(faults.iter().any(|fault| fault.starts_with(part)), "{part} is missing in {faults:?}");
        }
        assert_eq!(faults.len(), 8, "{faults:?}");
        assert_eq!(Policy::read("kill = ").unwrap_err().len(), 1);
    }
}
