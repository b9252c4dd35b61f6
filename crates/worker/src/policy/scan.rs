//! One pass over a statement's text: its first words, its bounds, and every call and place that has to be looked at.
//!
//! A function can be called only by its name before a bracket, in the text or in a text that `query` and the like are given, and
//! these are read as well. So what is not seen here is not called, whatever quotes, comments, capitals, schemas or letters
//! stand around it.

use std::borrow::Cow;

use duck_contract::Code;
use duck_contract::worker::{Failure, TextLimits};

use super::names::{self, Call, Names};
use super::paths;
use super::text::{Token, Tokens, unquoted};
use super::{Words, never_run, refused};
use crate::fault;

/// SQL in SQL in SQL.
const SQL_DEPTH_MAX: u32 = 3;
/// Longer than any keyword and any name that is looked up.
const NAME_BYTES_MAX: usize = 64;

/// What the text is measured by.
#[derive(Clone, Copy)]
pub(super) struct Rules<'p> {
    pub(super) names: &'p Names,
    /// The warehouse's place, with a slash at its end.
    pub(super) place: &'p str,
    pub(super) limits: TextLimits,
}

/// What was found in a text that may be run.
pub(crate) struct Reading {
    pub(super) words: Words,
    /// Something follows a semicolon.
    pub(super) several: bool,
    /// Parameters name files.
    pub(super) files_by_parameter: bool,
}

/// What a word or literal may stand for, by what is before it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Elsewhere,
    /// After FROM and the like: a table, or a file.
    Relation,
    /// A relation's literal is over. Another one continues it.
    Continued,
}

/// Operators in a row, within one pair of brackets.
#[derive(Clone, Copy, Default)]
struct Chain {
    operators: usize,
    arrows: usize,
}

pub(super) fn scan(sql: &str, rules: Rules<'_>) -> Result<Reading, Failure> {
    scan_at(sql, rules, 0)
}

fn scan_at(sql: &str, rules: Rules<'_>, depth: u32) -> Result<Reading, Failure> {
    let limits = rules.limits;
    bounded(sql.len(), limits.sql_bytes_max, "is longer than", "bytes")?;
    let mut reading = Reading { words: Words::default(), several: false, files_by_parameter: false };
    let mut tokens = Tokens::of(sql);
    let (mut outer, mut chain) = (Vec::<Chain>::new(), Chain::default());
    let (mut place, mut branches, mut ended) = (Place::Elsewhere, 0, false);
    // The word that a bracket would call, and the literal that another one would continue.
    let (mut name, mut literal): (Cow<'_, str>, Cow<'_, str>) = ("".into(), "".into());
    while let Some(token) = tokens.next() {
        bounded(tokens.comments, limits.nesting_max, "nests comments deeper than", "levels")?;
        reading.several |= ended && token != Token::Sign(';');
        reading.words.note(token, outer.len());
        let called = std::mem::take(&mut name);
        let before = std::mem::replace(&mut place, Place::Elsewhere);
        match token {
            Token::Unclear => {
                return refused(
                    "The statement holds a character outside of quotes that can be read in two ways. Put plain blanks between its words.",
                );
            }
            Token::Word(word) => {
                let mut space = [0; NAME_BYTES_MAX];
                let lower = lower(word, &mut space);
                refuse_view(lower, rules)?;
                match lower {
                    "and" | "or" | "union" | "intersect" | "except" => {
                        branches += 1;
                        chain = Chain::default();
                    }
                    _ if ends_a_chain(lower) => chain = Chain::default(),
                    _ => {}
                }
                if begins_a_relation(lower) {
                    place = Place::Relation;
                }
                name = word.into();
            }
            Token::Quoted(raw) => {
                let said = unquoted(raw);
                let mut space = [0; NAME_BYTES_MAX];
                refuse_view(lower(&said, &mut space), rules)?;
                if before == Place::Relation {
                    paths::within(&said, rules.place)?;
                }
                name = said;
            }
            Token::Text(text) => {
                if before == Place::Continued {
                    literal = (literal.into_owned() + &text.value()).into();
                } else {
                    literal = text.value();
                }
                if before != Place::Elsewhere {
                    let mut space = [0; NAME_BYTES_MAX];
                    refuse_view(lower(&literal, &mut space), rules)?;
                    paths::within(&literal, rules.place)?;
                    place = Place::Continued;
                }
            }
            Token::Operator(signs) => {
                if matches!(signs, "->" | "->>") {
                    chain.arrows += 1;
                } else {
                    // Most operators of two signs are one.
                    chain.operators += signs.len().div_ceil(2);
                }
            }
            Token::Sign('(') => {
                // `FROM ('file' JOIN …)`
                place = before;
                call(&called, &tokens, rules, depth, &mut reading)?;
                outer.push(std::mem::take(&mut chain));
            }
            Token::Sign('[' | '{') => outer.push(std::mem::take(&mut chain)),
            Token::Sign(')' | ']' | '}') => chain = outer.pop().unwrap_or_default(),
            Token::Sign(',') => {
                chain = Chain::default();
                place = Place::Relation;
            }
            Token::Sign(';') => ended = true,
            Token::Sign(_) | Token::Number => {}
        }
        bounded(outer.len(), limits.nesting_max, "nests brackets deeper than", "levels")?;
        bounded(chain.operators, limits.operators_max, "has an expression of more than", "operators")?;
        bounded(chain.arrows, limits.arrows_max, "follows a JSON value over more than", "arrows")?;
        bounded(branches, limits.branches_max, "has more than", "ANDs, ORs and UNIONs")?;
    }
    bounded(tokens.comments, limits.nesting_max, "nests comments deeper than", "levels")?;
    Ok(reading)
}

