//! A statement's text, cut as DuckDB's lexer cuts it.
//!
//! Given text, hands on words, literals, numbers, operators and signs, without blanks and comments. Never guesses: where it
//! could differ from DuckDB, by a strange blank or a glued `$`, the piece is [`Token::Unclear`], and nothing is run.

use std::borrow::Cow;

/// A piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token<'s> {
    /// A keyword or a name, as written.
    Word(&'s str),
    /// What stands between double quotes, as written.
    Quoted(&'s str),
    /// A literal.
    Text(Text<'s>),
    Number,
    /// Signs that DuckDB reads as one operator, or as several in a row.
    Operator(&'s str),
    /// Any other character.
    Sign(char),
    /// What DuckDB might read in another way.
    Unclear,
}

/// A literal, as written between its marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Text<'s> {
    /// `'…'`, where two marks are one.
    Plain(&'s str),
    /// `E'…'`, with backslashes.
    Escaped(&'s str),
    /// `$tag$…$tag$`.
    Dollar(&'s str),
}

impl<'s> Text<'s> {
    /// What it says.
    pub(super) fn value(self) -> Cow<'s, str> {
        match self {
            Text::Plain(raw) if raw.contains('\'') => raw.replace("''", "'").into(),
            Text::Plain(raw) | Text::Dollar(raw) => raw.into(),
            Text::Escaped(raw) => unescaped(raw).into(),
        }
    }
}

/// What stands between double quotes says.
pub(super) fn unquoted(raw: &str) -> Cow<'_, str> {
    if raw.contains('"') { raw.replace("\"\"", "\"").into() } else { raw.into() }
}

/// What is left of a text. A copy looks ahead.
#[derive(Clone)]
pub(super) struct Tokens<'s> {
    rest: &'s str,
    /// The previous piece was a number, and nothing lies between.
    after_number: bool,
    /// How deep comments have been nested so far.
    pub(super) comments: usize,
}

impl<'s> Tokens<'s> {
    pub(super) fn of(text: &'s str) -> Self {
        Tokens { rest: text, after_number: false, comments: 0 }
    }

    fn take(&mut self, bytes: usize) -> &'s str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        taken
    }

    /// Skips blanks and comments. False where DuckDB may not see a blank that is one here.
    fn skip(&mut self) -> bool {
        let mut strange = false;
        loop {
            let text = self.rest;
            match text.as_bytes() {
                [b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c, ..] => {
                    strange = false;
                    self.take(1);
                }
                [b'-', b'-', ..] => {
                    strange = false;
                    self.take(text.find(['\n', '\r']).unwrap_or(text.len()));
                }
                [b'/', b'*', ..] => {
                    strange = false;
                    let (bytes, depth) = comment(text.as_bytes());
                    self.comments = self.comments.max(depth);
                    self.take(bytes);
                }
                // DuckDB takes these for blanks, but not behind a comment that holds a quotation mark.
                [128..=255, ..] => match text.chars().next() {
                    Some(c) if is_blank(c) => {
                        strange = true;
                        self.take(c.len_utf8());
                    }
                    _ => return true,
                },
                [b'$', ..] | [b'e' | b'E', b'\'', ..] => return !strange,
                _ => return true,
            }
            self.after_number = false;
        }
    }

    fn quoted(&mut self, mark: char) -> &'s str {
        let text = &self.rest[1..];
        let (mut from, mut end) = (0, text.len());
        while let Some(at) = text[from..].find(mark).map(|at| from + at) {
            if text[at + 1..].starts_with(mark) {
                from = at + 2;
            } else {
                end = at;
                break;
            }
        }
        self.take((end + 2).min(self.rest.len()));
        &text[..end]
    }

    fn escaped(&mut self) -> &'s str {
        let text = &self.rest[1..];
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            match bytes[at] {
                b'\\' => at += 2,
                b'\'' if bytes.get(at + 1) == Some(&b'\'') => at += 2,
                b'\'' => break,
                _ => at += 1,
            }
        }
        // A backslash may have jumped into a character of several bytes, or over the end.
        let end = (at.min(text.len())..=text.len()).find(|i| text.is_char_boundary(*i)).unwrap_or(text.len());
        self.take((end + 2).min(self.rest.len()));
        &text[..end]
    }

    /// The last piece: what follows cannot be cut.
    fn unclear(&mut self) -> Token<'s> {
        self.rest = "";
        Token::Unclear
    }

    /// A literal between dollar signs, if this is one.
    fn dollar(&mut self) -> Option<&'s str> {
        let text = self.rest;
        let tag = text[1..].find(|c: char| !(is_in_word(c) && c != '$')).map(|at| at + 1)?;
        let is_tag = text[tag..].starts_with('$') && !text[1..].starts_with(|c: char| c.is_ascii_digit());
        if !is_tag {
            return None;
        }
        let (mark, inside) = text.split_at(tag + 1);
        let end = inside.find(mark).unwrap_or(inside.len());
        self.take((mark.len() * 2 + end).min(text.len()));
        Some(&inside[..end])
    }
}

