//! Maintenance inside a server: all warehouses, every so often, one run at a time.

use std::time::{Duration, SystemTime};

use indicatif::ProgressBar;
use tokio_util::sync::CancellationToken;

use super::warehouse::Found;
use super::{Failed, JournalError, Keeper, Mode, journal};

/// Runs until it is told to stop, and then ends at once: what it was about to delete is written down, and the next run goes on.
/// The time since the last run counts across restarts.
pub async fn schedule(keeper: Keeper, stop: CancellationToken) {
    let every = Duration::from_secs(keeper.settings.every_s);
    let Some(dir) = keeper.settings.dir.clone().filter(|_| !every.is_zero()) else { return };
    let run = async {
        loop {
            let last = journal::last_end(&dir).and_then(|at| SystemTime::now().duration_since(at).ok());
            tokio::time::sleep(every.saturating_sub(last.unwrap_or_default())).await;
            if let Err(error) = once(&keeper, &stop).await {
                if let Some(JournalError::Busy(_)) = error.downcast_ref::<JournalError>() {
                    tracing::info!(%error, "maintenance waits for its next turn");
                } else {
                    tracing::error!(%error, "maintenance failed");
                }
            }
            if let Err(error) = journal::note_end(&dir) {
                tracing::error!(%error, "maintenance cannot note that it has run");
                tokio::time::sleep(every).await;
            }
        }
    };
    tokio::select! {
        () = run => {}
        () = stop.cancelled() => {}
    }
}

async fn once(keeper: &Keeper, stop: &CancellationToken) -> Result<(), Failed> {
    let mode = Mode { remove: keeper.settings.remove, ..Mode::default() };
    let names = keeper.warehouses().await?;
    let bar = ProgressBar::hidden();
    let summary = keeper.run(&names, mode, (stop, &bar), log).await?;
    tracing::info!(
        warehouses = summary.warehouses,
        orphans = summary.orphans,
        orphan_bytes = summary.orphan_bytes,
        removed = summary.removed,
        failed = summary.failed,
        "maintained"
    );
    Ok(())
}

// As the command tells it on standard output, where that can fail.
#[allow(clippy::unnecessary_wraps)]
fn log(name: &str, outcome: &Result<Found, Failed>) -> std::io::Result<()> {
    match outcome {
        Err(error) => tracing::warn!(warehouse = name, %error, "a warehouse could not be maintained"),
        Ok(found) if !found.whole || found.failed > 0 => {
            tracing::warn!(
                warehouse = name,
                failed = found.failed,
                notes = ?found.notes,
                "a warehouse could not be maintained as a whole"
            );
        }
        Ok(found) => {
            tracing::info!(
                warehouse = name,
                removed = found.removed,
                saved = found.saved,
                "warehouse maintained"
            );
        }
    }
    Ok(())
}
