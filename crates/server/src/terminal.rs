//! What a command tells: lines on standard output, progress on a terminal.

use std::io::{self, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::{Value, json};

/// A bar that goes when this is dropped, and lines that do not run into it.
pub(crate) struct Terminal {
    /// Hidden where standard error is no terminal.
    pub(crate) bar: ProgressBar,
}

impl Terminal {
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{msg} [{bar:40}] {pos}/{len} {elapsed}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(200));
        Terminal { bar }
    }

    pub(crate) fn say(&self, text: &str) -> io::Result<()> {
        self.bar.suspend(|| {
            let mut out = io::stdout();
            writeln!(out, "{text}")?;
            out.flush()
        })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A line of JSON that says what it is.
pub(crate) fn tagged(kind: &str, what: &impl Serialize) -> io::Result<String> {
    let mut line = json!({"kind": kind});
    if let (Value::Object(line), Value::Object(what)) = (&mut line, serde_json::to_value(what)?) {
        line.extend(what);
    }
    Ok(line.to_string())
}
