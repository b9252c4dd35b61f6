//! A published set of keys (RFC 7517), of which only what can check a token's signature is kept.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use serde::Deserialize;
use serde_json::Value;

use super::keys::Fit;
use super::settings::Accepted;

/// Keys of one issuer. Those in use have 2 to 10.
const KEYS_MAX: usize = 64;
const RSA_BITS_MIN: usize = 2_048;
/// What the library checks signatures with.
const RSA_BITS_MAX: usize = 8_192;

/// A public key and what may be signed with it.
struct Key {
    kid: Option<String>,
    algorithms: Vec<Algorithm>,
    jwk: Jwk,
    decoding: DecodingKey,
}

/// The keys of one issuer that are of use here.
pub(super) struct KeySet {
    keys: Vec<Key>,
    /// Keys that were published and are of no use: for encryption, too weak, of another kind.
    pub(super) ignored: usize,
}

/// Why a document is no set of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unusable {
    #[error("it is not a JSON Web Key Set")]
    NotASet,
    #[error("it has more than {KEYS_MAX} keys")]
    TooMany,
    #[error("none of its keys can check a signature here")]
    NoKey,
}

impl KeySet {
    /// Reads a document. A key that cannot be used leaves the others alone.
    pub(super) fn read(document: &[u8], accepted: &[Accepted]) -> Result<KeySet, Unusable> {
        #[derive(Deserialize)]
        struct Document {
            keys: Vec<Value>,
        }
        let Document { keys } = serde_json::from_slice(document).map_err(|_| Unusable::NotASet)?;
        if keys.len() > KEYS_MAX {
            return Err(Unusable::TooMany);
        }
        let published = keys.len();
        let mut kept: Vec<Key> = Vec::new();
        for key in keys.into_iter().filter_map(|key| Key::read(key, accepted)) {
            // The same key twice is one.
            if !kept.iter().any(|other| other.kid == key.kid && other.jwk.algorithm == key.jwk.algorithm) {
                kept.push(key);
            }
        }
        if kept.is_empty() {
            return Err(Unusable::NoKey);
        }
        Ok(KeySet { ignored: published - kept.len(), keys: kept })
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is exactly one key for a token with this header.
    pub(super) fn fit(&self, kid: Option<&str>, algorithm: Algorithm) -> Fit {
        match self.fitting(kid, algorithm).count() {
            0 => Fit::None,
            1 => Fit::One,
            _ => Fit::Many,
        }
    }

    /// The one key for a token with this header.
    pub(super) fn key(&self, kid: Option<&str>, algorithm: Algorithm) -> Option<&DecodingKey> {
        self.fitting(kid, algorithm).next().map(|key| &key.decoding)
    }

    fn fitting(&self, kid: Option<&str>, algorithm: Algorithm) -> impl Iterator<Item = &Key> {
        self.keys.iter().filter(move |key| {
            key.algorithms.contains(&algorithm) && kid.is_none_or(|kid| key.kid.as_deref() == Some(kid))
        })
    }
}

impl Key {
    fn read(value: Value, accepted: &[Accepted]) -> Option<Key> {
        let jwk: Jwk = serde_json::from_value(value).ok()?;
        let common = &jwk.common;
        let signs = common.public_key_use.as_ref().is_none_or(|its| *its == PublicKeyUse::Signature);
        let verifies = common.key_operations.as_ref().is_none_or(|all| all.contains(&KeyOperations::Verify));
        if !signs || !verifies {
            return None;
        }
        let decoding = DecodingKey::from_jwk(&jwk).ok()?;
        // The kind of key decides, and what the key says of itself may only agree: a public key can then never be the secret of
        // an HMAC, whatever a token says.
        let by_kind: &[Algorithm] = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) if is_sound_rsa(&decoding) => {
                &[Algorithm::RS256, Algorithm::RS384, Algorithm::RS512]
            }
            AlgorithmParameters::EllipticCurve(point) => match point.curve {
                EllipticCurve::P256 if has_bytes(&decoding, 65) => &[Algorithm::ES256],
                EllipticCurve::P384 if has_bytes(&decoding, 97) => &[Algorithm::ES384],
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(point) => match point.curve {
                EllipticCurve::Ed25519 if has_bytes(&decoding, 32) => &[Algorithm::EdDSA],
                _ => return None,
            },
            _ => return None,
        };
        let its_own = common.key_algorithm;
        let agrees = |algorithm: &Algorithm| {
            its_own.is_none_or(|own| Algorithm::try_from(own).is_ok_and(|own| own == *algorithm))
                && accepted.iter().any(|accepted| accepted.algorithm() == *algorithm)
        };
        let algorithms: Vec<Algorithm> = by_kind.iter().copied().filter(agrees).collect();
        (!algorithms.is_empty()).then_some(Key { kid: common.key_id.clone(), algorithms, jwk, decoding })
    }
}

