//! Which object may go: plain decisions about one object, or one folder, by what is known of it.

use std::borrow::Cow;
use std::time::SystemTime;

use uuid::Uuid;

/// Endings of what Iceberg writers make. Whatever else lies in a table's folder is not ours to judge.
const ENDINGS: [&str; 6] = [".parquet", ".avro", ".orc", ".puffin", ".stats", ".metadata.json"];
/// The folders of a table in which they write.
const FOLDERS: [&str; 2] = ["data", "metadata"];
/// So often text may be percent-encoded anew.
const ENCODINGS_MAX: usize = 4;

/// What becomes of an object that lies below a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Metadata of a table lead to it.
    Referenced,
    /// Nothing leads to it yet, and it is not old enough to say that nothing will.
    Young,
    /// It is no file of Iceberg's.
    Unknown,
    /// Nothing leads to it, and whoever wrote it has had its time.
    Orphan,
}

/// Judges an object by its key below the table's location. What is as old as the cutoff is old.
pub(super) fn judge(below: &str, referenced: bool, modified: SystemTime, cutoff: SystemTime) -> Verdict {
    match () {
        () if referenced => Verdict::Referenced,
        () if modified > cutoff => Verdict::Young,
        () if !is_icebergs(below) => Verdict::Unknown,
        () => Verdict::Orphan,
    }
}

/// Whether a file lies where Iceberg writers put theirs, and is called as theirs are.
pub(super) fn is_icebergs(below: &str) -> bool {
    let folder = below.split_once('/').map(|(folder, _)| folder);
    folder.is_some_and(|folder| FOLDERS.contains(&folder))
        && ENDINGS.iter().any(|ending| below.ends_with(ending))
}

/// The folder of a table in which an object lies that belongs to no table of the catalog, and the rest of its key. Without
/// one it is no file of a table.
pub(super) fn stray_folder(below: &str) -> Option<(&str, &str)> {
    let mut at = 0;
    for segment in below.split('/') {
        if at > 0 && at + segment.len() < below.len() && FOLDERS.contains(&segment) {
            return Some((&below[..at - 1], &below[at..]));
        }
        at += segment.len() + 1;
    }
    None
}

/// What is known of a folder that belongs to no table of the catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // marks that objects leave, one by one
pub(super) struct Stray {
    /// Objects in it.
    pub(super) objects: u64,
    /// Their sizes together.
    pub(super) bytes: u64,
    /// When the youngest was written.
    pub(super) youngest: SystemTime,
    /// Whether the metadata of some table lead into it.
    pub(super) referenced: bool,
    /// Whether a table was committed there once: catalogs write its metadata then, and not before.
    pub(super) committed: bool,
    /// Whether an engine asked for something in it to be deleted.
    pub(super) asked: bool,
    /// Whether something in its `data` or `metadata` is no file of Iceberg's.
    pub(super) foreign: bool,
}

/// What such a folder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Something in it is in use, or not old enough to say.
    Busy,
    /// A table was there. That the catalog does not show it is the only sign that it is gone.
    Dropped,
    /// A table was to be there, and was never committed.
    Unfinished,
    /// Anybody's.
    Unknown,
}

/// What may be removed of such a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sweep {
    /// Nothing.
    Nothing,
    /// What an engine has asked to delete.
    Asked,
    /// Every file of Iceberg's.
    All,
}

/// Judges a folder, called by its path below the warehouse's place. `dropped`: the operator has said that what the catalog
/// does not show is gone.
pub(super) fn judge_stray(folder: &str, stray: &Stray, dropped: bool, cutoff: SystemTime) -> (Kind, Sweep) {
    let own_name = folder.rsplit('/').next().unwrap_or(folder);
    let all = if dropped { Sweep::All } else { Sweep::Nothing };
    if stray.referenced || stray.youngest > cutoff {
        (Kind::Busy, Sweep::Nothing)
    } else if stray.committed {
        (Kind::Dropped, all)
    } else if stray.asked {
        (Kind::Unfinished, if dropped { Sweep::All } else { Sweep::Asked })
    } else if Uuid::try_parse(own_name).is_ok() && !stray.foreign {
        (Kind::Unfinished, all)
    } else {
        (Kind::Unknown, Sweep::Nothing)
    }
}

/// What a path in metadata names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named<'a> {
    /// This key of the bucket.
    Here(&'a str),
    /// Something in another bucket.
    Elsewhere,
}

/// Reads a path as it stands in metadata. None: it is none that is understood here.
pub(super) fn named<'a>(path: &'a str, bucket: &str) -> Option<Named<'a>> {
    let rest = ["s3://", "s3a://", "s3n://"].iter().find_map(|scheme| path.strip_prefix(scheme))?;
    let (of, key) = rest.split_once('/')?;
    if of.is_empty() || key.is_empty() {
        return None;
    }
    Some(if of == bucket { Named::Here(key) } else { Named::Elsewhere })
}

