//! The dafs client library.
