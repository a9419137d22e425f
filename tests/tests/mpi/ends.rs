//! Ranks and servers that die, counts of opens: what a program cannot see of itself.