/// A key without any percent-encoding, so that two spellings of a key are one. Two keys that become one are then both kept
/// when either is in use.
pub(super) fn canonical(key: &str) -> Cow<'_, [u8]> {
    let mut text = Cow::Borrowed(key.as_bytes());
    for _ in 0..ENCODINGS_MAX {
        let Some(decoded) = decoded(&text) else { break };
        text = Cow::Owned(decoded);
    }
    text
}

/// The text with what is percent-encoded decoded, if anything is.
fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |at: usize| text.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let byte = |at: usize| u8::try_from(digit(at + 1)? * 16 + digit(at + 2)?).ok();
    let mut decoded = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(now) = text.get(at) {
        let encoded = (*now == b'%').then(|| byte(at)).flatten();
        decoded.push(encoded.unwrap_or(*now));
        at += if encoded.is_some() { 3 } else { 1 };
    }
    (decoded.len() < text.len()).then_some(decoded)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    #[test]
    fn only_an_old_file_of_icebergs_that_nothing_refers_to_is_an_orphan() {
        let (old, young) = (NOW, NOW + Duration::from_secs(1));
        assert_eq!(judge("data/a.parquet", false, old, NOW), Verdict::Orphan);
        assert_eq!(judge("data/a.parquet", false, young, NOW), Verdict::Young);
        assert_eq!(judge("data/a.parquet", true, old, NOW), Verdict::Referenced);
        for ours in ["metadata/00001-x.gz.metadata.json", "data/k=1/a.parquet", "metadata/s.stats"] {
            assert_eq!(judge(ours, false, old, NOW), Verdict::Orphan, "{ours}");
        }
        for other in
            ["a.parquet", "files/a.parquet", "data/readme.txt", "metadata/version-hint.text", "data", ""]
        {
            assert_eq!(judge(other, false, old, NOW), Verdict::Unknown, "{other}");
        }
    }

    #[test]
    fn a_folder_of_nobodys_is_left_alone_unless_it_was_a_table() {
        let stray = Stray {
            objects: 1,
            bytes: 1,
            youngest: NOW,
            referenced: false,
            committed: false,
            asked: false,
            foreign: false,
        };
        let uuid = "some/019c2f6e-6c3c-7d5e-9d3b-3f0f5f1a2b3c";
        let of = |folder: &str, stray: &Stray, dropped| judge_stray(folder, stray, dropped, NOW);
        for dropped in [false, true] {
            let all = if dropped { Sweep::All } else { Sweep::Nothing };
            let asked = if dropped { Sweep::All } else { Sweep::Asked };
            assert_eq!(of("files", &stray, dropped), (Kind::Unknown, Sweep::Nothing));
            assert_eq!(of(uuid, &stray, dropped), (Kind::Unfinished, all));
            assert_eq!(of(uuid, &Stray { foreign: true, ..stray }, dropped), (Kind::Unknown, Sweep::Nothing));
            let was = Stray { committed: true, asked: true, ..stray };
            assert_eq!(of("files", &was, dropped), (Kind::Dropped, all));
            assert_eq!(of(uuid, &Stray { asked: true, ..stray }, dropped), (Kind::Unfinished, asked));
            let used = Stray { referenced: true, ..was };
            assert_eq!(of(uuid, &used, dropped), (Kind::Busy, Sweep::Nothing));
            let young = Stray { youngest: NOW + Duration::from_secs(1), ..was };
            assert_eq!(of(uuid, &young, dropped), (Kind::Busy, Sweep::Nothing));
        }
    }

    #[test]
    fn a_stray_file_belongs_to_the_folder_above_data_or_metadata() {
        assert_eq!(stray_folder("t/data/k=1/a.parquet"), Some(("t", "data/k=1/a.parquet")));
        assert_eq!(stray_folder("s/t/metadata/a.avro"), Some(("s/t", "metadata/a.avro")));
        assert_eq!(stray_folder("t/metadata/data/a"), Some(("t", "metadata/data/a")));
        for none in ["data/a.parquet", "t/a.parquet", "t/data", "", "a", "é/ü/data"] {
            assert_eq!(stray_folder(none), None, "{none}");
        }
    }

    #[test]
    fn a_path_is_read_as_a_key_or_not_at_all() {
        assert_eq!(named("s3://lake/w/a", "lake"), Some(Named::Here("w/a")));
        assert_eq!(named("s3a://lake/w//a", "lake"), Some(Named::Here("w//a")));
        assert_eq!(named("s3://other/w/a", "lake"), Some(Named::Elsewhere));
        for wrong in
            ["w/a", "file:///w/a", "S3://lake/a", "s3://lake", "s3://lake/", "s3:///a", "gs://lake/a", ""]
        {
            assert_eq!(named(wrong, "lake"), None, "{wrong}");
        }
    }

    #[test]
    fn spellings_of_one_key_are_one() {
        let same = |a: &str, b: &str| canonical(a) == canonical(b);
        assert!(same("p=x%3Dy", "p=x=y") && same("p=x%253Dy", "p=x%3dy") && same("%C3%BC", "ü"));
        assert!(!same("a%2", "a") && same("a%zz", "a%zz") && !same("a", "b"));
    }
}