impl<'s> Iterator for Tokens<'s> {
    type Item = Token<'s>;

    fn next(&mut self) -> Option<Token<'s>> {
        if !self.skip() {
            return Some(self.unclear());
        }
        let glued = std::mem::take(&mut self.after_number);
        let text = self.rest;
        let first = text.chars().next()?;
        Some(match first {
            '"' => Token::Quoted(self.quoted('"')),
            '\'' => Token::Text(Text::Plain(self.quoted('\''))),
            'e' | 'E' if text[1..].starts_with('\'') => {
                self.take(1);
                Token::Text(Text::Escaped(self.escaped()))
            }
            // DuckDB's versions differ in where a number ends; before a dollar sign that would decide what is text.
            '$' if glued => self.unclear(),
            '$' => match self.dollar() {
                Some(inside) => Token::Text(Text::Dollar(inside)),
                None => Token::Sign(self.take(1).chars().next()?),
            },
            '0'..='9' => {
                self.take(number(text.as_bytes()));
                self.after_number = true;
                Token::Number
            }
            '.' if text[1..].starts_with(|c: char| c.is_ascii_digit()) => {
                self.take(number(text.as_bytes()));
                self.after_number = true;
                Token::Number
            }
            c if is_operator(c) => {
                let end = text
                    .char_indices()
                    .find(|(at, c)| {
                        !is_operator(*c)
                            || *at > 0 && (text[*at..].starts_with("--") || text[*at..].starts_with("/*"))
                    })
                    .map_or(text.len(), |(at, _)| at);
                Token::Operator(self.take(end))
            }
            c if is_in_word(c) => {
                let word = self.take(text.find(|c: char| !is_in_word(c)).unwrap_or(text.len()));
                if glued && word.contains('$') || word.contains(is_unclear) {
                    self.unclear()
                } else {
                    Token::Word(word)
                }
            }
            c => {
                self.take(c.len_utf8());
                Token::Sign(c)
            }
        })
    }
}

/// What DuckDB makes a blank before it reads a text.
fn is_blank(c: char) -> bool {
    matches!(
        c,
        '\u{a0}' | '\u{2000}'..='\u{200d}' | '\u{202f}' | '\u{205f}' | '\u{2060}' | '\u{3000}' | '\u{feff}'
    )
}

/// What looks like a blank or like nothing, and is part of a word for DuckDB.
fn is_unclear(c: char) -> bool {
    !c.is_ascii()
        && (c.is_whitespace()
            || c.is_control()
            || matches!(c, '\u{180e}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2061}'..='\u{206f}'))
}

fn is_in_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '$' || !c.is_ascii() && !is_blank(c)
}

fn is_operator(c: char) -> bool {
    "~!@^&|`+-*/%<>=".contains(c)
}

/// How long the number is: digits with single `_` between them, a fraction, an exponent.
fn number(text: &[u8]) -> usize {
    let digits = |mut at: usize| {
        while text.get(at).is_some_and(u8::is_ascii_digit)
            || text.get(at) == Some(&b'_') && text.get(at + 1).is_some_and(u8::is_ascii_digit)
        {
            at += 1;
        }
        at
    };
    let mut end = digits(0);
    // `1..2` is a range of two numbers.
    if text.get(end) == Some(&b'.') && text.get(end + 1) != Some(&b'.') {
        end = digits(end + 1);
    }
    if matches!(text.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(text.get(end + 1), Some(b'+' | b'-')));
        if text.get(end + 1 + sign).is_some_and(u8::is_ascii_digit) {
            end = digits(end + 1 + sign);
        }
    }
    end
}

/// How long a comment is, and how deep others nest in it.
fn comment(text: &[u8]) -> (usize, usize) {
    let (mut depth, mut deepest, mut at) = (0_usize, 0, 0);
    while at < text.len() {
        match text[at..] {
            [b'/', b'*', ..] => {
                depth += 1;
                deepest = deepest.max(depth);
                at += 2;
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return (at, deepest);
                }
            }
            _ => at += 1,
        }
    }
    (text.len(), deepest)
}

