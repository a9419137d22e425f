//! How an [`Outcome`](crate::record::Outcome) is shown. Nothing here knows what was run.

pub mod json;
pub mod plot;
pub mod table;

/// A number of bytes as people write it: `4 B`, `64 KiB`, `1 MiB`.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0 => "0".to_owned(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
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
    fn figure_keeps_significant_digits() {
        let written = [0.4123, 36.21, 123.46, 1834.4, 1_071_234.0].map(figure);
        assert_eq!(written, ["0.412", "36.21", "123.5", "1834", "1.071 M"]);
    }
}
