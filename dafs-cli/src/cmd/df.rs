//! `dafs df`.

use std::process::ExitCode;

use dafs_client::FsStatistics;
use serde_json::json;

use crate::flags::Df;
use crate::format;
use crate::output::Output;
use crate::remote::{Remotes, parse};
use crate::report::{Failure, Failures, Result};

pub(crate) fn run(flags: &Df, remotes: &Remotes) -> Result<ExitCode> {
    let (mut out, failures) = (Output::new(), Failures::default());
    let mut rows = Vec::new();
    for url in &flags.urls {
        failures.keep_going(collect(url, remotes, &failures, &mut rows))?;
    }
    if flags.json {
        for (name, space) in &rows {
            let space = Space::of(space);
            let row = json!({
                "export": name, "size": space.size, "used": space.used, "available": space.available, "use_percent": space.percent,
            });
            out.line(&row.to_string())?;
        }
    } else if !rows.is_empty() {
        write_table(flags, &rows, &mut out)?;
    }
    out.flush()?;
    Ok(failures.exit())
}

/// The space that a URL means: of its path, or of every export of its server.
fn collect(
    url: &std::ffi::OsStr,
    remotes: &Remotes,
    failures: &Failures,
    rows: &mut Vec<(String, FsStatistics)>,
) -> Result<()> {
    let parsed = parse(url)?;
    if parsed.export.is_some() {
        let target = remotes.target(url)?;
        let space = target
            .export
            .statfs(&target.path)
            .map_err(|error| target.failed("ask for the space of", &error))?;
        rows.push((target.url().to_string(), space));
        return Ok(());
    }
    let session = remotes.session(&parsed)?;
    let names = session.exports().map_err(|error| Failure::at("list the exports of", &parsed, &error))?;
    for name in names {
        let one = dafs_client::Url { export: Some(name.clone().into_bytes()), ..parsed.clone() };
        match session.mount(&name).and_then(|export| export.statfs("")) {
            Ok(space) => rows.push((one.to_string(), space)),
            Err(error) => failures.report(&Failure::at("ask for the space of", &one, &error)),
        }
    }
    Ok(())
}

struct Space {
    size: u64,
    used: u64,
    available: u64,
    /// Of what unprivileged users can have, rounded up, as df does.
    percent: Option<u64>,
}

impl Space {
    fn of(statistics: &FsStatistics) -> Self {
        let bytes = |blocks: u64| blocks.saturating_mul(statistics.block_size);
        let used = bytes(statistics.blocks.saturating_sub(statistics.blocks_free));
        let available = bytes(statistics.blocks_available);
        let both = u128::from(used) + u128::from(available);
        let percent =
            (both > 0).then(|| u64::try_from((u128::from(used) * 100).div_ceil(both)).unwrap_or(100));
        Self { size: bytes(statistics.blocks), used, available, percent }
    }
}

fn write_table(flags: &Df, rows: &[(String, FsStatistics)], out: &mut Output) -> Result<()> {
    // Without -h in kibibytes, as df.
    let shown = |bytes: u64| match flags.human_readable {
        true => format::size(bytes, true),
        false => bytes.div_ceil(1024).to_string(),
    };
    let unit = if flags.human_readable { "Size" } else { "1K-blocks" };
    let mut table =
        vec![["Export".to_owned(), unit.into(), "Used".into(), "Available".into(), "Use%".into()]];
    for (name, statistics) in rows {
        let space = Space::of(statistics);
        let percent = space.percent.map_or("-".to_owned(), |percent| format!("{percent}%"));
        let name = crate::quote::shown(name.as_bytes());
        table.push([name, shown(space.size), shown(space.used), shown(space.available), percent]);
    }
    let width = |column: usize| table.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2), width(3), width(4)];
    for [name, size, used, available, percent] in &table {
        let [a, b, c, d, e] = widths;
        out.line(&format!("{name:a$} {size:>b$} {used:>c$} {available:>d$} {percent:>e$}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_blocks_count_as_neither_used_nor_available() {
        let statistics = FsStatistics {
            block_size: 4096,
            blocks: 1000,
            blocks_free: 500,
            blocks_available: 450,
            files: 0,
            files_free: 0,
            name_size_max: 255,
        };
        let space = Space::of(&statistics);
        assert_eq!((space.size, space.used, space.available), (4_096_000, 2_048_000, 1_843_200));
        assert_eq!(space.percent, Some(53));
        let nothing = FsStatistics { blocks: 0, blocks_free: 0, blocks_available: 0, ..statistics };
        assert_eq!(Space::of(&nothing).percent, None);
    }
}
