//! Places in the object store: `s3://bucket/key`. Pure; decides whether one lies inside, or overlaps, another.
//!
//! Keys are compared segment by segment, so `w_a` is no prefix of `w_aa`, and a key that a store, a URL parser or a file
//! system might read differently is not a place at all.

use std::fmt;

use object_store::path::Path;

use crate::refusal::Refusal;

const SCHEME: &str = "s3://";
/// Leaves room below S3's 1024 for `metadata/…` and `data/…`.
const KEY_BYTES_MAX: usize = 768;
const BUCKET_BYTES_MAX: usize = 255;

/// A bucket and a key in it, without slashes at the key's ends. An empty key is the whole bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    bucket: String,
    key: String,
}

impl Place {
    /// A place from its two parts. Slashes at the ends of the key are dropped.
    pub(crate) fn new(bucket: &str, key: &str) -> Result<Place, Refusal> {
        let key = key.strip_prefix('/').unwrap_or(key);
        let key = key.strip_suffix('/').unwrap_or(key);
        check_bucket(bucket)?;
        check_key(key)?;
        Ok(Place { bucket: bucket.to_owned(), key: key.to_owned() })
    }

    /// A place from a location as clients write it. One trailing slash is dropped.
    pub(crate) fn parse(location: &str) -> Result<Place, Refusal> {
        let rest = location
            .strip_prefix(SCHEME)
            .ok_or_else(|| Refusal::invalid_location(format!("a location begins with {SCHEME}")))?;
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        let key = key.strip_suffix('/').unwrap_or(key);
        check_bucket(bucket)?;
        check_key(key)?;
        Ok(Place { bucket: bucket.to_owned(), key: key.to_owned() })
    }

    pub(crate) fn bucket(&self) -> &str {
        &self.bucket
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// The place `name` directly below this one. `name` is ours, never a user's.
    pub(crate) fn child(&self, name: &str) -> Place {
        let key = if self.key.is_empty() { name.to_owned() } else { format!("{}/{name}", self.key) };
        Place { bucket: self.bucket.clone(), key }
    }

    /// Whether this place is `outer` or below it.
    pub(crate) fn is_within(&self, outer: &Place) -> bool {
        self.bucket == outer.bucket
            && (outer.key.is_empty()
                || self.key == outer.key
                || self.key.strip_prefix(&outer.key).is_some_and(|rest| rest.starts_with('/')))
    }

    /// Whether this place is below `outer` and not `outer` itself.
    pub(crate) fn is_strictly_within(&self, outer: &Place) -> bool {
        self != outer && self.is_within(outer)
    }

    /// Whether one of the two is inside the other.
    pub(crate) fn overlaps(&self, other: &Place) -> bool {
        self.is_within(other) || other.is_within(self)
    }

    /// The object store's path of this place inside its bucket.
    pub(crate) fn path(&self) -> Result<Path, Refusal> {
        Path::parse(&self.key).map_err(|error| Refusal::invalid_location(error.to_string()))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() {
            write!(f, "{SCHEME}{}", self.bucket)
        } else {
            write!(f, "{SCHEME}{}/{}", self.bucket, self.key)
        }
    }
}

fn check_bucket(bucket: &str) -> Result<(), Refusal> {
    let usual = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let dots_only = bucket.chars().all(|c| c == '.');
    if dots_only || bucket.len() > BUCKET_BYTES_MAX || !bucket.chars().all(usual) {
        return Err(Refusal::invalid_location("that is no bucket's name"));
    }
    Ok(())
}

fn check_key(key: &str) -> Result<(), Refusal> {
    if key.is_empty() {
        return Ok(());
    }
    if key.len() > KEY_BYTES_MAX {
        return Err(Refusal::invalid_location(format!("a location's key has at most {KEY_BYTES_MAX} bytes")));
    }
    if key.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
        return Err(Refusal::invalid_location("a location has no empty, `.` or `..` segment"));
    }
    if key.chars().any(|c| c.is_control() || matches!(c, '?' | '#' | '\\')) {
        return Err(Refusal::invalid_location("a location has no control character, `?`, `#` or `\\`"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(location: &str) -> Place {
        Place::parse(location).unwrap()
    }

    fn refused(location: &str) {
        assert_eq!(Place::parse(location).unwrap_err().kind, "InvalidLocation", "{location:?}");
    }

    #[test]
    fn what_stores_could_read_differently_is_no_place() {
        refused("");
        refused("s3://");
        refused("s3:///key");
        refused("s3a://lake/t");
        refused("S3://lake/t");
        refused("file:///lake/t");
        refused("lake/t");
        refused("s3://../t");
        refused("s3://la ke/t");
        refused("s3://user@lake/t");
        refused("s3://lake:80/t");
        refused("s3://lake/a/../b");
        refused("s3://lake/..");
        refused("s3://lake/./b");
        refused("s3://lake//b");
        refused("s3://lake/a//b");
        refused("s3://lake/a//");
        refused("s3://lake/a\\b");
        refused("s3://lake/a?b");
        refused("s3://lake/a#b");
        refused("s3://lake/a\nb");
        refused("s3://lake/a\u{0}b");
        refused(&format!("s3://lake/{}", "a".repeat(KEY_BYTES_MAX + 1)));
    }

    #[test]
    fn encoded_dots_stay_a_literal_key() {
        let odd = place("s3://lake/w_a/%2e%2e/b");
        assert_eq!(odd.key(), "w_a/%2e%2e/b");
        assert!(odd.is_within(&place("s3://lake/w_a")));
        assert_eq!(odd.path().unwrap().as_ref(), "w_a/%2e%2e/b");
    }

    #[test]
    fn a_trailing_slash_changes_nothing() {
        assert_eq!(place("s3://lake/w_a/"), place("s3://lake/w_a"));
        assert_eq!(place("s3://lake/"), place("s3://lake"));
        assert_eq!(Place::new("lake", "/w_a/").unwrap(), place("s3://lake/w_a"));
        assert_eq!(place("s3://lake/w_a/").to_string(), "s3://lake/w_a");
    }

    #[test]
    fn inside_is_decided_by_whole_segments() {
        let warehouse = place("s3://lake/w_a");
        assert!(place("s3://lake/w_a").is_within(&warehouse));
        assert!(place("s3://lake/w_a/t").is_strictly_within(&warehouse));
        assert!(!place("s3://lake/w_a").is_strictly_within(&warehouse));
        assert!(!place("s3://lake/w_aa/t").is_within(&warehouse));
        assert!(!place("s3://lake/w_").is_within(&warehouse));
        assert!(!place("s3://other/w_a/t").is_within(&warehouse));
        assert!(place("s3://lake/anything").is_within(&place("s3://lake")));
    }

    #[test]
    fn overlap_is_seen_from_both_sides() {
        let outer = place("s3://lake/w");
        let inner = place("s3://lake/w/t");
        assert!(outer.overlaps(&inner) && inner.overlaps(&outer));
        assert!(!inner.overlaps(&place("s3://lake/w/t2")));
    }

    #[test]
    fn a_child_of_a_whole_bucket_has_no_leading_slash() {
        assert_eq!(place("s3://lake").child("x").to_string(), "s3://lake/x");
    }
}
