//! `dafs stripe`: data servers of an export, layouts, and what is left behind.

use std::process::ExitCode;

use dafs_client::FileKind;
use dafs_stripe::{Error, Layout, Striping};
use serde_json::json;

use crate::output::Output;
use crate::remote::{Remotes, Target, parse};
use crate::report::{FAILED, Failure, Failures, Result};
use crate::stripe_flags::{AddServer, Check, Servers, Set, Show, Stripe, StripeAction, Unset};

pub(crate) fn run(flags: &Stripe, remotes: &Remotes) -> Result<ExitCode> {
    match &flags.action {
        StripeAction::Add(flags) => add(flags, remotes),
        StripeAction::Servers(flags) => servers(flags, remotes),
        StripeAction::Show(flags) => show(flags, remotes),
        StripeAction::Set(flags) => set(flags, remotes),
        StripeAction::Unset(flags) => unset(flags, remotes),
        StripeAction::Check(flags) => check(flags, remotes),
    }
}

fn add(flags: &AddServer, remotes: &Remotes) -> Result<ExitCode> {
    let target = remotes.target(&flags.url)?;
    let server = parse(&flags.server)?;
    let added = target.volume.add_server(&flags.name, &server);
    added.map_err(|error| match error {
        Error::Invalid(cause) => Failure::usage(format!("cannot add a data server: {cause}")),
        error => {
            Failure::text(format!("cannot add {server} to the data servers of {}: {error}", target.url()))
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

fn servers(flags: &Servers, remotes: &Remotes) -> Result<ExitCode> {
    let target = remotes.target(&flags.url)?;
    let rows =
        target.volume.servers().map_err(|error| target.failed_striped("list the data servers of", &error))?;
    let (mut out, mut all_reached) = (Output::new(), true);
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    for row in &rows {
        let reached = target.volume.check_server(&row.name);
        all_reached &= reached.is_ok();
        let state = reached.as_ref().map_or_else(|error| error.to_string(), |()| "reached".to_owned());
        let line = match flags.json {
            true => {
                json!({ "name": row.name, "url": row.url.to_string(), "reached": reached.is_ok(), "state": state }).to_string()
            }
            false => format!("{:width$}  {}  {state}", row.name, row.url),
        };
        out.line(&line)?;
    }
    out.flush()?;
    if rows.is_empty() && !flags.json {
        crate::report::say(&format!("{} has no data servers: `dafs stripe add` adds one", target.url()));
    }
    Ok(if all_reached { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn show(flags: &Show, remotes: &Remotes) -> Result<ExitCode> {
    let (mut out, failures) = (Output::new(), Failures::default());
    remotes.each(&flags.urls, &failures, |target| show_one(flags, &target, &mut out))?;
    out.flush()?;
    Ok(failures.exit())
}

fn show_one(flags: &Show, target: &Target, out: &mut Output) -> Result<()> {
    let failed = |error: Error| target.failed_striped("show how files are striped at", &error);
    let found = target.export.metadata(&target.path).map_err(|error| failed(error.into()))?;
    let url = target.url().to_string();
    if found.kind == FileKind::Directory {
        let striping = target.volume.striping(&target.path).map_err(failed)?;
        return out.line(&match (flags.json, striping) {
            (true, striping) => {
                json!({ "url": url, "striping": striping.as_ref().map(striping_json) }).to_string()
            }
            (false, None) => format!("{url}: new files are not striped"),
            (false, Some(striping)) => format!("{url}: new files are striped{}", in_words(&striping)),
        });
    }
    let layout = target.volume.layout(&target.path).map_err(failed)?;
    out.line(&match (flags.json, layout) {
        (true, layout) => json!({ "url": url, "layout": layout.as_ref().map(layout_json) }).to_string(),
        (false, None) => format!("{url}: not striped"),
        (false, Some(layout)) => {
            format!("{url}: {} bytes on each of {}", layout.unit, layout.servers.join(", "))
        }
    })
}

fn layout_json(layout: &Layout) -> serde_json::Value {
    json!({ "unit": layout.unit, "servers": layout.servers })
}

fn striping_json(striping: &Striping) -> serde_json::Value {
    json!({ "unit": striping.unit, "factor": striping.factor, "first": striping.first })
}

fn in_words(striping: &Striping) -> String {
    let factor = striping.factor.map_or("all servers".to_owned(), |factor| format!("{factor} servers"));
    let first = striping.first.map_or_else(String::new, |first| format!(", from server {first} on"));
    format!(", {} bytes on each of {factor}{first}", striping.unit)
}

fn set(flags: &Set, remotes: &Remotes) -> Result<ExitCode> {
    let striping = Striping { unit: flags.unit, factor: flags.factor, first: flags.first };
    let failures = Failures::default();
    remotes.each(&flags.urls, &failures, |target| {
        let failed = |error: Error| target.failed_striped("stripe files in", &error);
        let count = target.volume.servers().map_err(failed)?.len();
        if striping.factor.is_some_and(|factor| factor > count)
            || striping.first.is_some_and(|first| first >= count)
        {
            let url = target.url();
            return Err(Failure::text(format!(
                "cannot stripe files in '{url}' so: the export has {count} data servers"
            )));
        }
        target.volume.set_striping(&target.path, Some(&striping)).map_err(failed)
    })?;
    Ok(failures.exit())
}

fn unset(flags: &Unset, remotes: &Remotes) -> Result<ExitCode> {
    let failures = Failures::default();
    remotes.each(&flags.urls, &failures, |target| {
        let unset = target.volume.set_striping(&target.path, None);
        unset.map_err(|error| target.failed_striped("change how files are striped in", &error))
    })?;
    Ok(failures.exit())
}

fn check(flags: &Check, remotes: &Remotes) -> Result<ExitCode> {
    let target = remotes.target(&flags.url)?;
    let report = target.volume.check(flags.repair, flags.age_min);
    let report = report.map_err(|error| target.failed_striped("check the striped files of", &error))?;
    let mut out = Output::new();
    for (finding, repaired) in &report.findings {
        let line = match flags.json {
            true => json!({ "finding": finding.to_string(), "repaired": repaired }).to_string(),
            false => format!("{finding}{}", if *repaired { " (repaired)" } else { "" }),
        };
        out.line(&line)?;
    }
    out.flush()?;
    let open = report.open().count();
    if !flags.json {
        let (files, striped, pieces) = (report.files, report.striped, report.pieces);
        let total = report.findings.len();
        crate::report::line(&format!(
            "{striped} of {files} files are striped, in {pieces} pieces; {total} found, {} repaired",
            total - open
        ));
    }
    Ok(if open == 0 { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}
