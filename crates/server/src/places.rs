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
/// What stands for the workspace's id in the name of a bucket: a warehouse's name has a `_`, and a bucket's must not.
const WORKSPACE: &str = "{workspace}";

/// Where warehouses are.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Every warehouse is called `{prefix}-w_{workspace}`.
    pub prefix: String,
    /// The schema whose tables need no schema name.
    pub default_schema: String,
    /// `s3://bucket/{warehouse}/`; for a bucket each `s3://…{workspace}…/`, or `s3://{warehouse}/` where the store takes such
    /// names; or `catalog`: the catalog's management interface is asked (Lakekeeper's `GET /management/v1/warehouse/{id}`).
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
        if self.place != "catalog" && self.configured(&format!("{}-w_xyz", self.prefix)).is_none() {
            faults.push(format!(
                "warehouse.place: `catalog`, or a URL with {HOLE} as the bucket or as the last part, or with {WORKSPACE} in the \
                 bucket's name: s3://bucket/{HOLE}/, s3://acme-{WORKSPACE}/"
            ));
        }
        faults
    }

    /// Where a warehouse lies by these settings; `None` if they do not say, or its workspace's id can be in no bucket's name.
    fn configured(&self, warehouse: &str) -> Option<Place> {
        if !self.place.contains(WORKSPACE) {
            return template(&self.place, warehouse);
        }
        let workspace = warehouse.strip_prefix(&self.prefix)?.strip_prefix("-w_")?;
        let (before, after) =
            self.place.strip_prefix("s3://")?.trim_end_matches('/').split_once(WORKSPACE)?;
        let bucket = format!("{before}{workspace}{after}");
        is_bucket_name(&bucket).then(|| Place { bucket, prefix: String::new() })
    }
}

/// Letters, digits and hyphens as S3 takes them. Dots, which it takes too, would break TLS.
fn is_bucket_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [name.bytes().next(), name.bytes().next_back()];
    (3..=63).contains(&name.len())
        && name.bytes().all(|byte| plain(byte) || byte == b'-')
        && ends.into_iter().flatten().all(plain)
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
        self.settings.configured(warehouse)
    }

    async fn place_of(&self, warehouse: &str) -> Result<Place, Fault> {
        let told = self.upstream.place_of(warehouse).await;
        if self.settings.place == "catalog" {
            return told.map_err(Fault::from);
        }
        let configured = self
            .settings
            .configured(warehouse)
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

    #[test]
    fn a_workspace_s_bucket_is_its_own_and_has_a_name_that_stores_take() {
        let settings =
            |place: &str| Settings { prefix: "c".into(), place: place.into(), ..Settings::default() };
        let buckets = settings("s3://lake-{workspace}-eu/");
        assert_eq!(buckets.faults(), Vec::<String>::new());
        let place = |warehouse: &str| buckets.configured(warehouse).map(|place| place.url());
        assert_eq!(place("c-w_a1-b").as_deref(), Some("s3://lake-a1-b-eu/"));
        // No two ids may meet in one bucket, so those that would have to be changed have none.
        for other in ["c-w_a1_b", "c-w_A1", "d-w_a1", "c-a1", "c-w_a/b", &format!("c-w_{}", "a".repeat(60))] {
            assert_eq!(place(other), None, "{other}");
        }
        for wrong in [
            "{workspace}",
            "s3://{workspace}/x/",
            "s3://b/{workspace}/",
            "s3://{workspace}-{workspace}/",
            "s3://B{workspace}/",
        ] {
            assert_eq!(settings(wrong).faults().len(), 1, "{wrong}");
        }
        assert_eq!(settings("s3://{workspace}").configured("c-w_-ab"), None);
    }
}
