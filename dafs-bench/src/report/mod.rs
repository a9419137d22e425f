//! How an [`Outcome`](crate::record::Outcome) is shown. Nothing here knows what was run.

pub mod html;
pub mod json;
pub(crate) mod papers;
pub mod plot;
pub mod table;

use crate::record::Crossing;

/// A number of bytes as people write it: `4 B`, `64 KiB`, `1 MiB`.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0 => "0".to_owned(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

/// Where Direct starts to pay, in words that follow "direct is faster".
pub(crate) fn crossing(crossing: &Crossing) -> String {
    let from = crossing.direct_from_bytes.map(size);
    let words = match (crossing.inline_until_bytes, from) {
        (_, None) => return "never".to_owned(),
        (None, Some(from)) => format!("from at most {from}"),
        (Some(until), Some(from)) => format!("between {} and {from}", size(until)),
    };
    if crossing.inline_ends { words + ", where inline ends" } else { words }
}

/// From which size Direct is used, in words that follow "direct is used".
pub(crate) fn threshold(bytes: Option<u64>) -> String {
    match bytes {
        None => "never".to_owned(),
        // A round size is the last for Inline.
        Some(bytes) if bytes > 1 && (bytes - 1).is_multiple_of(1 << 10) => {
            format!("above {}", size(bytes - 1))
        }
        Some(bytes) => format!("from {}", size(bytes)),
    }
}

/// A figure with three or four significant digits: `0.412`, `36.2`, `1834`, `2.1 M`.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        v if v < 10.0 => format!("{value:.3}"),
        v if v < 100.0 => format!("{value:.2}"),
        v if v < 1000.0 => format!("{value:.1}"),
        v if v < 1e6 => format!("{value:.0}"),
        _ => format!("{:.3} M", value / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_is_written_in_the_largest_whole_unit() {
        let written = [0, 4, 1023, 1024, 1536, 65536, 1 << 20, 3 << 20].map(size);
        assert_eq!(written, ["0", "4 B", "1023 B", "1 KiB", "1536 B", "64 KiB", "1 MiB", "3 MiB"]);
    }

    #[test]
    fn crossing_and_threshold_in_words() {
        let found = |inline_until_bytes, direct_from_bytes, inline_ends| {
            crossing(&Crossing {
                transport: String::new(),
                case: None,
                op: crate::record::Op::Read,
                registered: true,
                inline_until_bytes,
                direct_from_bytes,
                inline_ends,
                measured_bytes: None,
                exported_bytes: None,
            })
        };
        assert_eq!(found(Some(4096), Some(8192), false), "between 4 KiB and 8 KiB");
        assert_eq!(found(None, Some(8192), false), "from at most 8 KiB");
        assert_eq!(found(Some(4096), Some(8192), true), "between 4 KiB and 8 KiB, where inline ends");
        assert_eq!(found(Some(4096), None, false), "never");
        let written = [None, Some(1), Some(512), Some(16_384), Some(16_385), Some(16_386)].map(threshold);
        assert_eq!(
            written,
            ["never", "from 1 B", "from 512 B", "from 16 KiB", "above 16 KiB", "from 16386 B"]
        );
    }

    #[test]
    fn figure_keeps_significant_digits() {
        let written = [0.4123, 36.21, 123.46, 1834.4, 1_071_234.0].map(figure);
        assert_eq!(written, ["0.412", "36.21", "123.5", "1834", "1.071 M"]);
    }
}
