//! A statement's text, fit to be kept for years. Plain.
//!
//! Comments go; so does every literal that is long or looks like a secret. A text that names a secret anywhere (`password`, `token`,
//! `KEY_ID`, …) shows no value at all. What cannot be cut with certainty is left out with all that follows.

/// A longer literal is not shown, characters.
const LITERAL_CHARS_MAX: usize = 32;
/// A longer name is not shown, characters.
const NAME_CHARS_MAX: usize = 64;
/// A longer text is not searched for names of secrets to its end: none of its values is shown.
const SEARCHED_BYTES_MAX: usize = 64 << 10;
/// What stands for something that is left out.
const HIDDEN: char = '…';

/// What names a secret, as part of a name or a literal, in lower case.
const SECRET_WORDS: [&str; 13] = [
    "secret",
    "passw",
    "passphrase",
    "pwd",
    "token",
    "credential",
    "api_key",
    "apikey",
    "access_key",
    "key_id",
    "private_key",
    "bearer",
    "authorization",
];
/// How well-known keys begin. Anything that holds `://…@` is one, too.
const KEY_BEGINNINGS: [&str; 6] = ["AKIA", "ASIA", "eyJ", "ghp_", "sk-", "xox"];
/// Statements whose options are bare words: after one that names a secret nothing of them is shown.
const OPTION_STATEMENTS: [&str; 10] =
    ["attach", "set", "reset", "pragma", "copy", "install", "load", "call", "export", "import"];

/// Statements as they are kept, in so many bytes at most.
pub(super) fn redacted<'s>(statements: impl Iterator<Item = &'s str>, bytes_max: usize) -> String {
    let mut out = String::new();
    for statement in statements {
        if !out.is_empty() {
            out.push_str("; ");
        }
        show(statement, &mut out, bytes_max);
        if out.len() > bytes_max {
            break;
        }
    }
    cut(&mut out, bytes_max);
    out
}

/// At most so many bytes; what was longer says so.
pub(super) fn cut(text: &mut String, bytes_max: usize) {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max.saturating_sub(HIDDEN.len_utf8())));
        text.push(HIDDEN);
    }
}

fn show(statement: &str, out: &mut String, bytes_max: usize) {
    let hides = statement.len() > SEARCHED_BYTES_MAX || Pieces(statement).any(|piece| piece.names_a_secret());
    let first = Pieces(statement).find_map(|piece| match piece {
        Piece::Word(word) => Some(word.to_lowercase()),
        _ => None,
    });
    let first = first.unwrap_or_default();
    let options = OPTION_STATEMENTS.contains(&first.as_str());
    let makes = ["create", "alter", "drop"].contains(&first.as_str());
    let begin = out.len();
    for piece in Pieces(statement) {
        match piece {
            Piece::Blank => {
                if out.len() > begin && !out.ends_with(' ') {
                    out.push(' ');
                }
            }
            Piece::Word(name) if name.chars().count() > NAME_CHARS_MAX => out.push(HIDDEN),
            Piece::Number(number) if hides || number.len() > LITERAL_CHARS_MAX => out.push(HIDDEN),
            Piece::Word(text) | Piece::Number(text) => out.push_str(text),
            Piece::Other(sign) => out.push(sign),
            Piece::Quoted(_, name) | Piece::Literal(_, name) if hides || is_hidden(&piece, name) => {
                out.extend(piece.marks().map(|mark| [mark, HIDDEN, mark]).into_iter().flatten());
            }
            Piece::Quoted(all, _) | Piece::Literal(all, _) => out.push_str(all),
            Piece::Unclear => {
                out.push(HIDDEN);
                return;
            }
        }
        let ends = piece.names_a_secret() && matches!(piece, Piece::Word(_) | Piece::Quoted(..));
        if ends && (options || makes && piece.is_word("secret")) {
            out.extend([' ', HIDDEN]);
            return;
        }
        if out.len() > bytes_max {
            return;
        }
    }
    out.truncate(out.trim_end().len().max(begin));
}

fn is_hidden(piece: &Piece<'_>, text: &str) -> bool {
    let chars_max = if matches!(piece, Piece::Quoted(..)) { NAME_CHARS_MAX } else { LITERAL_CHARS_MAX };
    text.chars().nth(chars_max).is_some()
        || KEY_BEGINNINGS.iter().any(|beginning| text.contains(beginning))
        || text.split_once("://").is_some_and(|(_, rest)| rest.contains('@'))
}

