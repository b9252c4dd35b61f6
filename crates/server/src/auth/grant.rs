//! What a token lets its bearer write.

/// What a token lets its bearer write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grant {
    /// Nothing.
    Nothing,
    /// Whatever the service's policy lets it.
    Everything,
    /// Tables (`schema.table`) and whole schemas (`schema.*`) by name, without regard to case.
    Only(Vec<String>),
}

impl Grant {
    /// As a token says it: `write`, and perhaps only for these.
    pub(super) fn of(write: bool, only: Option<Vec<String>>) -> Self {
        match (write, only) {
            (false, _) => Grant::Nothing,
            (true, None) => Grant::Everything,
            (true, Some(names)) => Grant::Only(names),
        }
    }

    /// Whether it is for this table, or for this whole schema.
    pub fn covers(&self, schema: &str, table: Option<&str>) -> bool {
        let Grant::Only(names) = self else { return *self == Grant::Everything };
        let schema = schema.to_lowercase();
        let whole = format!("{schema}.*");
        let table = table.map(|table| format!("{schema}.{}", table.to_lowercase()));
        names.iter().map(|name| name.to_lowercase()).any(|name| name == whole || Some(name) == table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_for_everything_or_for_what_it_names() {
        let only = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let grant = |write, names: &[&str]| Grant::of(write, Some(only(names)));
        assert!(Grant::of(true, None).covers("ds", Some("t")));
        assert!(!Grant::of(false, None).covers("ds", Some("t")));
        assert!(!grant(false, &["ds"]).covers("ds", Some("t")));
        let some = grant(true, &["ds.Orders", "staging.*"]);
        assert!(some.covers("DS", Some("orders")) && some.covers("staging", Some("any")));
        assert!(some.covers("staging", None) && !some.covers("stagin", None));
        assert!(!some.covers("ds", Some("other")) && !some.covers("ds", None));
        // A table is not the schema of the same name below another one.
        assert!(!some.covers("ds.orders", Some("t")) && !some.covers("ds.orders", None));
        assert!(!grant(true, &[]).covers("ds", Some("t")));
    }
}
