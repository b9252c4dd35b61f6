//! Lines that hold each other. Plain: no I/O.
//!
//! Each line ends with the SHA-256 of the line before's and its own text. Whoever changes, removes or swaps lines has to write all that
//! follow anew; that they did shows by comparing with a hash that was noted elsewhere. The first line of a file names the hash on
//! which it goes on, so that a file can be read alone.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Deserialize;
use sha2::{Digest, Sha256};

/// What the first line of all goes on from.
const NOTHING: &str = "0000000000000000000000000000000000000000000000000000000000000000";
const HASH_MARK: &str = ",\"hash\":\"";
const LINE_END: &str = "\"}";
/// Statements that have begun and not ended, while a chain is read.
const OPEN_MAX: usize = 1 << 20;

/// The last line so far.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(super) struct Chain {
    /// Its number, from 1.
    pub(super) seq: u64,
    /// Its hash, in hexadecimal digits.
    pub(super) hash: String,
}

impl Chain {
    /// With no line.
    pub(super) fn new() -> Self {
        Chain { seq: 0, hash: NOTHING.to_owned() }
    }

    /// After a line, by what that says of itself.
    pub(super) fn after(line: &str) -> Option<Self> {
        let (text, hash) = unsealed(line)?;
        let seq = serde_json::from_str::<Said>(&text).ok()?.seq;
        Some(Chain { seq, hash: hash.to_owned() })
    }

    /// The next line, for a JSON object that is not empty: with its number, its hash and its end.
    pub(super) fn seal(&mut self, json: &str) -> String {
        self.seq += 1;
        let mut line = format!("{{\"seq\":{},{}", self.seq, json.get(1..).unwrap_or("}"));
        self.hash = hash(&self.hash, &line);
        line.truncate(line.len() - 1);
        for part in [HASH_MARK, &self.hash, LINE_END, "\n"] {
            line.push_str(part);
        }
        line
    }
}

fn hash(previous: &str, text: &str) -> String {
    let digest = Sha256::new().chain_update(previous).chain_update(text).finalize();
    let mut hex = String::with_capacity(64);
    for byte in digest {
        // Writing to memory does not fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

/// The text that was hashed, and its hash.
fn unsealed(line: &str) -> Option<(String, &str)> {
    let (text, hash) = line.strip_suffix(LINE_END)?.rsplit_once(HASH_MARK)?;
    let sound = hash.len() == NOTHING.len() && hash.bytes().all(|b| b.is_ascii_hexdigit());
    sound.then(|| (format!("{text}}}"), hash))
}

/// What a line says of itself, as far as a chain is concerned.
#[derive(Deserialize)]
struct Said {
    seq: u64,
    event: String,
    #[serde(default)]
    previous: Option<String>,
    #[serde(default)]
    workspace: String,
    #[serde(default)]
    request_id: String,
    #[serde(default)]
    count: u64,
}

/// Why a line does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// It is not one that the server has written.
    #[error("this is no line of an audit file")]
    Foreign,
    /// Files begin with a line that says so.
    #[error("the file's first lines are missing")]
    NoBeginning,
    /// Its hash is not that of its text and the line before.
    #[error("this line was changed, or the line before it changed, removed or put elsewhere")]
    Hash,
    /// There is no end of line.
    #[error("this line is not whole: the server was lost while it wrote, or the file was cut")]
    Torn,
}

/// What was found in lines that hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Lines.
    pub lines: u64,
    /// The number of the first.
    pub first: u64,
    /// The number of the last.
    pub last: u64,
    /// The hash of the last.
    pub head: String,
    /// Records that the server could not write, as it says itself.
    pub lost: u64,
    /// Lines that were torn and are told as such.
    pub torn: u64,
    /// Whether the wanted hash is that of a line.
    pub has_wanted: bool,
    /// Statements that have begun and not ended: the workspace and the request's id.
    pub unended: Vec<(String, String)>,
}

/// Reads lines in their order.
#[derive(Default)]
pub(super) struct Walk {
    chain: Option<Chain>,
    found: Found,
    wanted: String,
    open: BTreeMap<(String, String), u64>,
}

impl Walk {
    /// Notes whether there is a line of this hash.
    pub(super) fn looking_for(wanted: &str) -> Self {
        Walk { wanted: wanted.to_lowercase(), ..Walk::default() }
    }

