//! One random mixture of operations by several ways, among them the kernel's on a local directory: the same answers, and the same tree.

#![allow(missing_docs, reason = "operations and operands are named as the calls of C and their arguments")]

pub mod local;
pub mod operation;
