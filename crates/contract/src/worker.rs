//! What the front and an engine say to each other.
//!
//! The template that workers are copied from is started with a [`Common`], in JSON. A worker's birth is one exchange on its control
//! socket: the front sends a [`Cell`] and, when it knows what the worker is for, a [`Spec`], each as one line of JSON; the worker
//! answers one [`Report`]. From then on the socket carries nothing; its end means
//! the worker's end. Statements go over HTTP on the worker's Unix socket: `POST /statement` with a [`Statement`], answered by the
//! bytes that the client gets or by a [`Failure`], which comes as a trailer when bytes were sent already; `DELETE /statement/{id}`
//! interrupts one and answers when it has ended; `GET /statements` tells how far all of them are, as a list of [`Progress`].

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::query::ChangeKind;
use crate::{Code, Format, Params};

/// What every engine calls the warehouse that it has: in its SQL, and at the catalog door, where it is `warehouse` and `prefix` in one.
/// Which one that is the door knows.
pub const CATALOG: &str = "lake";

/// Trailer of an answer that failed after its first bytes, in place of the counts: a [`Failure`].
pub const FAILURE_TRAILER: &str = "x-failure";

/// A statement that goes on for longer lets everybody else's work go first, its own tenant's short statements included. Its thread takes
/// no other statement, so the next one pays for a new thread, 0.6 ms.
pub const SHORT: Duration = Duration::from_millis(100);

/// What a worker may do. It is decided at the doors; the worker is only told so that it can say it more kindly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// May read its warehouse.
    Reader,
    /// May read and change its warehouse.
    Writer,
}

impl Role {
    /// The role in lower case, for logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Reader => "reader",
            Role::Writer => "writer",
        }
    }
}

/// How much sandbox is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxMode {
    /// All of it, or the worker does not start.
    #[default]
    Require,
    /// As much as the kernel offers.
    BestEffort,
}

/// How much sandbox there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxLevel {
    /// Files and connections are confined by Landlock.
    pub landlock: bool,
    /// System calls are filtered by seccomp.
    pub seccomp: bool,
    /// The worker runs as another user than the front.
    pub uid_dropped: bool,
}

/// A worker's credentials. They open two doors on loopback for as long as the worker lives, and nothing else; and those only from
/// the moment when the front has told the doors which warehouse the worker is for.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keys {
    /// The bearer token for the catalog door.
    pub bearer: String,
    /// The key id for the storage door.
    pub access_key_id: String,
    /// Its secret.
    pub secret_access_key: String,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

/// What is the same for all workers of a server: the template has it behind it when it is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Common {
    /// The folder of DuckDB's extensions.
    pub extensions: PathBuf,
    /// Among how many threads the work is divided.
    pub threads: u32,
    /// The front's pid. The template ends with it.
    pub front: u32,
    /// The catalog door's port on 127.0.0.1.
    pub catalog_port: u16,
    /// The schema whose tables need no schema name.
    pub default_schema: String,
    /// `http_timeout`, seconds; longer than the catalog door takes to settle a change.
    pub http_timeout_s: u64,
    /// DuckDB's `memory_limit` for most of them, bytes.
    pub memory_bytes: u64,
    /// `max_temp_directory_size` for most of them, bytes.
    pub spill_bytes_max: u64,
}

/// What a worker is confined to, and what else is settled before anybody knows which warehouse it will be for. It is told first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// The worker's own directory: working directory and place for spilled data.
    pub directory: String,
    /// The catalog door's port on 127.0.0.1.
    pub catalog_port: u16,
    /// The storage door's port on 127.0.0.1.
    pub storage_port: u16,
    /// A port on 127.0.0.1 on which something listens that a worker must not reach; for the self-test.
    pub forbidden_port: u16,
    /// DuckDB's `memory_limit`, bytes.
    pub memory_bytes: u64,
    /// `RLIMIT_DATA`, bytes.
    pub memory_bytes_max: u64,
    /// `max_temp_directory_size`, bytes.
    pub spill_bytes_max: u64,
    /// Threads for its statements, at most as many as the template divides the work among.
    pub threads: u32,
    /// User and group to become, where the front is root.
    pub uid: Option<u32>,
    /// How much sandbox is needed.
    pub sandbox: SandboxMode,
    /// Its own, at the doors.
    pub keys: Keys,
}

