//! Answers statements with what the attacker did: a statement is a plan, as JSON.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use duck_contract::worker::Statement;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::attempts::{self, Plan};
use crate::session::Session;
use crate::sys::process;

/// Beyond what any answer here has.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Order {
    /// What was stolen.
    Loot,
    /// Everything that a process can try.
    Try(Plan),
    /// Bytes to send to a port, and what comes back.
    Send(Vec<(u16, String)>),
    /// One attempt, which may be the last.
    Die(String),
}

/// As the worker's own has one.
pub(crate) fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().build()
}

pub(crate) fn forever(_: Runtime, session: Session, listener: UnixListener) -> ! {
    while let Ok((stream, _)) = listener.accept() {
        let _ = answer(&session, &stream);
    }
    process::exit_now(1)
}

fn answer(session: &Session, mut stream: &UnixStream) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut length, mut asks_intent) = (0, false);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        asks_intent |= line.starts_with("POST /intent ");
        let line = line.to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    if asks_intent {
        // It says that it changes nothing, which nobody believes.
        let body = json!({"targets": [], "appends": true}).to_string();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
        return write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    }
    let order = serde_json::from_slice::<Statement>(&body).ok();
    let order = order.and_then(|statement| serde_json::from_str::<Order>(&statement.sql).ok());
    let rows = match order {
        Some(Order::Loot) => loot(session),
        Some(Order::Try(plan)) => json!(attempts::all(&plan)),
        Some(Order::Send(requests)) => requests.iter().map(|(port, bytes)| send(*port, bytes)).collect(),
        Some(Order::Die(how)) => json!([attempts::last(&how)]),
        // What the development server asks at its start.
        None => json!([]),
    };
    let body = json!({"columns": [], "rows": rows, "row_count": 0, "truncated": false}).to_string();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-row-count: 0\r\nx-truncated: false\r\nconnection: close";
    write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn loot(session: &Session) -> Value {
    json!({"spec": session.spec, "cell": session.cell, "pid": std::process::id()})
}

fn send(port: u16, bytes: &str) -> Value {
    let exchange = || -> io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        // Whoever refuses may have hung up already.
        let _ = stream.write_all(bytes.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer);
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    json!(exchange().unwrap_or_else(|e| e.to_string()))
}
