//! Sizes as people write them.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};

/// Bytes, written as a number with an optional suffix K, M, G or T (powers of 1024).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("\"{text}\" is not a size: write a number of bytes, or one such as 64K, 16M, 4G or 1T")
        };
        let unsuffixed = text.strip_suffix("iB").unwrap_or(text);
        let (digits, shift) = match unsuffixed.as_bytes().last().ok_or_else(wrong)? {
            b'K' | b'k' => (&unsuffixed[..unsuffixed.len() - 1], 10),
            b'M' | b'm' => (&unsuffixed[..unsuffixed.len() - 1], 20),
            b'G' | b'g' => (&unsuffixed[..unsuffixed.len() - 1], 30),
            b'T' | b't' => (&unsuffixed[..unsuffixed.len() - 1], 40),
            _ => (text, 0),
        };
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong());
        }
        if digits.is_empty() {
            return Err(wrong());
        }
        let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
        number.map(Self).ok_or_else(|| {
            format!(
                "\"{text}\" is more than any size, at most 16777215T: write one such as 64K, 16M, 4G or 1T"
            )
        })
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')];
        match units.iter().find(|(shift, _)| self.0 >= 1 << shift && self.0.is_multiple_of(1 << shift)) {
            Some((shift, unit)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SizeVisitor;
        impl Visitor<'_> for SizeVisitor {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes, or a text such as \"64K\", \"16M\" or \"4G\"")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Size, E> {
                u64::try_from(number).map(Size).map_err(|_| E::custom("a size cannot be negative"))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(SizeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_with_and_without_suffix_is_read() {
        let cases = [
            ("0", 0),
            ("512", 512),
            ("64K", 64 << 10),
            ("64k", 64 << 10),
            ("16M", 16 << 20),
            ("4G", 4 << 30),
            ("4GiB", 4 << 30),
            ("2T", 2 << 40),
            ("16777215T", 16_777_215 << 40),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn size_that_is_none_is_refused_with_examples() {
        for text in
            ["", "K", "-1", "+1", "1.5G", "4 G", "4GB", "4X", "iB", "16777216T", "99999999999999999999"]
        {
            let is_number = text.len() > 8;
            let error = text.parse::<Size>().unwrap_err();
            assert!(error.contains(&format!("\"{text}\"")) && error.contains("64K"), "{text}: {error}");
            assert_eq!(error.contains("at most 16777215T"), is_number, "{text}: {error}");
        }
    }

    #[test]
    fn size_shown_is_read_back() {
        for bytes in [0, 1, 1023, 1024, 1025, 64 << 20, 3 << 40] {
            assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        }
    }
}
