//! One pass over a statement's text: its first words, its bounds, and every call and place that has to be looked at.
//!
//! A function can be called only by its name before a bracket, in the text or in a text that `query` and the like are given, and
//! these are read as well. So what is not seen here is not called, whatever quotes, comments, capitals, schemas or letters
//! stand around it.

use std::borrow::Cow;

use duck_contract::worker::{Failure, TextLimits};

use super::bounds::Bounds;
use super::names::{self, Call, Names};
use super::paths;
use super::text::{Token, Tokens, unquoted};
use super::{Words, never_run, refused};

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
    /// Some word is one after which a table is named, or may be.
    pub(super) tables: bool,
    /// Parameters name files.
    pub(super) files_by_parameter: bool,
}

/// What a piece may stand for, by what is before it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Elsewhere,
    /// After FROM and the like: a table, or a file.
    Relation,
    /// A relation's literal is over. Another one continues it.
    Continued,
    /// After INTO and CREATE TABLE: a name, behind which a bracket calls nothing.
    Target,
    /// That name is over, or a part of it.
    Named,
    /// After any other dot.
    Dotted,
}

pub(super) fn scan(sql: &str, rules: Rules<'_>) -> Result<Reading, Failure> {
    scan_at(sql, rules, 0)
}

fn scan_at(sql: &str, rules: Rules<'_>, depth: u32) -> Result<Reading, Failure> {
    let mut bounds = Bounds::of(rules.limits, sql.len())?;
    let mut reading =
        Reading { words: Words::default(), several: false, tables: false, files_by_parameter: false };
    let mut tokens = Tokens::of(sql);
    let (mut place, mut ended) = (Place::Elsewhere, false);
    // The word that a bracket would call and where it stands, and the literal that another one would continue.
    let (mut name, mut stands): (Cow<'_, str>, _) = ("".into(), Place::Elsewhere);
    let mut literal: Cow<'_, str> = "".into();
    while let Some(token) = tokens.next() {
        bounds.comments(tokens.comments)?;
        reading.several |= ended && token != Token::Sign(';');
        reading.words.note(token, bounds.depth());
        let mut space = [0; NAME_BYTES_MAX];
        let word = if let Token::Word(word) = token { lower(word, &mut space) } else { "" };
        bounds.note(token, word)?;
        let before = std::mem::replace(&mut place, Place::Elsewhere);
        let called = std::mem::take(&mut name);
        match token {
            Token::Unclear => return refused(UNCLEAR),
            Token::Word(written) => {
                refuse_view(word, rules)?;
                place = match (before, word) {
                    (Place::Target, "if" | "not" | "exists") => Place::Target,
                    (Place::Target, _) => Place::Named,
                    (_, "into") => Place::Target,
                    (_, "table") if reading.words.get(0) == Some("CREATE") => Place::Target,
                    _ if begins_a_relation(word) => Place::Relation,
                    _ => Place::Elsewhere,
                };
                reading.tables |= matches!(place, Place::Relation | Place::Target);
                (name, stands) = (written.into(), before);
            }
            Token::Quoted(raw) => {
                let said = unquoted(raw);
                look_at_relation(&said, rules)?;
                if before == Place::Target {
                    place = Place::Named;
                }
                (name, stands) = (said, before);
            }
            Token::Text(text) if matches!(before, Place::Relation | Place::Continued) => {
                literal = match before {
                    Place::Continued => (literal.into_owned() + &text.value()).into(),
                    _ => text.value(),
                };
                look_at_relation(&literal, rules)?;
                place = Place::Continued;
            }
            Token::Sign('(') if before != Place::Named => {
                // `FROM ('file' JOIN …)`
                place = before;
                call((&called, stands), &tokens, rules, depth, &mut reading)?;
            }
            Token::Sign(',') => place = Place::Relation,
            Token::Sign('.') if before == Place::Named => place = Place::Target,
            Token::Sign('.') => place = Place::Dotted,
            Token::Sign(';') => ended = true,
            Token::Text(_) | Token::Operator(_) | Token::Sign(_) | Token::Number => {}
        }
    }
    bounds.comments(tokens.comments)?;
    Ok(reading)
}

const UNCLEAR: &str = "The statement holds a character outside of quotes that can be read in two ways. Put plain blanks \
                       between its words.";

/// Looks at what may name a view or a file.
fn look_at_relation(said: &str, rules: Rules<'_>) -> Result<(), Failure> {
    let mut space = [0; NAME_BYTES_MAX];
    refuse_view(lower(said, &mut space), rules)?;
    paths::within(said, rules.place)
}

/// In lower case, or nothing where it is too long to be known.
fn lower<'b>(word: &str, space: &'b mut [u8; NAME_BYTES_MAX]) -> &'b str {
    let Some(space) = space.get_mut(..word.len()) else { return "" };
    space.copy_from_slice(word.as_bytes());
    space.make_ascii_lowercase();
    std::str::from_utf8(space).unwrap_or_default()
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
            | "update"
            | "only"
    )
}

fn refuse_view(name: &str, rules: Rules<'_>) -> Result<(), Failure> {
    if rules.names.is_refused_view(name) { refused(&names::reason(name)) } else { Ok(()) }
}

/// Looks at the call of this name in this place, whose arguments come next.
fn call(
    (name, stands): (&str, Place),
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
        // `a GLOB ('*.csv')` is an operator.
        Call::Listing if !matches!(stands, Place::Relation | Place::Dotted) => return Ok(()),
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
            look_at_relation(text.rsplit('.').next().unwrap_or_default().trim_matches('"'), rules)
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
