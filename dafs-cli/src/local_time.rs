//! Times in the user's time zone.
#![allow(unsafe_code, reason = "localtime_r: the C library knows the time zone")]

use dafs_client::Timestamp;

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// A bit more than half a year, as `ls` has it: within it the time of day tells more than the year.
const RECENT_SECONDS: i64 = 31_556_952 / 2;

/// As `ls -l`: `Nov 21 02:43`, or `Jan  5  2019` for what is not recent.
pub(crate) fn short(time: Timestamp, now_seconds: i64) -> String {
    let Some(tm) = broken_down(time.seconds) else { return time.seconds.to_string() };
    let month = month(&tm);
    let age = now_seconds.saturating_sub(time.seconds);
    match (0..RECENT_SECONDS).contains(&age) {
        true => format!("{month} {:2} {:02}:{:02}", tm.tm_mday, tm.tm_hour, tm.tm_min),
        false => format!("{month} {:2} {:>5}", tm.tm_mday, i64::from(tm.tm_year) + 1900),
    }
}

/// As `stat`: `2026-11-21 02:43:22.000000001 +0000`.
pub(crate) fn long(time: Timestamp) -> String {
    let Some(tm) = broken_down(time.seconds) else {
        return format!("{}.{:09}", time.seconds, time.nanoseconds);
    };
    let offset = tm.tm_gmtoff / 60;
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:09} {}{:02}{:02}",
        i64::from(tm.tm_year) + 1900,
        tm.tm_mon + 1,
        tm.tm_mday,
        tm.tm_hour,
        tm.tm_min,
        tm.tm_sec,
        time.nanoseconds,
        if offset < 0 { '-' } else { '+' },
        offset.abs() / 60,
        offset.abs() % 60
    )
}

/// Seconds since 1970.
pub(crate) fn now_seconds() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

fn month(tm: &libc::tm) -> &'static str {
    usize::try_from(tm.tm_mon).ok().and_then(|month| MONTHS.get(month)).copied().unwrap_or("???")
}

fn broken_down(seconds: i64) -> Option<libc::tm> {
    // SAFETY: a plain C structure of numbers and a pointer that may be null; all zeros is a value of it.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live values. The library reads TZ, which this program never changes.
    let result = unsafe { libc::localtime_r(&seconds, &mut tm) };
    (!result.is_null()).then_some(tm)
}
