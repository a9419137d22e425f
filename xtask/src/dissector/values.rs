//! What a cell of a column "values" allows, as far as it is a plain set of numbers.

/// The numbers that a field may have. A cell that says more, or depends on other fields, allows all.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Allowed {
    pub(super) min: Option<u64>,
    pub(super) max: Option<u64>,
    /// Names of single numbers.
    pub(super) names: Vec<(u64, String)>,
    /// Names of bits.
    pub(super) flags: Vec<(u64, String)>,
}

impl Allowed {
    /// Reads a cell without links and backticks. What stands behind a semicolon qualifies, and is left out.
    pub(super) fn new(cell: &str) -> Self {
        let cell = cell.split(';').next().unwrap_or_default().trim();
        let items: Vec<&str> = cell.split(", ").collect();
        if let Some((low, high)) = cell.split_once(" … ") {
            return match (number(low), number(high)) {
                (Some(low), Some(high)) => Self::between(Some(low), Some(high)),
                _ => Self::default(),
            };
        }
        if let Some(flags) = named(&items).filter(|_| cell.starts_with("0x")) {
            return Self { flags, ..Self::default() };
        }
        if let Some(rest) = cell.strip_prefix("≤ ") {
            return Self::between(None, bound(rest));
        }
        if let Some(rest) = cell.strip_prefix("< ") {
            return Self::between(None, bound(rest).map(|bound| bound - 1));
        }
        if let Some(rest) = cell.strip_prefix("≥ ") {
            return Self::between(bound(rest), None);
        }
        if let Some(numbers) = items.iter().map(|item| number(item)).collect::<Option<Vec<u64>>>() {
            return Self::between(numbers.iter().min().copied(), numbers.iter().max().copied());
        }
        match named(&items) {
            // One number and words is a condition: "0 without NOTIFY".
            Some(names) if names.len() > 1 => {
                let numbers = || names.iter().map(|(number, _)| *number);
                Self { min: numbers().min(), max: numbers().max(), names, ..Self::default() }
            }
            _ => Self::default(),
        }
    }

    fn between(min: Option<u64>, max: Option<u64>) -> Self {
        Self { min, max, ..Self::default() }
    }
}

/// The number before words that do not change it.
fn bound(text: &str) -> Option<u64> {
    let text = text.split(", ").next().unwrap_or_default();
    number(text.strip_suffix(" bytes").unwrap_or(text))
}

/// `0 data`, `1 hole`: numbers with names. "or both" and the like name none.
fn named(items: &[&str]) -> Option<Vec<(u64, String)>> {
    let named = |item: &&str| {
        let (value, name) = item.split_once(' ')?;
        Some((number(value)?, name.to_owned()))
    };
    items.iter().filter(|item| !item.starts_with("or ")).map(named).collect()
}

/// 4,096, 0x10, 0o7777, 10⁹ and 2³²−1.
pub(super) fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok();
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return u64::from_str_radix(digits, 8).ok();
    }
    let (text, less) = text.strip_suffix("−1").map_or((text, 0), |rest| (rest, 1));
    let base = text.trim_end_matches(|c| raised(c).is_some());
    let exponent = text[base.len()..].chars().filter_map(raised).fold(0, |sum, digit| sum * 10 + digit);
    let base: u64 = base.replace(',', "").parse().ok()?;
    let power = if exponent == 0 { base } else { base.checked_pow(exponent)? };
    power.checked_sub(less)
}

fn raised(c: char) -> Option<u32> {
    "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().zip(0..).find(|(digit, _)| *digit == c).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(pairs: &[(u64, &str)]) -> Vec<(u64, String)> {
        pairs.iter().map(|(value, name)| (*value, (*name).to_owned())).collect()
    }

    #[test]
    fn numbers_are_read_in_all_their_forms() {
        let forms = [
            ("0", 0),
            ("1,044,480", 1_044_480),
            ("0x1F", 31),
            ("0o7777", 0o7777),
            ("10⁹", 1_000_000_000),
            ("2³²−1", u64::from(u32::MAX)),
        ];
        for (text, value) in forms {
            assert_eq!(number(text), Some(value), "{text}");
        }
        for text in ["", "x", "1 x", "2 × 3", "slots", "256 if direct"] {
            assert_eq!(number(text), None, "{text}");
        }
    }

    #[test]
    fn plain_sets_are_taken() {
        let between = Allowed::between;
        let sets = [
            ("0", between(Some(0), Some(0))),
            ("0, 1", between(Some(0), Some(1))),
            ("0 … 2; 0 in ReadList", between(Some(0), Some(2))),
            ("1 … 1,048,576", between(Some(1), Some(1_048_576))),
            ("≤ 256 bytes", between(None, Some(256))),
            ("≤ 32, none 2³²−1", between(None, Some(32))),
            ("< 10⁹", between(None, Some(999_999_999))),
            ("≥ 1", between(Some(1), None)),
        ];
        for (text, allowed) in sets {
            assert_eq!(Allowed::new(text), allowed, "{text}");
        }
    }

    #[test]
    fn names_of_numbers_and_of_bits_are_taken() {
        let pattern = Allowed::new("0 normal, 3 will need");
        assert_eq!(pattern.names, names(&[(0, "normal"), (3, "will need")]));
        assert_eq!((pattern.min, pattern.max), (Some(0), Some(3)));
        assert_eq!(Allowed::new("0x1 read, 0x2 write, or both").flags, names(&[(1, "read"), (2, "write")]));
    }

    #[test]
    fn conditions_allow_all() {
        for text in [
            "",
            "see below",
            "≤ length",
            "0 without NOTIFY",
            "1 … 256 if direct, else 0",
            "0 if inline; 1 … 4,096 if direct",
            "0, or one of an entry",
            "≥ 2 × keep_alive_ms",
            "random",
        ] {
            assert_eq!(Allowed::new(text), Allowed::default(), "{text}");
        }
    }
}
