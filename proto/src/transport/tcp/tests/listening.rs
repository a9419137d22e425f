//! Handshakes, good and bad.
use super::*;
