//! MPI-IO over dafs. Nothing is here yet but the name.
