//! Peers that break the rules, stop, or go away.
use super::*;