fn bounded(n: usize, max: usize, is: &str, unit: &str) -> Result<(), Failure> {
    if n <= max {
        return Ok(());
    }
    let sentence = format!("The statement {is} {max} {unit}, which costs the engine too much to read.");
    Err(fault::ours(Code::StatementRefused, sentence))
}

/// In lower case, or nothing where it is too long to be known.
fn lower<'b>(word: &str, space: &'b mut [u8; NAME_BYTES_MAX]) -> &'b str {
    let Some(space) = space.get_mut(..word.len()) else { return "" };
    space.copy_from_slice(word.as_bytes());
    space.make_ascii_lowercase();
    std::str::from_utf8(space).unwrap_or_default()
}

/// Words that no operand of one chain of operators crosses.
fn ends_a_chain(word: &str) -> bool {
    matches!(
        word,
        "select"
            | "from"
            | "where"
            | "when"
            | "then"
            | "else"
            | "on"
            | "having"
            | "by"
            | "limit"
            | "join"
            | "not"
    )
}

fn begins_a_relation(word: &str) -> bool {
    matches!(
        word,
        "from"
            | "join"
            | "table"
            | "describe"
            | "desc"
            | "summarize"
            | "show"
            | "pivot"
            | "pivot_wider"
            | "pivot_longer"
            | "unpivot"
            | "using"
            | "into"
            | "update"
            | "only"
    )
}

fn refuse_view(name: &str, rules: Rules<'_>) -> Result<(), Failure> {
    if rules.names.is_refused_view(name) { refused(&names::reason(name)) } else { Ok(()) }
}