/// Which warehouse a worker is for: told once, to a worker that is confined.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    /// The role.
    pub role: Role,
    /// The bucket in which the warehouse lies.
    pub bucket: String,
    /// The warehouse's prefix in the bucket: empty, or with a trailing slash.
    pub prefix: String,
}

/// A worker's one report: its answer to its [`Spec`], or, before that, why it cannot become anybody's.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum Report {
    /// Attached, locked down, tested: statements are welcome.
    Ready {
        /// What confines it.
        sandbox: SandboxLevel,
        /// Memory that all workers share and that `/proc` counts as each one's: the engine's code in large pages.
        code_bytes: u64,
    },
    /// It could not get there, and ends.
    Failed(Failure),
}

/// Header or trailer of a worker's answer: how many rows its changes affected.
pub const AFFECTED_HEADER: &str = "x-rows-affected";

/// One statement for a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Statement {
    /// The request's id; names the statement for `DELETE`.
    pub id: String,
    /// The SQL as the client sent it.
    pub sql: String,
    /// What is run before it in the same transaction. Where there is none, it is a transaction of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<String>,
    /// Values for its parameters.
    pub params: Option<Params>,
    /// How to encode the answer.
    pub format: Format,
    /// After so many rows the answer ends as truncated.
    pub rows_max: u64,
    /// Somebody may want to know how far it is. To watch it costs a third of a millisecond.
    #[serde(default)]
    pub watched: bool,
    /// What its text may be.
    #[serde(default)]
    pub text: TextLimits,
}

/// What a statement is about to do, as its text says: for turns and for an early refusal. The doors decide.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// What it changes, in the order of the text.
    pub targets: Vec<Target>,
    /// It changes tables only by inserting, and reads none of those: to run it again means the same.
    pub appends: bool,
}

/// Something that a statement changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The schema, as written; the default schema where none is.
    pub schema: String,
    /// The table; none where it is the schema itself.
    pub table: Option<String>,
    /// What is done to it.
    pub kind: ChangeKind,
}

/// How much text, and how deep, an engine takes to read. What is beyond it costs DuckDB's parser or planner more than any question
/// is worth: some cost grows with the square or the cube, some doubles with every step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TextLimits {
    /// The statement's length, bytes.
    pub sql_bytes_max: usize,
    /// Brackets within brackets, comments within comments.
    pub nesting_max: usize,
    /// Operators in one expression without AND, OR, a comma or brackets between them.
    pub operators_max: usize,
    /// The same for `->` and `->>`: each doubles what the parser tries.
    pub arrows_max: usize,
    /// AND, OR, UNION, INTERSECT and EXCEPT in the whole statement.
    pub branches_max: usize,
}

impl Default for TextLimits {
    fn default() -> Self {
        TextLimits {
            sql_bytes_max: 4 << 20,
            nesting_max: 200,
            operators_max: 250,
            arrows_max: 16,
            branches_max: 5_000,
        }
    }
}

/// How far a statement is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The statement.
    pub id: String,
    /// Rows that were encoded so far.
    pub rows: u64,
    /// DuckDB's own guess, 0 to 100; none where it has no idea.
    pub percent: Option<f64>,
}

/// Why a worker did not answer a statement (the body, with the code's status), or did not start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Why, for machines.
    pub code: Code,
    /// Why, for the client. Holds nothing that lies outside the warehouse.
    pub message: String,
    /// Where in the SQL, in characters from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// The worker should not be used again: out of memory, internal error.
    #[serde(default)]
    pub worn: bool,
    /// What happened in the engine's words, for the log only.
    #[serde(default)]
    pub detail: String,
}
