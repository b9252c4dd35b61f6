//! The policy that holds now, and which workspaces have stopped.
//!
//! Given a file, follows it: a version with faults is told and not taken. Never opens anything because a file could not be read.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use duck_contract::Code;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::Instant;

use super::policy::{Decision, Policy};
use super::stops::Stops;
use crate::doors::Act;
use crate::fault::Fault;

/// How often the file is looked at: the kill switch has to work within a second.
const ROUND: Duration = Duration::from_millis(250);
/// A policy of thousands of workspaces.
const FILE_BYTES_MAX: usize = 16 << 20;

/// Where the policy of writes is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The file (TOML). Without one nothing may be written.
    pub policy: Option<PathBuf>,
}

impl Settings {
    /// Everything that is wrong with the file.
    pub fn faults(&self) -> Vec<String> {
        self.read().err().unwrap_or_default()
    }

    fn read(&self) -> Result<(String, Policy), Vec<String>> {
        let Some(path) = &self.policy else { return Ok((String::new(), Policy::default())) };
        let at = |fault: String| format!("writes.policy: {}: {fault}", path.display());
        let text = text(path).map_err(|e| vec![at(e.to_string())])?;
        let policy = Policy::read(&text).map_err(|faults| faults.into_iter().map(at).collect::<Vec<_>>())?;
        Ok((text, policy))
    }
}

fn text(path: &Path) -> std::io::Result<String> {
    let text = std::fs::read_to_string(path)?;
    if text.len() > FILE_BYTES_MAX {
        return Err(std::io::Error::other("the file is larger than 16 MiB"));
    }
    Ok(text)
}

/// Who may write what, now. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Writes(Arc<Inner>);

struct Inner {
    settings: Settings,
    policy: RwLock<Arc<Policy>>,
    /// What the file held when it was last taken or refused, and what was wrong with it.
    seen: Mutex<(Option<String>, Vec<String>)>,
    /// What it held at the last look. Only what is still there at the next is read: somebody may be writing it.
    fresh: Mutex<String>,
    stops: Mutex<Stops>,
}

impl std::fmt::Debug for Writes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Writes").field(&self.0.settings).finish()
    }
}

impl Writes {
    /// With the policy of the file, which is followed from now on; or what is wrong with it.
    pub fn open(settings: Settings) -> Result<Writes, Vec<String>> {
        let (text, policy) = settings.read()?;
        let writes = Writes::of(settings, text, policy);
        if writes.0.settings.policy.is_some() {
            tokio::spawn(follow(Arc::downgrade(&writes.0)));
        }
        Ok(writes)
    }

    /// Nothing may be written.
    pub fn closed() -> Writes {
        Writes::of(Settings::default(), String::new(), Policy::default())
    }

    fn of(settings: Settings, text: String, policy: Policy) -> Writes {
        Writes(Arc::new(Inner {
            settings,
            policy: RwLock::new(Arc::new(policy)),
            fresh: Mutex::new(text.clone()),
            seen: Mutex::new((Some(text), Vec::new())),
            stops: Mutex::default(),
        }))
    }

    #[cfg(test)]
    pub(crate) fn by(text: &str) -> Writes {
        Writes::of(Settings::default(), String::new(), Policy::read(text).unwrap())
    }

    /// Whether the act is open in the workspace now.
    pub(super) fn check(&self, workspace: &str, act: Act<'_>) -> Result<(), Fault> {
        closed(workspace, &self.0.decide(workspace, |policy| policy.decide(workspace, act)), Some(act))
    }

    /// The rule that decides on the act.
    pub(super) fn rule(&self, workspace: &str, act: Act<'_>) -> String {
        self.0.decide(workspace, |policy| policy.decide(workspace, act)).rule
    }

    /// The rule by which anything is open in the workspace now, or that nothing is.
    pub(super) fn check_any(&self, workspace: &str) -> Result<String, Fault> {
        let decision = self.0.decide(workspace, |policy| policy.overview(workspace));
        closed(workspace, &decision, None).map(|()| decision.rule)
    }

    /// The rule that decides whether anything is open in the workspace now.
    pub fn rule_of(&self, workspace: &str) -> String {
        self.0.decide(workspace, |policy| policy.overview(workspace)).rule
    }

    /// Whether a workspace may write, and by which rule, as `/config` shows it.
    pub fn about(&self, workspace: &str) -> serde_json::Value {
        let Decision { open, rule } = self.0.decide(workspace, |policy| policy.overview(workspace));
        json!({"open": open, "rule": rule})
    }

    /// What operators have to know: the file's faults, the kill switch, who has stopped.
    pub fn status(&self) -> serde_json::Value {
        let now = Instant::now();
        let seconds = |since: Instant| now.duration_since(since).as_secs();
        let stops = self.0.stops();
        let stopped: Vec<_> = stops
            .all()
            .map(|(workspace, since)| json!({"workspace": workspace, "since_s": seconds(since)}))
            .collect();
        json!({
            "policy": self.0.policy().as_ref(),
            "file": self.0.settings.policy.is_some(),
            "faults": self.0.seen().1,
            "stopped": stopped,
        })
    }

