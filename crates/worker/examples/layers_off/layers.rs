//! Which layers are off. Said once, at the start, and inherited by every worker that is forked.

use std::sync::OnceLock;

/// What no other program of the tree has in it (`no_worker_knows_a_switch_for_its_layers`).
pub(crate) const USAGE: &str =
    "usage: layers_off [policy,lockdown,sandbox,settings,confinement] WORKER'S ARGUMENTS";

static OFF: OnceLock<Vec<Layer>> = OnceLock::new();

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layer {
    /// What is said of a statement's text and kind.
    Policy,
    /// What DuckDB refuses by its own settings.
    Lockdown,
    /// User, limits, Landlock and seccomp.
    Sandbox,
    /// Those settings, but not the test that they hold.
    Settings,
    /// That sandbox, but not the word that it holds.
    Confinement,
}

/// Takes these off, or says how they are called.
pub(crate) fn take_off(names: &str) -> Result<(), &'static str> {
    let layer = |name: &str| match name {
        "policy" => Ok(Layer::Policy),
        "lockdown" => Ok(Layer::Lockdown),
        "sandbox" => Ok(Layer::Sandbox),
        "settings" => Ok(Layer::Settings),
        "confinement" => Ok(Layer::Confinement),
        _ => Err(USAGE),
    };
    OFF.set(names.split(',').map(layer).collect::<Result<_, _>>()?).map_err(|_| USAGE)
}

pub(crate) fn is_off(layer: Layer) -> bool {
    OFF.get().is_some_and(|off| off.contains(&layer))
}
