//! The dafs server.
