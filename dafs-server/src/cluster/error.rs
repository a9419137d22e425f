//! Why a server cannot be of a cluster.

use std::path::Path;

use dafs_proto::wire::Status;
use thiserror::Error;

use super::settings::ClusterConfig;

/// Why a server cannot be of a cluster.
#[derive(Debug, Error)]
pub enum ClusterError {
    /// The store does not answer as it should.
    #[error("cannot join the cluster {cluster}: {error}")]
    Store {
        /// The cluster's address.
        cluster: String,
        /// Why.
        error: String,
    },
    /// What the store or a directory says does not fit this server.
    #[error("cannot join the cluster {cluster}: {problem}")]
    Unfit {
        /// The cluster's address.
        cluster: String,
        /// What, and what to do.
        problem: String,
    },
}

impl ClusterError {
    /// A directory cannot be opened.
    pub(crate) fn directory(config: &ClusterConfig, path: &Path, status: Status) -> Self {
        let problem = format!("cannot open {}: {status}", path.display());
        Self::Unfit { cluster: config.address.to_string(), problem }
    }

    /// An export has no directory.
    pub(crate) fn memory(config: &ClusterConfig, export: &str) -> Self {
        let problem = format!(
            "the export {export} is in this server's memory, which no other server has; export it by a server without --cluster"
        );
        Self::Unfit { cluster: config.address.to_string(), problem }
    }
}
