//! Listing as S3 understands it: by text prefix, page by page, with folders folded.
//!
//! S3 does this itself. Folders and memory list by whole path segments and all at once, so their entries go through a
//! [`Fold`], which keeps one page and no more. What comes back is checked either way: a store is never trusted to have
//! honoured the prefix.

use std::collections::BTreeMap;

use futures::TryStreamExt;
use object_store::list::PaginatedListOptions;
use object_store::path::Path;
use object_store::{ObjectMeta, Result};

use super::backend::Client;

/// Entries of one page, as S3 has it.
pub(super) const PAGE_MAX: usize = 1_000;

/// What to list.
#[derive(Debug, Clone, Default)]
pub(super) struct Ask {
    /// Text with which keys begin.
    pub(super) prefix: String,
    /// Whether to fold what has a further slash into one entry.
    pub(super) fold: bool,
    /// Only keys behind this one.
    pub(super) start_after: Option<String>,
    /// Where the last page ended.
    pub(super) token: Option<String>,
    /// Entries of the page, 1 to [`PAGE_MAX`].
    pub(super) max: usize,
}

/// One page, in the order of the keys.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) objects: Vec<ObjectMeta>,
    /// With their trailing slash.
    pub(super) folders: Vec<String>,
    /// Where the next page begins, if there is one.
    pub(super) token: Option<String>,
}

/// One page of the bucket.
pub(super) async fn list(client: &Client, ask: Ask) -> Result<Page> {
    let Some(pages) = client.pages() else {
        let folder = ask.prefix.rsplit_once('/').map_or("", |(folder, _)| folder);
        let folder = Path::parse(folder)?;
        let mut all = client.objects().list(Some(&folder));
        let mut fold = Fold::new(ask);
        while let Some(object) = all.try_next().await? {
            fold.offer(object);
        }
        return Ok(fold.page());
    };
    let options = PaginatedListOptions {
        offset: ask.start_after,
        delimiter: ask.fold.then(|| "/".into()),
        max_keys: Some(ask.max),
        page_token: ask.token,
        ..PaginatedListOptions::default()
    };
    let answer = pages.list_paginated(Some(&ask.prefix), options).await?;
    let folders = answer.result.common_prefixes.iter().map(|folder| format!("{folder}/")).collect();
    Ok(Page { objects: answer.result.objects, folders, token: answer.page_token })
}

impl Page {
    /// The page, if all of it begins with the prefix. A folder's own marker object, whose slash `object_store` takes
    /// off, is left out.
    pub(super) fn checked(mut self, prefix: &str) -> Option<Self> {
        self.objects.retain(|object| prefix.strip_suffix('/') != Some(object.location.as_ref()));
        let objects = self.objects.iter().all(|object| object.location.as_ref().starts_with(prefix));
        (objects && self.folders.iter().all(|folder| folder.starts_with(prefix))).then_some(self)
    }
}

/// Gathers the first entries of a page from objects in any order, and holds one more than the page has.
struct Fold {
    ask: Ask,
    entries: BTreeMap<String, Option<ObjectMeta>>,
}

impl Fold {
    fn new(ask: Ask) -> Self {
        Self { ask, entries: BTreeMap::new() }
    }

    fn offer(&mut self, object: ObjectMeta) {
        let key = object.location.as_ref();
        let behind = |limit: &Option<String>, name: &str| limit.as_deref().is_none_or(|limit| name > limit);
        let Some(rest) = key.strip_prefix(self.ask.prefix.as_str()) else { return };
        let folder = rest.find('/').filter(|_| self.ask.fold).map(|at| &key[..=self.ask.prefix.len() + at]);
        let name = folder.unwrap_or(key).to_owned();
        if behind(&self.ask.start_after, key) && behind(&self.ask.token, &name) {
            let object = folder.is_none().then_some(object);
            self.entries.insert(name, object);
            if self.entries.len() > self.ask.max + 1 {
                self.entries.pop_last();
            }
        }
    }

    fn page(mut self) -> Page {
        let more = self.entries.len() > self.ask.max;
        if more {
            self.entries.pop_last();
        }
        let token = self.entries.last_key_value().filter(|_| more).map(|(name, _)| name.clone());
        let mut page = Page { token, ..Page::default() };
        for (name, object) in self.entries {
            match object {
                Some(object) => page.objects.push(object),
                None => page.folders.push(name),
            }
        }
        page
    }
}

