//! DuckDB alone: the program `bare.py` beside this file, in the tests' Python.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::Failed;
use crate::world::{REGION, Server, Weed, root, warehouse};

/// A warm process. It ends with its standard input.
pub(crate) struct Bare {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    catalog_url: String,
    token: String,
}

/// What statements took.
pub(crate) struct Took {
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
    pub(crate) rows: Value,
}

impl Bare {
    /// With the store's key, and with a catalog token that it need not fetch.
    pub(crate) async fn start(server: &Server, store: &Weed, threads: u32) -> Result<Bare, Failed> {
        let mut child = Command::new(root().join(".venv/bin/python"))
            .arg(root().join("crates/server/benches/performance/bare.py"))
            .arg(root().join("third_party/duckdb/extensions/v1.5.5/linux_amd64"))
            .arg(threads.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().ok_or("no standard output")?);
        let catalog_url = server.catalog_url.clone();
        let mut bare = Bare { child, stdin, stdout, catalog_url, token: server.catalog_token().await? };
        bare.answer()?;
        let (key_id, secret, endpoint) = (Weed::KEY_ID, Weed::SECRET, &store.endpoint);
        bare.run(&[format!(
            "CREATE SECRET s (TYPE s3, KEY_ID '{key_id}', SECRET '{secret}', ENDPOINT '{endpoint}', URL_STYLE 'path', \
             USE_SSL false, REGION '{REGION}')"
        )])?;
        Ok(bare)
    }

    /// The statement that attaches a workspace's warehouse under its name.
    pub(crate) fn attach(&self, workspace: &str) -> String {
        format!(
            "ATTACH '{}' AS {workspace} (TYPE iceberg, ENDPOINT '{}', TOKEN '{}', ACCESS_DELEGATION_MODE 'none', READ_ONLY true)",
            warehouse(workspace),
            self.catalog_url,
            self.token
        )
    }

    /// Runs statements one after another.
    pub(crate) fn run(&mut self, statements: &[String]) -> Result<Took, Failed> {
        let stdin = self.stdin.as_mut().ok_or("no standard input")?;
        writeln!(stdin, "{}", json!({"statements": statements}))?;
        let answer = self.answer()?;
        let seconds = |name: &str| Duration::from_secs_f64(answer[name].as_f64().unwrap_or_default());
        Ok(Took { wall: seconds("wall"), cpu: seconds("cpu"), rows: answer["rows"].clone() })
    }

    fn answer(&mut self) -> Result<Value, Failed> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        if line.is_empty() {
            return Err("bare DuckDB ended".into());
        }
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.stdin.take();
        let _ = self.child.wait();
    }
}
