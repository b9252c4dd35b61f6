//! One statement, from text to rows, on a thread of its own.
//!
//! Given a [`Session`], a new [`Connection`] and a [`Statement`], hands encoded bytes to a [`Sink`]. Never runs more than it was
//! sent, never what the policy refuses, and never on a connection that another request has used.

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use duck_contract::worker::{Failure, Statement};
use duck_contract::{Code, Format, Params, Role};
use serde_json::Value as Json;

use crate::encode::{self, Encoder};
use crate::fault;
use crate::policy::{self, Reading};
use crate::running::Running;
use crate::session::Session;
use crate::sink::Sink;
use crate::sys::duckdb::{Connection, Error, Kind, Prepared, Rows, Statements, Value};

/// How a statement ended well.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) rows: u64,
    pub(crate) truncated: bool,
    /// Rows that were changed; none where nothing can be.
    pub(crate) affected: Option<u64>,
}

/// Runs the statement to its end, or to `rows_max`, or until `running` says that nobody waits for it. With those before it, it is
/// one transaction, which is made before the answer gets its end. One that names tables is one by itself: else `DuckDB` prepares it in
/// a transaction and runs it in the next, and asks the catalog for each table in both.
pub(crate) fn run(
    session: &Session,
    connection: &Connection,
    statement: &Statement,
    running: &Running,
    sink: &mut Sink,
) -> Result<Outcome, Failure> {
    let read = |sql: &String| session.policy.read(sql, statement.text);
    let several = !statement.before.is_empty();
    let nth = |number: usize| {
        move |failure: Failure| if several { fault::of_several(number, failure) } else { failure }
    };
    let before: Vec<Reading> = statement
        .before
        .iter()
        .enumerate()
        .map(|(i, sql)| read(sql).map_err(nth(i)))
        .collect::<Result<_, _>>()?;
    let last = nth(before.len());
    let reading = read(&statement.sql).map_err(&last)?;
    session.policy.check_parameters(&reading, statement.params.as_ref())?;
    let _registered = running.attach(connection.interrupt())?;
    let by_itself =
        |sql: &str| connection.run(sql).map_err(|e| fault::of_text(&statement.sql, &e, &session.scrub));

    let mut affected = None;
    let together = several || reading.names_tables();
    if together {
        by_itself("BEGIN")?;
    }
    for (number, (sql, reading)) in statement.before.iter().zip(&before).enumerate() {
        let one = One { session, sql, reading, params: None };
        let changed = one.run(connection, |rows, kind| exhaust(rows, kind, running)).map_err(nth(number))?;
        add(&mut affected, changed);
    }
    let one = One { session, sql: &statement.sql, reading: &reading, params: statement.params.as_ref() };
    let answered =
        one.run(connection, |rows, kind| encode(rows, kind, statement, running, sink)).map_err(&last)?;
    let (mut encoder, mut outcome) = answered;
    add(&mut affected, outcome.affected);
    outcome.affected = affected;
    if together && session.policy.role() == Role::Writer {
        by_itself("COMMIT")?;
    }
    encoder.finish(outcome, sink)?;
    Ok(outcome)
}

fn add(sum: &mut Option<u64>, more: Option<u64>) {
    *sum = match (*sum, more) {
        (Some(sum), Some(more)) => Some(sum.saturating_add(more)),
        (one, other) => one.or(other),
    };
}

/// A statement that may be run.
struct One<'r> {
    session: &'r Session,
    sql: &'r str,
    reading: &'r Reading,
    params: Option<&'r Params>,
}

/// Why there are no more rows.
enum Ended {
    Engine(Error),
    Us(Failure),
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Ended::Us(failure)
    }
}

impl One<'_> {
    /// Prepares and executes it, and hands its rows on.
    fn run<T>(
        &self,
        connection: &Connection,
        take: impl FnOnce(&mut Rows<'_>, Kind) -> Result<T, Ended>,
    ) -> Result<T, Failure> {
        let fail = |e: &Error| fault::of_text(self.sql, e, &self.session.scrub);
        let statements = connection.split(self.sql).map_err(|e| fail(&e))?;
        let last = only_one(&statements, self.reading)?;
        for index in 0..last {
            // A PIVOT without a list of values: DuckDB first makes a temporary type of the values.
            let helper = statements.prepare(index).map_err(|e| fail(&e))?;
            policy::check_helper(helper.kind())?;
            drop(helper.execute().map_err(|e| fail(&e))?);
        }
        let prepared = statements.prepare(last).map_err(|e| fail(&e))?;
        self.session.policy.check(self.reading, prepared.kind())?;
        bind(&prepared, self.params)?;
        let mut rows = prepared.execute().map_err(|e| fail(&e))?;
        take(&mut rows, prepared.kind()).map_err(|ended| match ended {
            Ended::Engine(e) => fail(&e),
            Ended::Us(failure) => failure,
        })
    }
}

