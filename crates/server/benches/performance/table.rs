//! Figures on standard output.

use std::io::Write;
use std::time::Duration;

use crate::Failed;

/// One line.
pub(crate) fn say(line: &str) -> Result<(), Failed> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}

/// A Markdown table under a heading.
pub(crate) fn print(heading: &str, columns: &[&str], rows: &[Vec<String>]) -> Result<(), Failed> {
    say(&format!("### {heading}\n\n| {} |\n|{}", columns.join(" | "), "---|".repeat(columns.len())))?;
    for row in rows {
        say(&format!("| {} |", row.join(" | ")))?;
    }
    say("")
}

/// What lies at a share of the sorted values, such as 0.5 for the median.
pub(crate) fn quantile(values: &mut [Duration], share: f64) -> Duration {
    values.sort_unstable();
    let index = ((values.len().saturating_sub(1)) as f64 * share).round() as usize;
    values.get(index).copied().unwrap_or_default()
}

/// The median.
pub(crate) fn median(values: &[Duration]) -> Duration {
    quantile(&mut values.to_vec(), 0.5)
}

/// Milliseconds with one digit.
pub(crate) fn ms(duration: Duration) -> String {
    format!("{:.1}", duration.as_secs_f64() * 1e3)
}

/// MB of kB with one digit.
pub(crate) fn mb(kb: u64) -> String {
    format!("{:.1}", kb as f64 / 1024.0)
}