/// Long enough, short enough, and with an exponent that is none of the weak ones.
fn is_sound_rsa(key: &DecodingKey) -> bool {
    let DecodingKeyKind::RsaModulusExponent { n, e } = key.kind() else { return false };
    let bits = |number: &[u8]| {
        let number = &number[number.iter().take_while(|byte| **byte == 0).count()..];
        number.first().map_or(0, |first| number.len() * 8 - first.leading_zeros() as usize)
    };
    let odd = e.last().is_some_and(|last| last & 1 == 1);
    (RSA_BITS_MIN..=RSA_BITS_MAX).contains(&bits(n)) && odd && (2..=33).contains(&bits(e))
}

fn has_bytes(key: &DecodingKey, bytes: usize) -> bool {
    key.try_get_as_bytes().is_ok_and(|all| all.len() == bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// Of `bits` bits, of which the first is set.
    fn rsa(kid: &str, bits: usize) -> Value {
        // In base64 a character is six bits; "g" begins with a one.
        json!({"kty": "RSA", "kid": kid, "n": format!("g{}", "A".repeat(bits.div_ceil(6) - 1)), "e": "AQAB"})
    }

    fn ed(kid: &str, first: &str) -> Value {
        json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": format!("{first}{}", "A".repeat(42))})
    }

    fn set(keys: &[Value]) -> Result<KeySet, Unusable> {
        KeySet::read(json!({"keys": keys}).to_string().as_bytes(), &Accepted::PUBLISHED)
    }

    fn with(mut key: Value, name: &str, value: Value) -> Value {
        key[name] = value;
        key
    }

    #[test]
    fn a_key_is_good_for_its_own_kind_of_algorithm_only() {
        let set = set(&[rsa("r", 2_048), ed("e", "A"), with(rsa("only512", 2_048), "alg", json!("RS512"))])
            .unwrap();
        for (kid, algorithm, fit) in [
            ("r", Algorithm::RS256, Fit::One),
            ("r", Algorithm::RS512, Fit::One),
            ("r", Algorithm::PS256, Fit::None),
            ("r", Algorithm::HS256, Fit::None),
            ("r", Algorithm::ES256, Fit::None),
            ("e", Algorithm::EdDSA, Fit::One),
            ("e", Algorithm::HS256, Fit::None),
            ("only512", Algorithm::RS512, Fit::One),
            ("only512", Algorithm::RS256, Fit::None),
        ] {
            assert_eq!(set.fit(Some(kid), algorithm), fit, "{kid} {algorithm:?}");
        }
    }

    #[test]
    fn what_cannot_check_a_signature_safely_is_ignored() {
        for (what, key) in [
            ("for encryption", with(rsa("a", 2_048), "use", json!("enc"))),
            ("not for verifying", with(rsa("a", 2_048), "key_ops", json!(["encrypt"]))),
            ("weak", rsa("a", 1_024)),
            ("weak by a bit or more", rsa("a", 2_040)),
            ("an even exponent", with(rsa("a", 2_048), "e", json!("AQAC"))),
            ("an exponent of 1", with(rsa("a", 2_048), "e", json!("AQ"))),
            ("for another algorithm", with(rsa("a", 2_048), "alg", json!("RSA-OAEP"))),
            ("for HMAC", with(rsa("a", 2_048), "alg", json!("HS256"))),
            ("a secret", json!({"kty": "oct", "kid": "a", "k": "A".repeat(64)})),
            ("a short point", json!({"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": "AAAA"})),
            ("another curve", json!({"kty": "EC", "crv": "P-521", "kid": "a", "x": "AAAA", "y": "AAAA"})),
            (
                "a curve of another kind",
                json!({"kty": "EC", "crv": "Ed25519", "kid": "a", "x": "AAAA", "y": "AAAA"}),
            ),
            (
                "a point off its size",
                json!({"kty": "EC", "crv": "P-256", "kid": "a", "x": "AAAA", "y": "AAAA"}),
            ),
            ("unknown", json!({"kty": "LATTICE", "kid": "a"})),
            ("no key", json!("a")),
        ] {
            assert_eq!(set(std::slice::from_ref(&key)).err(), Some(Unusable::NoKey), "{what}");
            let beside = set(&[key, ed("e", "A")]).unwrap();
            assert_eq!((beside.len(), beside.ignored), (1, 1), "{what}");
        }
    }

    #[test]
    fn exactly_one_key_must_fit() {
        let two = set(&[ed("a", "A"), ed("b", "B")]).unwrap();
        assert_eq!(two.fit(None, Algorithm::EdDSA), Fit::Many);
        assert_eq!(two.fit(Some("b"), Algorithm::EdDSA), Fit::One);
        assert_eq!(two.fit(Some("c"), Algorithm::EdDSA), Fit::None);
        let alone = set(&[ed("a", "A"), rsa("b", 2_048)]).unwrap();
        assert_eq!(alone.fit(None, Algorithm::EdDSA), Fit::One);
        let same_kid = set(&[ed("a", "A"), ed("a", "B")]).unwrap();
        assert_eq!(same_kid.fit(Some("a"), Algorithm::EdDSA), Fit::Many);
        let same_key = set(&[ed("a", "A"), ed("a", "A")]).unwrap();
        assert_eq!(same_key.fit(Some("a"), Algorithm::EdDSA), Fit::One);
        let without_kid = set(&[json!({"kty": "OKP", "crv": "Ed25519", "x": "A".repeat(43)})]).unwrap();
        assert_eq!(without_kid.fit(Some("a"), Algorithm::EdDSA), Fit::None);
        assert_eq!(without_kid.fit(None, Algorithm::EdDSA), Fit::One);
    }

    #[test]
    fn only_what_the_issuer_may_use_is_kept() {
        let document = json!({"keys": [rsa("r", 2_048), ed("e", "A")]}).to_string();
        let set = KeySet::read(document.as_bytes(), &[Accepted::RS256]).unwrap();
        assert_eq!((set.len(), set.ignored), (1, 1));
        assert_eq!(set.fit(Some("r"), Algorithm::RS384), Fit::None);
    }

    #[test]
    fn a_document_that_is_none_or_too_long_is_refused() {
        for text in ["", "[]", "{}", "{\"keys\":{}}", "<html>"] {
            assert_eq!(
                KeySet::read(text.as_bytes(), &Accepted::PUBLISHED).err(),
                Some(Unusable::NotASet),
                "{text}"
            );
        }
        let many: Vec<Value> = (0..=KEYS_MAX).map(|n| ed(&n.to_string(), "A")).collect();
        assert_eq!(set(&many).err(), Some(Unusable::TooMany));
        assert_eq!(set(&[]).err(), Some(Unusable::NoKey));
    }

    proptest! {
        #[test]
        fn no_document_makes_it_panic(text in ".{0,200}", name in "kty|alg|use|n|e|x|crv|kid", value in ".{0,40}") {
            let _ = KeySet::read(text.as_bytes(), &Accepted::PUBLISHED);
            let _ = set(&[with(rsa("a", 2_048), &name, json!(value))]);
        }
    }
}