/// A piece of a statement's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Piece<'s> {
    /// Blanks or a comment.
    Blank,
    Word(&'s str),
    /// `"…"`: with its marks, and what stands between them.
    Quoted(&'s str, &'s str),
    /// `'…'`, `E'…'` from its mark on, or `$tag$…$tag$`: the same.
    Literal(&'s str, &'s str),
    Number(&'s str),
    Other(char),
    /// Something that does not end.
    Unclear,
}

impl Piece<'_> {
    fn names_a_secret(&self) -> bool {
        let (Piece::Word(text) | Piece::Quoted(_, text) | Piece::Literal(_, text)) = self else {
            return false;
        };
        let text = text.to_lowercase();
        SECRET_WORDS.iter().any(|word| text.contains(word))
    }

    fn is_word(&self, wanted: &str) -> bool {
        matches!(self, Piece::Word(word) if word.eq_ignore_ascii_case(wanted))
    }

    fn marks(&self) -> Option<char> {
        match self {
            Piece::Quoted(..) => Some('"'),
            Piece::Literal(..) => Some('\''),
            _ => None,
        }
    }
}

/// Cuts a text into its pieces. Nothing follows one that does not end.
struct Pieces<'s>(&'s str);

fn begins_word(c: char) -> bool {
    c.is_alphabetic() || c == '_' || !c.is_ascii()
}

fn continues_word(c: char) -> bool {
    begins_word(c) || c.is_ascii_digit() || c == '$'
}

impl<'s> Pieces<'s> {
    /// Takes what is true of every character from here.
    fn run(&mut self, is: impl Fn(char) -> bool) -> &'s str {
        let end = self.0.find(|c| !is(c)).unwrap_or(self.0.len());
        self.take(end)
    }

    fn take(&mut self, bytes: usize) -> &'s str {
        let (taken, rest) = self.0.split_at(bytes);
        self.0 = rest;
        taken
    }

    fn unclear(&mut self) -> Piece<'s> {
        self.0 = "";
        Piece::Unclear
    }

    /// Up to the mark that ends what begins with one; two in a row are none, nor is one after a backslash where that counts.
    fn marked(&mut self, mark: u8, escapes: bool) -> Option<(&'s str, &'s str)> {
        let bytes = self.0.as_bytes();
        let mut at = 1;
        while let Some(byte) = bytes.get(at) {
            at += match byte {
                b'\\' if escapes => 2,
                byte if *byte != mark => 1,
                _ if bytes.get(at + 1) == Some(&mark) => 2,
                _ => {
                    let all = self.take(at + 1);
                    return Some((all, &all[1..at]));
                }
            };
        }
        None
    }

    fn dollar(&mut self) -> Piece<'s> {
        let after = &self.0[1..];
        let tag = after.find(|c: char| !(begins_word(c) || c.is_ascii_digit())).unwrap_or(after.len());
        if !after[tag..].starts_with('$') {
            self.take(1);
            return Piece::Other('$');
        }
        let tag = &self.0[..tag + 2];
        let Some(end) = self.0[tag.len()..].find(tag) else { return self.unclear() };
        let all = self.take(tag.len() * 2 + end);
        Piece::Literal(all, &all[tag.len()..tag.len() + end])
    }

    fn comment(&mut self) -> Piece<'s> {
        let (bytes, mut at, mut depth) = (self.0.as_bytes(), 0, 0_usize);
        while let Some(two) = bytes.get(at..at + 2) {
            match two {
                b"/*" => depth += 1,
                b"*/" => depth -= 1,
                _ => {
                    at += 1;
                    continue;
                }
            }
            at += 2;
            if depth == 0 {
                self.take(at);
                return Piece::Blank;
            }
        }
        self.unclear()
    }

    fn literal(&mut self, escapes: bool) -> Piece<'s> {
        match self.marked(b'\'', escapes) {
            Some((all, text)) => Piece::Literal(all, text),
            None => self.unclear(),
        }
    }
}

impl<'s> Iterator for Pieces<'s> {
    type Item = Piece<'s>;

