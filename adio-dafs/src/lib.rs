//! MPI-IO over dafs. Nothing is here yet but the name.
#![deny(unsafe_code)]
