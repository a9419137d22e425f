//! The options of `cluster`.

use clap::Args;
use serde::Serialize;

/// What `cluster` needs.
#[derive(Debug, Clone, Args, Serialize)]
pub struct ClusterOptions {
    /// The coordination store, such as `etcd://host1,host2/bench`: a cluster of its own. Without it an etcd of one member is started, whose
    /// data is in a directory in /var/tmp.
    #[arg(long, value_name = "ADDRESS")]
    pub store: Option<String>,
}