/// Looks at the call of this name, whose arguments come next.
fn call(
    name: &str,
    arguments: &Tokens<'_>,
    rules: Rules<'_>,
    depth: u32,
    reading: &mut Reading,
) -> Result<(), Failure> {
    let mut space = [0; NAME_BYTES_MAX];
    let name = lower(name, &mut space);
    let Some(call) = rules.names.call(name) else { return Ok(()) };
    let argument = match call {
        Call::Refused => return refused(&names::reason(name)),
        _ => Argument::first(arguments.clone()),
    };
    match (call, argument) {
        (Call::Files, Argument::Texts(texts)) => {
            texts.iter().try_for_each(|path| paths::check(path, rules.place))
        }
        (Call::Listing, Argument::Texts(texts)) => {
            texts.iter().try_for_each(|path| paths::listing(path, rules.place))
        }
        (Call::Files | Call::Listing, Argument::Parameter) => {
            reading.files_by_parameter = true;
            Ok(())
        }
        (Call::Files | Call::Listing, _) => refused(&format!(
            "The files of {name} are written out as a text, as a list of texts, or are a parameter."
        )),
        (Call::Table, Argument::Texts(texts)) => texts
            .iter()
            .filter(|text| text.contains(['/', ':']))
            .try_for_each(|path| paths::check(path, rules.place)),
        (Call::TableNames, Argument::Texts(texts)) => texts.iter().try_for_each(|text| {
            paths::within(text, rules.place)?;
            let last = text.rsplit('.').next().unwrap_or_default().trim_matches('"');
            let mut space = [0; NAME_BYTES_MAX];
            refuse_view(lower(last, &mut space), rules)
        }),
        (Call::Sql, Argument::Texts(texts)) => texts.iter().try_for_each(|sql| {
            if depth == SQL_DEPTH_MAX {
                return refused("SQL is not read that deep within SQL.");
            }
            let inner = scan_at(sql, rules, depth + 1)?;
            reading.files_by_parameter |= inner.files_by_parameter;
            never_run(&inner.words).map_or(Ok(()), refused)
        }),
        (Call::Setting, Argument::Texts(texts)) if texts.iter().all(|name| names::is_plain_setting(name)) => {
            Ok(())
        }
        (Call::Setting, _) => refused(
            "Of the settings only those that say what a statement means or may use can be asked for, like \
             current_setting('TimeZone').",
        ),
        (Call::Table, Argument::Names) | (Call::Refused, _) => Ok(()),
        (Call::Table | Call::TableNames | Call::Sql, _) => {
            refused(&format!("What {name} is given is written out as one text."))
        }
    }
}

/// What the first argument of a call is.
enum Argument<'s> {
    /// A literal, or a list of them.
    Texts(Vec<Cow<'s, str>>),
    /// A name, or several with dots.
    Names,
    /// A value that is sent beside the statement.
    Parameter,
    Other,
}

impl<'s> Argument<'s> {
    fn first(mut tokens: Tokens<'s>) -> Self {
        let argument = match tokens.next() {
            Some(Token::Text(text)) => Argument::Texts(vec![text.value()]),
            Some(Token::Sign('[')) => match list(&mut tokens) {
                Some(texts) => Argument::Texts(texts),
                None => return Argument::Other,
            },
            Some(Token::Sign('?')) => {
                let mut numbered = tokens.clone();
                if numbered.next() == Some(Token::Number) {
                    tokens = numbered;
                }
                Argument::Parameter
            }
            Some(Token::Sign('$')) => match tokens.next() {
                Some(Token::Number | Token::Word(_)) => Argument::Parameter,
                _ => return Argument::Other,
            },
            Some(Token::Word(_) | Token::Quoted(_)) => loop {
                match tokens.next() {
                    Some(Token::Word(_) | Token::Quoted(_) | Token::Sign('.')) => {}
                    Some(Token::Sign(',' | ')')) => return Argument::Names,
                    _ => return Argument::Other,
                }
            },
            _ => return Argument::Other,
        };
        if matches!(tokens.next(), Some(Token::Sign(',' | ')'))) { argument } else { Argument::Other }
    }
}

/// The literals up to the bracket's end.
fn list<'s>(tokens: &mut Tokens<'s>) -> Option<Vec<Cow<'s, str>>> {
    let mut texts = Vec::new();
    loop {
        let Some(Token::Text(text)) = tokens.next() else { return None };
        texts.push(text.value());
        match tokens.next() {
            Some(Token::Sign(',')) => {}
            Some(Token::Sign(']')) => return Some(texts),
            _ => return None,
        }
    }
}
