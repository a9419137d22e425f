//! Calls of the interface as C makes them, on no server.