    /// One line without its end; the first of a file has to say so.
    pub(super) fn line(&mut self, line: &str, first_of_file: bool) -> Result<(), Broken> {
        let (text, stated) = unsealed(line).ok_or(Broken::Foreign)?;
        let said: Said = serde_json::from_str(&text).map_err(|_| Broken::Foreign)?;
        if first_of_file && said.event != "file" {
            return Err(Broken::NoBeginning);
        }
        // The first of all has nothing before it that could be looked at: it is taken at its word.
        let before = match (&self.chain, said.previous) {
            (Some(chain), _) => chain.clone(),
            (None, Some(previous)) => Chain { seq: said.seq.saturating_sub(1), hash: previous },
            (None, None) => return Err(Broken::NoBeginning),
        };
        if hash(&before.hash, &text) != stated || said.seq != before.seq + 1 {
            return Err(Broken::Hash);
        }
        self.chain = Some(Chain { seq: said.seq, hash: stated.to_owned() });
        self.found.lines += 1;
        if self.found.lines == 1 {
            self.found.first = said.seq;
        }
        self.found.has_wanted |= stated == self.wanted;
        match said.event.as_str() {
            "lost" => self.found.lost += said.count,
            "torn" => self.found.torn += 1,
            "start" if self.open.len() < OPEN_MAX => {
                self.open.insert((said.workspace, said.request_id), said.seq);
            }
            "end" => drop(self.open.remove(&(said.workspace, said.request_id))),
            _ => {}
        }
        Ok(())
    }

    /// What was found.
    pub(super) fn end(self) -> Found {
        let mut unended: Vec<_> = self.open.into_iter().collect();
        unended.sort_by_key(|(_, seq)| *seq);
        let unended = unended.into_iter().map(|(statement, _)| statement).collect();
        let Chain { seq, hash } = self.chain.unwrap_or_else(Chain::new);
        Found { last: seq, head: hash, unended, ..self.found }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(texts: &[String]) -> Vec<String> {
        let mut chain = Chain::new();
        let mut lines = vec![chain.seal(&format!("{{\"event\":\"file\",\"previous\":\"{NOTHING}\"}}"))];
        lines.extend(texts.iter().map(|text| {
            chain.seal(
                &serde_json::json!({"event": "start", "statement": text, "request_id": text}).to_string(),
            )
        }));
        lines.iter().map(|line| line.trim_end_matches('\n').to_owned()).collect()
    }

    /// The first line that does not hold.
    fn verified(lines: &[String]) -> Result<Found, usize> {
        let mut walk = Walk::default();
        for (at, line) in lines.iter().enumerate() {
            walk.line(line, at == 0).map_err(|_| at)?;
        }
        Ok(walk.end())
    }

    proptest! {
        #[test]
        fn what_was_written_holds_and_goes_on_from_any_line(texts in prop::collection::vec(".{0,40}", 1..12)) {
            let lines = written(&texts);
            let found = verified(&lines).unwrap();
            prop_assert_eq!((found.lines, found.first, found.last), (lines.len() as u64, 1, lines.len() as u64));
            let mut chain = Chain::after(lines.last().unwrap()).unwrap();
            prop_assert_eq!(&chain.hash, &found.head);
            let next = chain.seal("{\"event\":\"end\"}");
            let more = [lines, vec![next.trim_end().to_owned()]].concat();
            prop_assert!(verified(&more).is_ok());
        }

        #[test]
        fn one_changed_byte_is_found_where_it_is(
            texts in prop::collection::vec("[ -~]{0,20}", 2..8), at: prop::sample::Index, byte: prop::sample::Index, new in b' '..b'~'
        ) {
            let mut lines = written(&texts);
            let at = at.index(lines.len());
            let mut bytes = lines[at].clone().into_bytes();
            let byte = byte.index(bytes.len());
            prop_assume!(bytes[byte] != new);
            bytes[byte] = new;
            lines[at] = String::from_utf8(bytes).unwrap();
            prop_assert_eq!(verified(&lines).unwrap_err(), at);
        }

        #[test]
        fn a_line_that_is_removed_doubled_or_moved_is_found(
            texts in prop::collection::vec("[a-z]{0,20}", 3..8), at: prop::sample::Index, how in 0..3
        ) {
            let mut lines = written(&texts);
            // What the last line was can only be known elsewhere.
            let at = at.index(lines.len() - 1);
            match how {
                0 => drop(lines.remove(at)),
                1 => lines.insert(at, lines[at].clone()),
                _ => lines.swap(at, at + 1),
            }
            prop_assert!(verified(&lines).is_err());
        }
    }

    #[test]
    fn a_cut_end_shows_by_a_hash_that_was_noted() {
        let lines = written(&["a".into(), "b".into()]);
        let noted = Chain::after(&lines[2]).unwrap().hash;
        let has = |lines: &[String]| {
            let mut walk = Walk::looking_for(&noted);
            lines.iter().enumerate().for_each(|(at, line)| walk.line(line, at == 0).unwrap());
            walk.end().has_wanted
        };
        assert!(has(&lines) && !has(&lines[..2]));
    }

    #[test]
    fn starts_without_an_end_are_told() {
        let found = verified(&written(&["a".into(), "b".into()])).unwrap();
        assert_eq!(found.unended, [(String::new(), "a".to_owned()), (String::new(), "b".to_owned())]);
    }
}