    fn next(&mut self) -> Option<Piece<'s>> {
        let first = self.0.chars().next()?;
        Some(match first {
            c if c.is_whitespace() || c.is_control() => {
                self.run(|c| c.is_whitespace() || c.is_control());
                Piece::Blank
            }
            '-' if self.0.starts_with("--") => {
                self.run(|c| c != '\n' && c != '\r');
                Piece::Blank
            }
            '/' if self.0.starts_with("/*") => self.comment(),
            '\'' => self.literal(false),
            // The letter goes: what is kept is read by people.
            'e' | 'E' if self.0[1..].starts_with('\'') => {
                self.take(1);
                self.literal(true)
            }
            '"' => match self.marked(b'"', false) {
                Some((all, name)) => Piece::Quoted(all, name),
                None => self.unclear(),
            },
            '$' => self.dollar(),
            c if begins_word(c) => Piece::Word(self.run(continues_word)),
            c if c.is_ascii_digit() => {
                Piece::Number(self.run(|c| c.is_ascii_alphanumeric() || c == '.' || c == '_'))
            }
            c => {
                self.take(c.len_utf8());
                Piece::Other(c)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(statement: &str) -> String {
        redacted([statement].into_iter(), 4_096)
    }

    #[test]
    fn an_ordinary_statement_is_kept_as_it_is() {
        for statement in [
            "SELECT country, count(*) AS n FROM customers WHERE since > '2024-01-01' GROUP BY ALL",
            "INSERT INTO lake.datasets.t VALUES (1, 'Wooden train', 4.5e-3), ($1, $name, '🪀')",
            "SELECT \"Größe\" FROM t WHERE a ->> 'x' = 'it''s'",
        ] {
            assert_eq!(one(statement), statement);
        }
    }

    #[test]
    fn what_may_be_secret_is_left_out() {
        for (statement, kept) in [
            ("SELECT 1 -- hunter2\n, /* a /* b */ c */ 2", "SELECT 1 , 2"),
            ("CREATE SECRET s (TYPE s3, KEY_ID AKIAX, SECRET 'y')", "CREATE SECRET …"),
            ("create or replace persistent secret x (token abc)", "create or replace persistent secret …"),
            ("ATTACH 'x' AS y (TOKEN abc)", "ATTACH '…' AS y (TOKEN …"),
            ("SET s3_secret_access_key = abc", "SET s3_secret_access_key …"),
            (
                "SELECT * FROM u WHERE password = 'a' AND pin = 1234",
                "SELECT * FROM u WHERE password = '…' AND pin = …",
            ),
            ("SELECT 'a' = \"the token\", {'k': 1}", "SELECT '…' = \"…\", {'…': …}"),
            ("SELECT {'password': 'a'}", "SELECT {'…': '…'}"),
            ("SELECT 'postgres://me:pw@host'", "SELECT '…'"),
            ("SELECT 'AKIAIOSFODNN7EXAMPLE', 'b'", "SELECT '…', 'b'"),
            (
                "SELECT '012345678901234567890123456789012', '01234567890123456789012345678901'",
                "SELECT '…', '01234567890123456789012345678901'",
            ),
            ("SELECT E'a\\'b', e'\\\\', $$a'b$$, $t$ $$ $t$", "SELECT 'a\\'b', '\\\\', $$a'b$$, $t$ $$ $t$"),
            ("SELECT 'open", "SELECT …"),
            ("SELECT $x$ y", "SELECT …"),
            ("SELECT /* open", "SELECT …"),
        ] {
            assert_eq!(one(statement), kept, "{statement}");
        }
    }

    #[test]
    fn several_statements_are_bounded_together() {
        let long = format!("SELECT {}", "a, ".repeat(10_000));
        let text = redacted([long.as_str(), "SELECT 2"].into_iter(), 100);
        assert!(text.len() <= 100 && text.ends_with('…'), "{text}");
        assert_eq!(redacted(["SELECT 1", " SELECT 2 "].into_iter(), 100), "SELECT 1; SELECT 2");
        let huge = format!("SELECT 'b', {} password", "a, ".repeat(SEARCHED_BYTES_MAX));
        assert!(one(&huge).starts_with("SELECT '…', a"));
    }

    /// Every way to write a text in SQL, so that the planted one could stand in it.
    fn planted(secret: &str, way: usize) -> String {
        match way {
            0 => format!("'{secret}'"),
            1 => format!("E'\\'{secret}\\\\'"),
            2 => format!("$q${secret}'$q$"),
            3 => format!("/* {secret} /* */ ' */"),
            4 => format!("-- {secret} '\n"),
            5 => format!("\"{secret}{secret}\""),
            6 => format!("'it''s {secret}'"),
            7 => format!("$${secret}$$"),
            _ => format!("X'{secret}'"),
        }
    }

    proptest! {
        #[test]
        fn a_long_secret_is_never_kept(
            before in "(SELECT |a|1|, |'x'|\\$1|\"n\"|\\(|-| |\n|/|\\*|e|E'y\\\\\\\\'|::){0,8}",
            after in "(a|1|, |'x'|\\$1|\"n\"|\\)|-| |\n|\\*|E'y'|'|/\\*|\\$\\$){0,8}",
            secret in "[a-zA-Z0-9]{33,60}",
            way in 0_usize..9,
        ) {
            // A comment that `before` opens by chance hides it anyway.
            let statement = format!("{before} {} {after}", planted(&secret, way));
            prop_assert!(!one(&statement).contains(&secret), "{statement} → {}", one(&statement));
        }

        #[test]
        fn a_short_secret_beside_its_name_is_never_kept(
            secret in "[q-z]{6}[0-9]{4}",
            name in prop::sample::select(vec!["password", "S3_SECRET_ACCESS_KEY", "\"api_key\"", "user_token", "KEY_ID"]),
            way in 0_usize..9,
            swapped: bool,
        ) {
            let value = planted(&secret, way);
            let statement = if swapped { format!("SELECT {value} = {name}") } else { format!("SELECT a WHERE {name} IN (1, {value})") };
            prop_assert!(!one(&statement).contains(&secret), "{statement} → {}", one(&statement));
        }

        #[test]
        fn any_text_is_cut_within_its_bound(text in ".{0,300}", bytes_max in 3_usize..200) {
            prop_assert!(redacted([text.as_str(), text.as_str()].into_iter(), bytes_max).len() <= bytes_max);
        }
    }
}
