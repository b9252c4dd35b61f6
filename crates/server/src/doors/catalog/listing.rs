//! What the front itself asks the catalog: a warehouse's place and its tables.

use std::collections::BTreeSet;
use std::time::Duration;

use duck_contract::query::TableName;
use futures::{StreamExt, TryStreamExt, stream};
use serde::Deserialize;
use tokio::time::timeout;
use uuid::Uuid;

use super::Place;
use super::commits::namespace_segment;
use super::upstream::{CatalogError, Upstream, encode, parse};

const NAMESPACES_MAX: usize = 10_000;
pub(super) const TABLES_MAX: usize = 100_000;
const PAGES_MAX: usize = 1_000;
const DEPTH_MAX: usize = 16;
pub(super) const CALLS_AT_ONCE: usize = 8;
const LISTING_TIME_MAX: Duration = Duration::from_secs(30);

pub(super) type Namespace = Vec<String>;

impl Upstream {
    /// Where the warehouse lies, from Lakekeeper's management API. Needs the right `describe` on the warehouse.
    pub async fn place_of(&self, warehouse: &str) -> Result<Place, CatalogError> {
        const NOT_LAKEKEEPER: CatalogError =
            CatalogError::Unusable { reason: "only Lakekeeper (`…/catalog`) tells a warehouse's place" };
        let base = self.settings().management().ok_or(NOT_LAKEKEEPER)?;
        let id: Uuid = self.prefix_of(warehouse).await?.parse().map_err(|_| NOT_LAKEKEEPER)?;
        let answer = self.read_at(&base, &format!("/v1/warehouse/{id}")).await?;
        let described: Described = parse(&answer, "the warehouse's description is not Lakekeeper's")?;
        described.storage_profile.place()
    }

    /// All tables of the warehouse, sorted. At most 100,000 of them, and within 30 s.
    pub async fn tables(&self, warehouse: &str) -> Result<Vec<TableName>, CatalogError> {
        let late = |_| CatalogError::unavailable("the tables could not be listed in time");
        timeout(LISTING_TIME_MAX, self.list_tables(warehouse)).await.map_err(late)?
    }

    /// All schemas of the warehouse; a nested namespace is joined by dots.
    pub async fn schemas(&self, warehouse: &str) -> Result<Vec<String>, CatalogError> {
        let late = |_| CatalogError::unavailable("the schemas could not be listed in time");
        let prefix = self.prefix_of(warehouse).await?;
        let namespaces = timeout(LISTING_TIME_MAX, self.list_namespaces(&prefix)).await.map_err(late)??;
        Ok(namespaces.into_iter().map(|namespace| namespace.join(".")).collect())
    }

    async fn list_tables(&self, warehouse: &str) -> Result<Vec<TableName>, CatalogError> {
        let prefix = self.prefix_of(warehouse).await?;
        let namespaces = self.list_namespaces(&prefix).await?;
        let prefix = &prefix;
        let mut lists = stream::iter(namespaces)
            .map(|namespace| async move { self.list_tables_in(prefix, &namespace).await })
            .buffer_unordered(CALLS_AT_ONCE);
        let mut tables = Vec::new();
        while let Some(list) = lists.try_next().await? {
            tables.extend(list);
            within(tables.len(), TABLES_MAX)?;
        }
        tables.sort();
        Ok(tables)
    }

    /// Level by level, so that a catalog that ignores `parent` cannot lead us round in circles.
    pub(super) async fn list_namespaces(&self, prefix: &str) -> Result<BTreeSet<Namespace>, CatalogError> {
        let mut all = BTreeSet::new();
        let mut level = self.list_children(prefix, &[]).await?;
        for _ in 0..DEPTH_MAX {
            if level.is_empty() {
                break;
            }
            let children: Vec<_> = stream::iter(level.clone())
                .map(|parent| async move { self.list_children(prefix, &parent).await })
                .buffer_unordered(CALLS_AT_ONCE)
                .try_concat()
                .await?;
            all.extend(level);
            within(all.len() + children.len(), NAMESPACES_MAX)?;
            level = children;
        }
        Ok(all)
    }

