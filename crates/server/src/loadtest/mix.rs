//! Which queries run, and how often each.

use std::str::FromStr;

use serde::Serialize;

/// Rows that a query of a table reads at most: tables of a given catalog may be of any size.
const ROWS_MAX: u64 = 10_000;
/// How often a heavy query goes through them.
const REPEATS: u64 = 100;

/// A kind of query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// No table: what a query costs at least.
    Small,
    /// An aggregate of a small table: metadata and a data file are read.
    Table,
    /// The same rows a hundred times: the engine works.
    Heavy,
}

impl Kind {
    pub(super) const ALL: [Kind; 3] = [Kind::Small, Kind::Table, Kind::Heavy];

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Small => "small",
            Kind::Table => "table",
            Kind::Heavy => "heavy",
        }
    }

    /// The statement, for any table.
    pub(super) fn sql(self, table: &str) -> String {
        match self {
            Kind::Small => "SELECT 42".to_owned(),
            Kind::Table => format!("SELECT count(*), max(hash(t)) FROM (FROM {table} LIMIT {ROWS_MAX}) t"),
            Kind::Heavy => format!(
                "SELECT count(*), max(hash(t, r)) FROM (FROM {table} LIMIT {ROWS_MAX}) t, range({REPEATS}) r(r)"
            ),
        }
    }
}

/// Shares of the kinds: `small=60,table=35,heavy=5`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mix {
    /// In the order of [`Kind::ALL`]; their sum is not zero.
    shares: [u16; 3],
}

impl Default for Mix {
    fn default() -> Self {
        Mix { shares: [60, 35, 5] }
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut shares = [None; 3];
        for part in text.split(',') {
            let (name, share) = part.split_once('=').ok_or(format!("`{part}` is not KIND=SHARE"))?;
            let kind = Kind::ALL.iter().position(|kind| kind.name() == name.trim());
            let share = share.trim().parse().map_err(|_| format!("`{share}` is not a number up to 65535"))?;
            let place = kind.ok_or(format!("`{name}` is none of small, table, heavy"))?;
            if shares[place].replace(share).is_some() {
                return Err(format!("{name} is there twice"));
            }
        }
        let shares = shares.map(|share: Option<u16>| share.unwrap_or(0));
        if shares == [0; 3] {
            return Err("every share is 0".to_owned());
        }
        Ok(Mix { shares })
    }
}

impl std::fmt::Display for Mix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [small, table, heavy] = self.shares;
        write!(f, "small={small},table={table},heavy={heavy}")
    }
}

impl Mix {
    /// What the query of this number is, and which of `tenants` asks it. The same for every run; over many numbers each kind has
    /// its share and each tenant the same.
    pub(super) fn pick(self, number: u64, tenants: usize) -> (Kind, usize) {
        let sum = self.shares.iter().map(|share| u64::from(*share)).sum::<u64>().max(1);
        let mut rest = scattered(number) % sum;
        let mut kind = Kind::Small;
        for (candidate, share) in Kind::ALL.into_iter().zip(self.shares.map(u64::from)) {
            if rest < share {
                kind = candidate;
                break;
            }
            rest -= share;
        }
        let tenant = scattered(number ^ u64::MAX) % tenants.max(1) as u64;
        (kind, usize::try_from(tenant).unwrap_or(0))
    }
}

/// `SplitMix64` (Steele, Lea, Flood 2014): numbers in a row become numbers without one.
fn scattered(number: u64) -> u64 {
    let mut z = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_is_read_and_every_fault_of_it_named() {
        let mix: Mix = "small=60, table=35,heavy=5".parse().unwrap();
        assert_eq!((mix.shares, mix.to_string().as_str()), ([60, 35, 5], "small=60,table=35,heavy=5"));
        assert_eq!("heavy=1".parse::<Mix>().unwrap().shares, [0, 0, 1]);
        for (text, fault) in [
            ("", "KIND=SHARE"),
            ("small", "KIND=SHARE"),
            ("small=x", "number"),
            ("small=-1", "number"),
            ("large=1", "none of"),
            ("small=1,small=2", "twice"),
            ("small=0,table=0", "every share"),
        ] {
            let said = text.parse::<Mix>().unwrap_err();
            assert!(said.contains(fault), "{text}: {said}");
        }
    }

    #[test]
    fn kinds_have_their_shares_and_tenants_the_same() {
        let mix: Mix = "small=60,table=35,heavy=5".parse().unwrap();
        let (mut kinds, mut tenants) = ([0_u32; 3], [0_u32; 7]);
        for number in 0..70_000 {
            let (kind, tenant) = mix.pick(number, tenants.len());
            kinds[kind as usize] += 1;
            tenants[tenant] += 1;
        }
        for (count, share) in kinds.iter().zip([42_000, 24_500, 3_500]) {
            assert!(count.abs_diff(share) < 500, "{kinds:?}");
        }
        assert!(tenants.iter().all(|count| count.abs_diff(10_000) < 400), "{tenants:?}");
    }
}