/// Runs a statement whose rows nobody wants to its end. How many it has changed.
fn exhaust(rows: &mut Rows<'_>, kind: Kind, running: &Running) -> Result<Option<u64>, Ended> {
    let mut changed = None;
    while let Some(batch) = rows.next().map_err(Ended::Engine)? {
        add(&mut changed, count(kind, &batch));
        running.check()?;
    }
    Ok(changed)
}

/// Encodes a statement's rows, up to `rows_max`. The closing part is not written yet.
fn encode(
    rows: &mut Rows<'_>,
    kind: Kind,
    statement: &Statement,
    running: &Running,
    sink: &mut Sink,
) -> Result<(Box<dyn Encoder>, Outcome), Ended> {
    let mut encoder: Box<dyn Encoder> = match statement.format {
        Format::Arrow => Box::new(encode::arrow::ArrowEncoder::start(rows)?),
        Format::Json => Box::new(encode::json::JsonEncoder::start(rows, sink)?),
    };
    let mut outcome = Outcome::default();
    while let Some(batch) = rows.next().map_err(Ended::Engine)? {
        add(&mut outcome.affected, count(kind, &batch));
        let left = usize::try_from(statement.rows_max - outcome.rows).unwrap_or(usize::MAX);
        outcome.truncated = batch.num_rows() > left;
        let batch = if outcome.truncated { batch.slice(0, left) } else { batch };
        outcome.rows += batch.num_rows() as u64;
        running.count(batch.num_rows() as u64);
        encoder.batch(&batch, sink)?;
        if outcome.truncated {
            break;
        }
        running.check()?;
    }
    Ok((encoder, outcome))
}

/// How many rows were changed: all that a statement answers which changes any.
fn count(kind: Kind, batch: &RecordBatch) -> Option<u64> {
    let changes = matches!(kind, Kind::Insert | Kind::Update | Kind::Delete | Kind::Merge | Kind::Create);
    let counts = batch.columns().first()?.as_primitive_opt::<Int64Type>()?;
    if changes { counts.iter().next()??.try_into().ok() } else { None }
}

/// The index of the statement that the text is, behind those that DuckDB made of the same one.
fn only_one(statements: &Statements<'_>, reading: &Reading) -> Result<u64, Failure> {
    match statements.count() {
        0 => Err(fault::ours(Code::EmptyStatement, "There is no statement in `sql`.")),
        n if n == 1 || reading.is_one_statement() => Ok(n - 1),
        n => {
            let sentence = format!("There are {n} statements in `sql`, and one request runs exactly one.");
            Err(fault::ours(Code::MultipleStatements, sentence))
        }
    }
}

fn bind(prepared: &Prepared<'_>, params: Option<&Params>) -> Result<(), Failure> {
    let wrong = |sentence: String| fault::ours(Code::SqlParameters, sentence);
    let names = prepared.parameters();
    let given = match params {
        None => 0,
        Some(Params::Positional(values)) => values.len(),
        Some(Params::Named(values)) => values.len(),
    };
    if given != names.len() {
        return Err(wrong(format!(
            "The statement has {} parameters, and {given} values were sent.",
            names.len()
        )));
    }
    for (index, name) in (1_u64..).zip(&names) {
        let value = match params {
            Some(Params::Positional(values)) => {
                name.parse::<usize>().ok().and_then(|i| values.get(i.checked_sub(1)?))
            }
            Some(Params::Named(values)) => values.get(name.as_str()),
            None => None,
        };
        let Some(value) = value else {
            return Err(wrong(format!("No value was sent for the parameter `${name}`.")));
        };
        let value = value_of(value).ok_or_else(|| {
            wrong(format!("The value for `${name}` is not null, a boolean, a number or a string."))
        })?;
        prepared
            .bind(index, &value)
            .map_err(|e| wrong(format!("The value for `${name}` cannot be bound: {}", e.0)))?;
    }
    Ok(())
}

fn value_of(value: &Json) -> Option<Value> {
    match value {
        Json::Null => Some(Value::Null),
        Json::Bool(b) => Some(Value::Bool(*b)),
        Json::Number(n) => Some(match (n.as_i64(), n.as_f64()) {
            (Some(i), _) => Value::Integer(i),
            (None, Some(d)) if n.is_f64() => Value::Double(d),
            // Larger than 64 bits: DuckDB converts the digits to what the statement needs.
            _ => Value::Text(n.to_string()),
        }),
        Json::String(s) => Some(Value::Text(s.clone())),
        Json::Array(_) | Json::Object(_) => None,
    }
}
