//! `dafs ln` and `dafs readlink`.

use std::path::Path;
use std::process::ExitCode;

use dafs_client::{Error, Status};

use crate::flags::{Ln, Urls};
use crate::output::Output;
use crate::remote::Remotes;
use crate::report::{Failure, Failures, Result};

pub(crate) fn ln(flags: &Ln, remotes: &Remotes) -> Result<ExitCode> {
    let link = remotes.target(&flags.link)?;
    let first = match flags.symbolic {
        true => None,
        false => {
            let first = remotes.target(&flags.target)?;
            let one_session = first.session.agreed().session == link.session.agreed().session;
            if !one_session || first.export.name() != link.export.name() {
                return Err(Failure::text(
                    "a link must be in the export of the file that it names (a symbolic link, with -s, may point anywhere)",
                ));
            }
            Some(first)
        }
    };
    let make = || match &first {
        None => link.export.symlink(Path::new(&flags.target), &link.path).map(drop),
        Some(first) => first.export.link(&first.path, &link.export, &link.path).map(drop),
    };
    let made = match make() {
        Err(Error::InDoubt { .. }) => match make() {
            Err(error) if error.already_exists() => Ok(()),
            result => result,
        },
        Err(error) if error.already_exists() && flags.force => {
            link.export.remove_file(&link.path).map_err(|error| link.failed("replace", &error))?;
            make()
        }
        result => result,
    };
    made.map_err(|error| link.failed("make the link", &error))?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn readlink(flags: &Urls, remotes: &Remotes) -> Result<ExitCode> {
    let (mut out, failures) = (Output::new(), Failures::default());
    for url in &flags.urls {
        let shown = remotes.target(url).and_then(|target| {
            let points_to = target.export.read_link(&target.path).map_err(|error| match error.status() {
                Some(Status::INVALID) => Failure::text(format!(
                    "cannot read the symbolic link '{}': it is no symbolic link",
                    target.url()
                )),
                _ => target.failed("read the symbolic link", &error),
            })?;
            out.name(&points_to)?;
            out.line("")
        });
        failures.keep_going(shown)?;
    }
    out.flush()?;
    Ok(failures.exit())
}
