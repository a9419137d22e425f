//! x
use crate::machine::Pins;
use std::path::Path;
/// x
pub struct Nfs;
impl Nfs {
    /// x
    pub fn start(_: &Path, _: &str, _: &Pins) -> anyhow::Result<Self> {
        anyhow::bail!("later")
    }
}
impl crate::subject::Subject for Nfs {
    fn transport(&self) -> &str {
        "nfs"
    }
    fn supports(&self, _: &crate::load::Load) -> bool {
        true
    }
    fn run(
        &mut self,
        _: &crate::load::Load,
        _: crate::load::Budget,
        _: &mut crate::stats::Samples,
    ) -> anyhow::Result<crate::load::Work> {
        anyhow::bail!("x")
    }
}