    /// A write of the workspace has failed as a healthy one's does not. After too many its writes stop.
    pub fn failed(&self, workspace: &str) {
        let policy = self.0.policy();
        let window = Duration::from_secs(policy.stop_window_s);
        if self.0.stops().failed(workspace, policy.stop_failures, window, Instant::now()) {
            tracing::error!(
                workspace,
                "too many writes have failed: the workspace's writes are stopped until it is reopened"
            );
        }
    }

    /// Opens a workspace that has stopped. Whether it had.
    pub fn reopen(&self, workspace: &str) -> bool {
        let was_stopped = self.0.stops().reopen(workspace);
        if was_stopped {
            tracing::warn!(workspace, "the workspace's writes are open again");
        }
        was_stopped
    }
}

impl Inner {
    fn policy(&self) -> Arc<Policy> {
        self.policy.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn stops(&self) -> MutexGuard<'_, Stops> {
        self.stops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self) -> MutexGuard<'_, (Option<String>, Vec<String>)> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decide(&self, workspace: &str, by: impl FnOnce(&Policy) -> Decision) -> Decision {
        if self.stops().is_stopped(workspace) {
            return Decision { open: false, rule: "automatic stop".to_owned() };
        }
        by(&self.policy())
    }

    /// Takes what the file says now, if that is something else and right.
    fn look(&self) {
        let Some(path) = &self.settings.policy else { return };
        let text = match text(path) {
            Ok(text) => text,
            Err(e) => return self.keeps(None, vec![e.to_string()]),
        };
        let before =
            std::mem::replace(&mut *self.fresh.lock().unwrap_or_else(PoisonError::into_inner), text.clone());
        if before != text || self.seen().0.as_ref() == Some(&text) {
            return;
        }
        match Policy::read(&text) {
            Ok(policy) => {
                tracing::warn!("a new policy of writes holds");
                *self.policy.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policy);
                *self.seen() = (Some(text), Vec::new());
            }
            Err(faults) => self.keeps(Some(text), faults),
        }
    }

    /// The old policy goes on; what is wrong with the new one is said once.
    fn keeps(&self, text: Option<String>, faults: Vec<String>) {
        let mut seen = self.seen();
        if seen.1 != faults {
            tracing::error!(?faults, "the policy of writes has faults: the old one still holds");
        }
        *seen = (text, faults);
    }
}

async fn follow(inner: std::sync::Weak<Inner>) {
    let mut tick = tokio::time::interval(ROUND);
    loop {
        tick.tick().await;
        let Some(inner) = inner.upgrade() else { return };
        // Not on the threads that answer requests: a file can be on a disk that hangs.
        let looked = tokio::task::spawn_blocking(move || inner.look());
        if let Err(e) = looked.await {
            tracing::error!(error = %e, "the policy of writes could not be looked at");
        }
    }
}

/// Nothing where it is open, else which rule closes what.
fn closed(workspace: &str, decision: &Decision, act: Option<Act<'_>>) -> Result<(), Fault> {
    if decision.open {
        return Ok(());
    }
    let what = match act {
        Some(Act::Change(table)) => format!("The table {}", table.dotted()),
        Some(Act::Create(table)) => format!("The new table {}", table.dotted()),
        Some(Act::Schema(levels)) => format!("The schema {}", levels.join(".")),
        None => format!("The workspace {workspace}"),
    };
    let rule = &decision.rule;
    Err(Fault::new(
        Code::WriteTargetClosed,
        format!("{what} is closed for writing by the service's rule `{rule}`."),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doors::Table;

    #[tokio::test(start_paused = true)]
    async fn a_new_policy_holds_soon_and_a_wrong_one_never() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("writes.toml");
        let table = Table { namespace: vec!["ds".into()], name: "t".into() };
        let open = |writes: &Writes| writes.check("a", Act::Change(&table)).is_ok();
        std::fs::write(&path, "write_target = \"iceberg_native\"").unwrap();
        let writes = Writes::open(Settings { policy: Some(path.clone()) }).unwrap();
        assert!(open(&writes));
        let after = async |text: &str| {
            std::fs::write(&path, text).unwrap();
            for _ in 0..200 {
                tokio::time::sleep(ROUND).await;
                // Files are read on other threads, whose time is not paused.
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        after("write_target = \"none\"").await;
        assert!(!open(&writes));
        after("write_target = \"iceberg_native\"\nkil = true").await;
        assert!(!open(&writes) && writes.status()["faults"][0].as_str().unwrap().contains("kil"));
        after("write_target = \"iceberg_native\"").await;
        assert!(open(&writes) && writes.status()["faults"].as_array().unwrap().is_empty());
        std::fs::remove_file(&path).unwrap();
        for _ in 0..200 {
            tokio::time::sleep(ROUND).await;
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(open(&writes), "a file that is gone closes nothing and opens nothing");
        // One that is there again and says nothing closes everything.
        after("").await;
        assert!(!open(&writes));
    }

    #[tokio::test]
    async fn a_workspace_that_stopped_is_closed_until_it_is_reopened() {
        let writes = Writes::by("write_target = \"iceberg_native\"\n[stop]\nfailures = 2");
        writes.failed("a");
        assert!(writes.check_any("a").is_ok());
        writes.failed("a");
        let fault = writes.check_any("a").unwrap_err();
        assert!(fault.code == Code::WriteTargetClosed && fault.sentence.contains("automatic stop"));
        assert!(writes.check_any("b").is_ok());
        assert!(writes.reopen("a") && writes.check_any("a").is_ok());
    }
}
