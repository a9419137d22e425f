//! Suites that run the whole of dafs on every provider.
