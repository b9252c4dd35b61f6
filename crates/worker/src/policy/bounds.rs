//! How much text, and how deep: what DuckDB's parser and planner are spared.

use duck_contract::Code;
use duck_contract::worker::{Failure, TextLimits};

use super::text::Token;
use crate::fault;

/// Operators in a row, within one pair of brackets.
#[derive(Clone, Copy, Default)]
struct Chain {
    operators: usize,
    arrows: usize,
}

/// What a text has used up so far.
pub(super) struct Bounds {
    limits: TextLimits,
    /// The chains that go on when the open brackets are closed.
    outer: Vec<Chain>,
    chain: Chain,
    branches: usize,
}

impl Bounds {
    pub(super) fn of(limits: TextLimits, bytes: usize) -> Result<Self, Failure> {
        bounded(bytes, limits.sql_bytes_max, "is longer than", "bytes")?;
        Ok(Bounds { limits, outer: Vec::new(), chain: Chain::default(), branches: 0 })
    }

    /// How many brackets are open.
    pub(super) fn depth(&self) -> usize {
        self.outer.len()
    }

    /// Comments lie so deep in each other.
    pub(super) fn comments(&self, depth: usize) -> Result<(), Failure> {
        bounded(depth, self.limits.nesting_max, "nests comments deeper than", "levels")
    }

    /// Counts the next piece; `lower` is it in lower case where it is a word.
    pub(super) fn note(&mut self, token: Token<'_>, lower: &str) -> Result<(), Failure> {
        let limits = self.limits;
        match token {
            Token::Word(_) if matches!(lower, "and" | "or" | "union" | "intersect" | "except") => {
                self.chain = Chain::default();
                self.branches += 1;
                bounded(self.branches, limits.branches_max, "has more than", "ANDs, ORs and UNIONs")?;
            }
            Token::Word(_) if ends_a_chain(lower) => self.chain = Chain::default(),
            Token::Sign(',') => self.chain = Chain::default(),
            Token::Operator("->" | "->>") => {
                self.chain.arrows += 1;
                bounded(
                    self.chain.arrows,
                    limits.arrows_max,
                    "follows a JSON value over more than",
                    "arrows",
                )?;
            }
            Token::Operator(signs) => {
                // Most operators of two signs are one.
                self.chain.operators += signs.len().div_ceil(2);
                let is = "has an expression of more than";
                bounded(self.chain.operators, limits.operators_max, is, "operators")?;
            }
            Token::Sign('(' | '[' | '{') => {
                self.outer.push(std::mem::take(&mut self.chain));
                bounded(self.outer.len(), limits.nesting_max, "nests brackets deeper than", "levels")?;
            }
            Token::Sign(')' | ']' | '}') => self.chain = self.outer.pop().unwrap_or_default(),
            _ => {}
        }
        Ok(())
    }
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

fn bounded(n: usize, max: usize, is: &str, unit: &str) -> Result<(), Failure> {
    if n <= max {
        return Ok(());
    }
    let sentence = format!("The statement {is} {max} {unit}, which costs the engine too much to read.");
    Err(fault::ours(Code::StatementRefused, sentence))
}