/// The text with everything but unreserved characters and slashes percent-encoded, as `encoding-type=url` asks.
pub(super) fn url_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let digit = |nibble: u8| char::from(b"0123456789ABCDEF"[usize::from(nibble & 15)]);
            encoded.extend(['%', digit(byte >> 4), digit(byte)]);
        }
    }
    encoded
}

/// A token as workers see it: digits, so that it is the same in XML and in a URL, whatever a client forgets to escape.
pub(super) fn token_shown(token: &str) -> String {
    token
        .bytes()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|nibble| char::from_digit(nibble.into(), 16))
        .collect()
}

/// The token behind what was shown.
pub(super) fn token_read(shown: &str) -> Option<String> {
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let whole = shown.len().is_multiple_of(2) && shown.bytes().all(|byte| byte.is_ascii_hexdigit());
    let bytes: Option<Vec<u8>> = shown.as_bytes().chunks(2).map(pair).collect();
    String::from_utf8(bytes.filter(|_| whole)?).ok()
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;
    use object_store::{ObjectStoreExt, PutPayload};
    use proptest::prelude::*;

    use super::*;

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
    }

    /// All names, page by page.
    async fn walk(client: &Client, ask: &Ask) -> Vec<String> {
        let (mut names, mut ask) = (Vec::new(), ask.clone());
        loop {
            let page = list(client, ask.clone()).await.unwrap().checked(&ask.prefix).unwrap();
            let mut these: Vec<_> = page.objects.iter().map(|object| object.location.to_string()).collect();
            these.extend(page.folders);
            these.sort();
            assert!(these.len() <= ask.max);
            names.extend(these);
            let Some(token) = page.token else { return names };
            ask.token = Some(token);
        }
    }

    async fn bucket(keys: &[&str]) -> Client {
        let memory = InMemory::new();
        for key in keys {
            memory.put(&Path::from(*key), PutPayload::new()).await.unwrap();
        }
        Client::Memory(memory.into())
    }

    #[test]
    fn a_prefix_is_text_and_folders_fold() {
        run(async {
            let client = bucket(&["w_a/t/1", "w_a/t/2", "w_a/t-3", "w_a/u/4", "w_b/t/5"]).await;
            let ask = |prefix: &str, fold| Ask { prefix: prefix.into(), fold, max: 2, ..Ask::default() };
            assert_eq!(walk(&client, &ask("w_a/t", false)).await, ["w_a/t-3", "w_a/t/1", "w_a/t/2"]);
            assert_eq!(walk(&client, &ask("w_a/", true)).await, ["w_a/t-3", "w_a/t/", "w_a/u/"]);
            assert_eq!(walk(&client, &ask("w_a/t/", true)).await, ["w_a/t/1", "w_a/t/2"]);
            assert_eq!(walk(&client, &ask("w_c/", true)).await, [""; 0]);
        });
    }

    #[test]
    fn a_page_with_a_foreign_key_is_no_page() {
        run(async {
            let client = bucket(&["w_a/1", "w_b/2"]).await;
            let page = list(&client, Ask { max: 9, ..Ask::default() }).await.unwrap();
            assert!(page.checked("w_a/").is_none());
        });
    }

    #[test]
    fn a_token_reads_back_as_it_was_shown() {
        assert_eq!(token_read(&token_shown("w_a/ü&")).as_deref(), Some("w_a/ü&"));
        for wrong in ["7", "+7", "zz", "ff", "w_a/"] {
            assert_eq!(token_read(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_token_or_start_leads_outside(token in "(w_a/|w_b/|w_|z|/|x){0,4}", after in "(w_a/|w_b/|a){0,3}", fold: bool) {
            run(async {
                let client = bucket(&["a", "w_a/1", "w_a/x/2", "w_ab/3", "w_b/4", "z"]).await;
                let ask = Ask { prefix: "w_a/".into(), fold, start_after: Some(after), token: Some(token), max: 3 };
                for name in walk(&client, &ask).await {
                    assert!(name.starts_with("w_a/"), "{name}");
                }
            });
        }

        #[test]
        fn pages_of_any_size_add_up(max in 1_usize..7, fold: bool) {
            run(async {
                let client = bucket(&["p/a", "p/b/1", "p/b/2", "p/b0", "p/c/d/e", "p/z"]).await;
                let ask = |max| Ask { prefix: "p/".into(), fold, max, ..Ask::default() };
                assert_eq!(walk(&client, &ask(max)).await, walk(&client, &ask(PAGE_MAX)).await);
            });
        }
    }
}
