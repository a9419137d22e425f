//! Times in the user's time zone.

use dafs_client::Timestamp;
use jiff::Zoned;
use jiff::tz::TimeZone;

/// A bit more than half a year, as `ls` has it: within it the time of day tells more than the year.
const RECENT_SECONDS: i64 = 31_556_952 / 2;

/// As `ls -l`: `Nov 21 02:43`, or `Jan  5  2019` for what is not recent.
pub(crate) fn short(time: Timestamp, now_seconds: i64) -> String {
    let Some(local) = local(time) else { return time.seconds.to_string() };
    let age = now_seconds.saturating_sub(time.seconds);
    let format = if (0..RECENT_SECONDS).contains(&age) { "%b %e %H:%M" } else { "%b %e  %Y" };
    local.strftime(format).to_string()
}

/// As `stat`: `2026-11-21 02:43:22.000000001 +0000`.
pub(crate) fn long(time: Timestamp) -> String {
    match local(time) {
        Some(local) => local.strftime("%Y-%m-%d %H:%M:%S.%9f %z").to_string(),
        None => format!("{}.{:09}", time.seconds, time.nanoseconds),
    }
}

/// The time of day: `14:03:22`.
pub(crate) fn clock() -> String {
    Zoned::now().strftime("%H:%M:%S").to_string()
}

/// Seconds since 1970.
pub(crate) fn now_seconds() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// `None` for what lies outside of the years of the calendar, 9999 at most.
fn local(time: Timestamp) -> Option<Zoned> {
    let nanoseconds = i32::try_from(time.nanoseconds).ok()?;
    let time = jiff::Timestamp::new(time.seconds, nanoseconds).ok()?;
    Some(time.to_zoned(TimeZone::system()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The zone is the machine's, so what is checked holds in all.
    #[test]
    fn recent_times_have_the_time_of_day_and_others_the_year() {
        let now = 1_795_000_000;
        let at = |seconds| short(Timestamp { seconds, nanoseconds: 0 }, now);
        assert_eq!(at(now - 3600).len(), "Nov 21 02:43".len());
        assert!(at(now - 3600).contains(':'), "{}", at(now - 3600));
        for other in [now - RECENT_SECONDS, now + 3600, 1_546_700_000] {
            assert!(!at(other).contains(':'), "{}", at(other));
        }
        assert!(at(1_546_700_000).ends_with("  2019"), "{}", at(1_546_700_000));
        assert_eq!(at(i64::MAX), i64::MAX.to_string());
    }

    #[test]
    fn long_form_has_nanoseconds_and_the_offset() {
        let shown = long(Timestamp { seconds: 1_546_700_000, nanoseconds: 1 });
        assert!(shown.starts_with("2019-01-0") && shown.contains(".000000001 "), "{shown}");
        assert!(shown.ends_with(|last: char| last.is_ascii_digit()) && shown.len() == 35, "{shown}");
        assert_eq!(long(Timestamp { seconds: i64::MIN, nanoseconds: 5 }), format!("{}.000000005", i64::MIN));
    }
}