    async fn list_children(&self, prefix: &str, parent: &[String]) -> Result<Vec<Namespace>, CatalogError> {
        let below = namespace_segment(parent);
        let path = match parent {
            [] => format!("/v1/{prefix}/namespaces?"),
            _ => format!("/v1/{prefix}/namespaces?parent={below}&"),
        };
        let children = self.pages(&path, NAMESPACES_MAX, |page| page.namespaces).await;
        let mut children: Vec<Namespace> = match children {
            // Dropped since it was listed.
            Err(CatalogError::UnknownWarehouse) if !parent.is_empty() => Vec::new(),
            children => children?,
        };
        children.retain(|child| child.len() == parent.len() + 1 && child.starts_with(parent));
        Ok(children)
    }

    async fn list_tables_in(&self, prefix: &str, parent: &[String]) -> Result<Vec<TableName>, CatalogError> {
        let path = format!("/v1/{prefix}/namespaces/{}/tables?", namespace_segment(parent));
        let tables = self.pages(&path, TABLES_MAX, |page| page.identifiers).await;
        let tables = match tables {
            // As above.
            Err(CatalogError::UnknownWarehouse) => Vec::new(),
            tables => tables?,
        };
        Ok(tables
            .into_iter()
            .map(|table| TableName { schema: table.namespace.join("."), name: table.name })
            .collect())
    }

    /// All items of a paged list, at most `items_max`. `path` ends where a parameter may follow.
    pub(super) async fn pages<T>(
        &self,
        path: &str,
        items_max: usize,
        items_of: impl Fn(Page) -> Vec<T>,
    ) -> Result<Vec<T>, CatalogError> {
        let mut items = Vec::new();
        let mut token = String::new();
        for _ in 0..PAGES_MAX {
            let answer = self.read(&format!("{path}pageSize=1000&pageToken={}", encode(&token))).await?;
            let page: Page = parse(&answer, "a list is not what the interface says")?;
            let next = page.next_page_token.clone();
            items.extend(items_of(page));
            within(items.len(), items_max)?;
            match next {
                Some(next) if !next.is_empty() && next != token => token = next,
                _ => return Ok(items),
            }
        }
        Err(TOO_MANY)
    }
}

const TOO_MANY: CatalogError =
    CatalogError::Unusable { reason: "the warehouse holds more than is listed here" };

pub(super) fn within(count: usize, max: usize) -> Result<(), CatalogError> {
    if count <= max { Ok(()) } else { Err(TOO_MANY) }
}

#[derive(Deserialize)]
pub(super) struct Page {
    #[serde(default)]
    pub(super) namespaces: Vec<Namespace>,
    #[serde(default)]
    pub(super) identifiers: Vec<Identifier>,
    #[serde(rename = "next-page-token")]
    next_page_token: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Identifier {
    pub(super) namespace: Namespace,
    pub(super) name: String,
}

#[derive(Deserialize)]
struct Described {
    #[serde(rename = "storage-profile")]
    storage_profile: StorageProfile,
}

#[derive(Deserialize)]
struct StorageProfile {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    bucket: String,
    #[serde(rename = "key-prefix")]
    key_prefix: Option<String>,
}

impl StorageProfile {
    fn place(self) -> Result<Place, CatalogError> {
        let prefix = self.key_prefix.unwrap_or_default();
        let prefix = prefix.trim_matches('/');
        let plain =
            |segment: &str| !matches!(segment, "" | "." | "..") && !segment.contains(char::is_control);
        let holds = self.kind == "s3"
            && plain(&self.bucket)
            && !self.bucket.contains('/')
            && (prefix.is_empty() || prefix.split('/').all(plain));
        if !holds {
            return Err(CatalogError::Unusable { reason: "the warehouse does not lie in an S3 bucket" });
        }
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Ok(Place { bucket: self.bucket, prefix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(profile: &str) -> Option<String> {
        serde_json::from_str::<StorageProfile>(profile).ok()?.place().ok().map(|place| place.url())
    }

    #[test]
    fn a_key_prefix_becomes_a_place_with_one_trailing_slash() {
        let url = |prefix: &str| place(&format!(r#"{{"type":"s3","bucket":"lake","key-prefix":{prefix}}}"#));
        assert_eq!(url(r#""carbon-prod/w_aaa""#).as_deref(), Some("s3://lake/carbon-prod/w_aaa/"));
        assert_eq!(url(r#""/carbon-prod/w_aaa/""#).as_deref(), Some("s3://lake/carbon-prod/w_aaa/"));
        assert_eq!(url("null").as_deref(), Some("s3://lake/"));
        assert_eq!(url(r#""a/../b""#), None);
        assert_eq!(url(r#""a//b""#), None);
        assert_eq!(place(r#"{"type":"adls","filesystem":"lake"}"#), None);
    }
}