fn unescaped(raw: &str) -> String {
    let mut said = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.find(['\\', '\'']) {
        said.push_str(&rest[..at]);
        let (mark, after) = (rest.as_bytes()[at], &rest[at + 1..]);
        let Some(c) = after.chars().next() else { return said };
        // Two marks are one.
        let (escape, digits, radix) = match (mark, c) {
            (b'\'', _) => (None, 0, 0),
            (_, 'x') => (Some(1), 2, 16),
            (_, 'u') => (Some(1), 4, 16),
            (_, 'U') => (Some(1), 8, 16),
            (_, '0'..='7') => (Some(0), 3, 8),
            _ => (None, 0, 0),
        };
        rest = &after[c.len_utf8()..];
        if let Some(skip) = escape {
            let code = &after[skip..];
            let end = code.char_indices().take(digits).take_while(|(_, c)| c.is_digit(radix)).count();
            said.extend(u32::from_str_radix(&code[..end], radix).ok().and_then(char::from_u32));
            rest = &code[end..];
        } else {
            said.push(match c {
                'b' if mark == b'\\' => '\u{8}',
                'f' if mark == b'\\' => '\u{c}',
                'n' if mark == b'\\' => '\n',
                'r' if mark == b'\\' => '\r',
                't' if mark == b'\\' => '\t',
                other => other,
            });
        }
    }
    said.push_str(rest);
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str) -> Vec<String> {
        let say = |token| match token {
            Token::Word(w) => w.to_owned(),
            Token::Quoted(w) => format!("\"{}\"", unquoted(w)),
            Token::Text(t) => format!("'{}'", t.value()),
            Token::Number => "#".to_owned(),
            Token::Operator(o) => o.to_owned(),
            Token::Sign(c) => c.to_string(),
            Token::Unclear => "UNCLEAR".to_owned(),
        };
        Tokens::of(text).map(say).collect()
    }

    #[test]
    fn text_is_cut_as_the_engine_cuts_it() {
        for (text, expected) in [
            ("SELECT a.b FROM t", "SELECT|a|.|b|FROM|t"),
            ("1--x\r+2 --y\n3", "#|+|#|#"),
            ("/* a /* ' */ */ x /**/y", "x|y"),
            ("'it''s' \"a\"\"b\" '\\'", "'it's'|\"a\"b\"|'\\'"),
            ("E'a\\'b\\x5f\\137\\u005f''\\\\' e''", "'a'b___'\\'|''"),
            ("$$;$$ $q$ $$ $q$ $1 $a", "';'|' $$ '|$|#|$|a"),
            ("a$$b 1abs(2)1e5-1.5e+3x .5 1..2", "a$$b|#|abs|(|#|)|#|-|#|x|#|#|.|#"),
            ("x->>'a' a+--c\nb a*/**/b <=", "x|->>|'a'|a|+|b|a|*|b|<="),
            ("a\u{a0}b\u{3000}ü été", "a|b|ü|été"),
            ("'open", "'open'"),
            ("/* open /*", ""),
            ("$x$ open", "' open'"),
        ] {
            assert_eq!(pieces(text).join("|"), expected, "{text}");
        }
    }

    #[test]
    fn what_the_engine_may_read_otherwise_is_unclear() {
        for text in
            ["1$$a$$", "1a$$b$$", "/*'*/\u{a0}$a$", "/*'*/\u{2003}E'a'", "FROM\u{1680}f()", "a\u{200e}b"]
        {
            assert!(pieces(text).contains(&"UNCLEAR".to_owned()), "{text:?}: {:?}", pieces(text));
        }
    }

    #[test]
    fn any_text_is_cut_to_its_end() {
        let marks = [
            "'", "\"", "$", "$$", "E'", "\\", "/*", "*/", "--", "\n", "ü", "e", "1", ".", "\u{a0}", "a", "(",
            "\0",
        ];
        // All texts of four of these.
        for n in 0..marks.len().pow(4) {
            let text: String = (0..4).map(|i| marks[n / marks.len().pow(i) % marks.len()]).collect();
            assert!(Tokens::of(&text).count() <= text.len());
            for token in Tokens::of(&text) {
                if let Token::Text(literal) = token {
                    literal.value();
                }
            }
        }
    }
}
