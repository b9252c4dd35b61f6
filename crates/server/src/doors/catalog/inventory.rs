//! What maintenance asks: which warehouses there are, every table of one, and all of a table's metadata.
//!
//! A list that is cut short here would make files of a table look like nobody's: whatever is not whole is an error.

use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use reqwest::StatusCode;
use serde::Deserialize;
use tokio::time::timeout;

use super::commits::namespace_segment;
use super::listing::{CALLS_AT_ONCE, Namespace, TABLES_MAX, within};
use super::upstream::{Answer, CatalogError, Upstream, encode, parse};

/// To list all tables of a warehouse.
const INVENTORY_TIME_MAX: Duration = Duration::from_mins(5);

/// A table by its full name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TableId {
    /// The levels of its namespace.
    pub namespace: Vec<String>,
    /// Its name there.
    pub name: String,
}

impl std::fmt::Display for TableId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.namespace.join("."), self.name)
    }
}

impl Upstream {
    /// The names of all warehouses that our login may see, from Lakekeeper's management API.
    pub async fn warehouses(&self) -> Result<Vec<String>, CatalogError> {
        #[derive(Deserialize)]
        struct Listed {
            warehouses: Vec<Warehouse>,
        }
        #[derive(Deserialize)]
        struct Warehouse {
            name: String,
        }
        let answer = self.read_at(&self.managed()?, "/v1/warehouse").await?;
        let listed: Listed = parse(&answer, "the list of warehouses is not Lakekeeper's")?;
        Ok(listed.warehouses.into_iter().map(|warehouse| warehouse.name).collect())
    }

    /// Every table of the warehouse, sorted.
    pub async fn inventory(&self, warehouse: &str) -> Result<Vec<TableId>, CatalogError> {
        self.in_all_namespaces(warehouse, "tables").await
    }

    /// What of a warehouse is neither a table nor nothing: views, and tables that are dropped but can be had back. Where
    /// a catalog knows no such things there are none.
    pub async fn has_other_things(&self, warehouse: &str) -> Result<bool, CatalogError> {
        #[derive(Deserialize)]
        struct Deleted {
            tabulars: Vec<serde::de::IgnoredAny>,
        }
        if !self.in_all_namespaces(warehouse, "views").await?.is_empty() {
            return Ok(true);
        }
        let Ok(base) = self.managed() else { return Ok(false) };
        let prefix = self.prefix_of(warehouse).await?;
        let answer = self.read_at(&base, &format!("/v1/warehouse/{prefix}/deleted-tabulars")).await?;
        if is_no_route(&answer) {
            return Ok(false);
        }
        let deleted: Deleted = parse(&answer, "the list of deleted tables is not Lakekeeper's")?;
        Ok(!deleted.tabulars.is_empty())
    }

    /// What the catalog says of a table, with all of its snapshots; nothing when it is not there (any more).
    pub async fn table(&self, warehouse: &str, table: &TableId) -> Result<Option<Bytes>, CatalogError> {
        let prefix = self.prefix_of(warehouse).await?;
        let (namespace, name) = (namespace_segment(&table.namespace), encode(&table.name));
        let path = format!("/v1/{prefix}/namespaces/{namespace}/tables/{name}?snapshots=all");
        let answer = self.read(&path).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        parse::<serde::de::IgnoredAny>(&answer, "the table is no JSON")?;
        Ok(Some(answer.body))
    }

    fn managed(&self) -> Result<String, CatalogError> {
        const NOT_LAKEKEEPER: CatalogError =
            CatalogError::Unusable { reason: "only Lakekeeper (`…/catalog`) has a management interface" };
        self.settings().management().ok_or(NOT_LAKEKEEPER)
    }

    async fn in_all_namespaces(&self, warehouse: &str, kind: &str) -> Result<Vec<TableId>, CatalogError> {
        let late = |_| CatalogError::unavailable("the warehouse could not be listed in time");
        timeout(INVENTORY_TIME_MAX, self.list_ids(warehouse, kind)).await.map_err(late)?
    }

    async fn list_ids(&self, warehouse: &str, kind: &str) -> Result<Vec<TableId>, CatalogError> {
        let prefix = self.prefix_of(warehouse).await?;
        let namespaces = self.list_namespaces(&prefix).await?;
        let prefix = &prefix;
        let mut lists = stream::iter(namespaces)
            .map(|namespace| async move { self.list_ids_in(prefix, &namespace, kind).await })
            .buffer_unordered(CALLS_AT_ONCE);
        let mut ids = Vec::new();
        while let Some(list) = lists.try_next().await? {
            ids.extend(list);
            within(ids.len(), TABLES_MAX)?;
        }
        ids.sort();
        Ok(ids)
    }

    async fn list_ids_in(
        &self,
        prefix: &str,
        namespace: &Namespace,
        kind: &str,
    ) -> Result<Vec<TableId>, CatalogError> {
        let path = format!("/v1/{prefix}/namespaces/{}/{kind}?", namespace_segment(namespace));
        match self.pages(&path, TABLES_MAX, |page| page.identifiers).await {
            // The namespace was dropped since it was listed; or there is no such route, hence no such thing.
            Err(CatalogError::UnknownWarehouse) => Ok(Vec::new()),
            ids => {
                Ok(ids?.into_iter().map(|id| TableId { namespace: id.namespace, name: id.name }).collect())
            }
        }
    }
}

fn is_no_route(answer: &Answer) -> bool {
    matches!(answer.status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED)
}
