//! Where warehouses lie in the store: by a template of the configuration, or by the catalog's word.

use std::sync::Arc;

use async_trait::async_trait;
use duck_contract::Code;
use serde::{Deserialize, Serialize};

use crate::doors::Place;
use crate::doors::catalog::Upstream;
use crate::fault::Fault;
use crate::pool::Places;

/// What stands for the warehouse's name in a template.
const HOLE: &str = "{warehouse}";

/// Where warehouses are.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Every warehouse is called `{prefix}-w_{workspace}`.
    pub prefix: String,
    /// The schema whose tables need no schema name.
    pub default_schema: String,
    /// `s3://bucket/{warehouse}/`, or `s3://{warehouse}/` for a bucket each, or `catalog`: the catalog's management interface is
    /// asked (Lakekeeper's `GET /management/v1/warehouse/{id}`).
    pub place: String,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { prefix: String::new(), default_schema: "datasets".to_owned(), place: "catalog".to_owned() }
    }
}

impl Settings {
    /// Everything that is wrong with the settings.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.prefix.is_empty() || !crate::auth::is_workspace_id(&self.prefix) {
            faults.push("warehouse.prefix: letters, digits, `-` and `_`, at least one".to_owned());
        }
        if self.place != "catalog" && template(&self.place, "x").is_none() {
            faults.push(format!(
                "warehouse.place: `catalog`, or a URL with {HOLE} as the bucket or as the last part: s3://bucket/{HOLE}/"
            ));
        }
        faults
    }
}

/// The template with a name in it.
pub(crate) fn template(template: &str, warehouse: &str) -> Option<Place> {
    let rest = template.strip_prefix("s3://")?;
    let rest =
        if rest.contains(HOLE) { rest.to_owned() } else { format!("{}/{HOLE}", rest.trim_end_matches('/')) };
    let (bucket, prefix) = rest.split_once('/').unwrap_or((&rest, ""));
    let prefix = prefix.trim_end_matches('/');
    let sound = |part: &str| !part.is_empty() && part != "." && part != "..";
    match (bucket, prefix) {
        (HOLE, "") => Some(Place { bucket: warehouse.to_owned(), prefix: String::new() }),
        (_, "") => None,
        (bucket, prefix) if !bucket.contains(HOLE) && prefix.ends_with(HOLE) => {
            let prefix = prefix.replace(HOLE, warehouse);
            (sound(bucket) && prefix.split('/').all(sound))
                .then(|| Place { bucket: bucket.to_owned(), prefix: format!("{prefix}/") })
        }
        _ => None,
    }
}

/// Finds places as the settings say.
pub struct Configured {
    settings: Settings,
    upstream: Arc<Upstream>,
}

impl Configured {
    /// With a catalog to ask and to check against.
    pub fn new(settings: Settings, upstream: Arc<Upstream>) -> Self {
        Configured { settings, upstream }
    }
}

#[async_trait]
impl Places for Configured {
    fn expected(&self, warehouse: &str) -> Option<Place> {
        template(&self.settings.place, warehouse)
    }

    async fn place_of(&self, warehouse: &str) -> Result<Place, Fault> {
        let told = self.upstream.place_of(warehouse).await;
        if self.settings.place == "catalog" {
            return told.map_err(Fault::from);
        }
        let configured = template(&self.settings.place, warehouse)
            .ok_or_else(|| Fault::new(Code::UnknownWarehouse, "There is no warehouse of that name."))?;
        match told.map_err(Fault::from) {
            Ok(told) if told != configured => {
                let sentence = "The catalog says that this warehouse lies elsewhere than this server is configured to expect.";
                let cause = format!("catalog: {}, configured: {}", told.url(), configured.url());
                Err(Fault::new(Code::WarehousePlaceMismatch, sentence).because(cause))
            }
            // The warehouse must exist; that the catalog cannot say where (no management interface, or no right to it) is why
            // there is a template.
            Err(fault) if fault.code == Code::UnknownWarehouse => Err(fault),
            Err(_) => {
                self.upstream.prefix_of(warehouse).await.map_err(Fault::from)?;
                Ok(configured)
            }
            Ok(_) => Ok(configured),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_gives_a_prefix_or_a_bucket_and_never_a_shared_place() {
        let place = |t: &str| template(t, "c-w_a").map(|p| p.url());
        assert_eq!(place("s3://lakehouse/{warehouse}/").as_deref(), Some("s3://lakehouse/c-w_a/"));
        assert_eq!(place("s3://lakehouse/prod/{warehouse}").as_deref(), Some("s3://lakehouse/prod/c-w_a/"));
        assert_eq!(place("s3://{warehouse}/").as_deref(), Some("s3://c-w_a/"));
        assert_eq!(place("s3://lakehouse").as_deref(), Some("s3://lakehouse/c-w_a/"));
        for wrong in [
            "lakehouse/{warehouse}",
            "s3:///{warehouse}",
            "s3://a/../{warehouse}/",
            "s3://{warehouse}/x/",
            "s3://a/{warehouse}/x",
        ] {
            assert_eq!(place(wrong), None, "{wrong}");
        }
    }
}
