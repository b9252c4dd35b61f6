//! Every field that would make an engine touch the store, in what workers send and in what they read. Pure.
//!
//! The walk sees each key of the JSON text as it stands, also one that stands twice, and keeps the parser's limit on depth.

use std::fmt;

use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::Place;

/// Fields whose text is an address in the store, beside all that end in `.path`, `.location`, `-path` or `-location`.
const ADDRESSES: [&str; 6] = ["location", "path", "metadata-file", "manifest-list", "manifests", "data-file"];
/// Settings that send an engine elsewhere or tell it other credentials: refused by name, whatever their value.
const REFUSED: [&str; 4] = ["uri", "token", "io-impl", "py-io-impl"];
const REFUSED_STARTS: [&str; 12] = [
    "s3.",
    "client.",
    "credential",
    "gcs.",
    "adls.",
    "oss.",
    "glue.",
    "rest.",
    "signer.",
    "header.",
    "hadoop.",
    "oauth2-",
];
const REFUSED_ENDS: [&str; 2] = ["endpoint", ".uri"];

/// Which way a text goes. What is read may name the warehouse's root; what is sent may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// From the worker.
    Sent,
    /// To the worker.
    Read,
}

/// Why a text is held back. The words are for the worker: they name a key, never a value.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Held {
    /// Not JSON, or nested too deeply to look at.
    #[error("the text is not JSON, or nested too deeply")]
    Unreadable,
    /// A rule is broken, in one sentence.
    #[error("{0}")]
    Broken(String),
}

/// Checks a whole JSON text.
pub(super) fn check(text: &[u8], place: &Place, way: Way) -> Result<(), Held> {
    let fence = Fence::new(place, way);
    walk(&mut serde_json::Deserializer::from_slice(text), &fence, None)
}

/// Checks one field of an object whose other fields are not to be looked at.
pub(super) fn check_field(key: &str, text: &RawValue, place: &Place, way: Way) -> Result<(), Held> {
    let fence = Fence::new(place, way);
    let address = enter(key).map_err(Held::Broken)?.map(|()| key.to_owned());
    walk(&mut serde_json::Deserializer::from_str(text.get()), &fence, address.as_deref())
}

fn walk<'de, R: serde_json::de::Read<'de>>(
    json: &mut serde_json::Deserializer<R>,
    fence: &Fence,
    address: Option<&str>,
) -> Result<(), Held> {
    let broken = std::cell::RefCell::new(None);
    let walk = Walk { fence, address, broken: &broken };
    let outcome = walk.deserialize(&mut *json).and_then(|()| json.end());
    match broken.take() {
        Some(sentence) => Err(Held::Broken(sentence)),
        None => outcome.map_err(|_| Held::Unreadable),
    }
}

struct Fence {
    inside: String,
    way: Way,
}

impl Fence {
    fn new(place: &Place, way: Way) -> Self {
        Self { inside: place.url(), way }
    }

    fn holds(&self, key: &str, address: &str) -> bool {
        // A namespace's location may be the root, with or without its slash.
        let root = self.way == Way::Read
            && key.eq_ignore_ascii_case("location")
            && address.strip_suffix('/').unwrap_or(address) == self.inside.trim_end_matches('/');
        root || address.strip_prefix(self.inside.as_str()).is_some_and(is_plain_key)
    }
}

/// Whether the key announces an address, or the sentence that refuses it.
fn enter(key: &str) -> Result<Option<()>, String> {
    let low = key.to_ascii_lowercase();
    let refused = REFUSED.contains(&low.as_str())
        || REFUSED_STARTS.iter().any(|start| low.starts_with(start))
        || REFUSED_ENDS.iter().any(|end| low.ends_with(end));
    if refused {
        return Err(format!("the property {} is not allowed here", shown(key)));
    }
    let address = ADDRESSES.contains(&low.as_str())
        || [".path", ".location", "-path", "-location"].iter().any(|end| low.ends_with(end));
    Ok(address.then_some(()))
}

/// A key that every reader of it takes for the same object: no dot segments, no empty ones, nothing a URL parser would cut or fold.
fn is_plain_key(key: &str) -> bool {
    let segment = |part: &str| !matches!(part, "" | "." | "..");
    let low = key.to_ascii_lowercase();
    key.strip_suffix('/').unwrap_or(key).split('/').all(segment)
        && !key.contains(['?', '#', '\\'])
        // A URL parser drops blanks at the end, and `.. ` becomes `..`.
        && !key.ends_with(char::is_whitespace)
        && !key.chars().any(char::is_control)
        && !["%2e", "%2f", "%5c", "%00"].iter().any(|escape| low.contains(escape))
}

fn shown(key: &str) -> String {
    key.chars().filter(|c| !c.is_control()).take(80).collect()
}

/// The walk itself: a deserializer that builds nothing.
#[derive(Clone, Copy)]
struct Walk<'a> {
    fence: &'a Fence,
    /// The field that holds this value, if that field is an address.
    address: Option<&'a str>,
    broken: &'a std::cell::RefCell<Option<String>>,
}

impl Walk<'_> {
    fn hold<E: de::Error>(&self, sentence: String) -> E {
        *self.broken.borrow_mut() = Some(sentence);
        E::custom("held")
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: de::Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        match self.address {
            Some(key) if !self.fence.holds(key, text) => {
                Err(self.hold(format!("{} is outside the warehouse", shown(key))))
            }
            _ => Ok(()),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            let address = enter(&key).map_err(|sentence| self.hold(sentence))?;
            // What lies below an address is one too.
            let address = address.map(|()| key.as_str()).or(self.address);
            map.next_value_seed(Walk { address, ..self })?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "tests/guard.rs"]
mod tests;
