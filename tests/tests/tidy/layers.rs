//! The floors of the crates: which files may not name what.

use crate::rules::Layer;

const NO_IO: &str = "the session core does no I/O and reads no clock: time and seeds are arguments";

/// The floors of a crate, the highest first. A room imports from its own floor and from those below, and calls no method that a file
/// above adds to a type. A file is in the innermost room that is named here.
pub(crate) const FLOORS: &[(&str, &[&[&str]])] = &[
    (
        "dafs-client",
        &[
            &["api"],
            &["driver"],
            &["connect"],
            &["engine"],
            &["op"],
            &["handle", "config"],
            &["method"],
            &["memory"],
            &["error", "clock"],
        ],
    ),
    (
        "dafs-server",
        &[
            &["run"],
            &["reload"],
            &["calibrate"],
            &["worker/event_loop"],
            &["worker/serving"],
            &["worker/intake"],
            &["ops"],
            &["worker"],
            &["worker/sessions", "worker/connections"],
            &["worker/flight"],
            &["worker/sessions/handles"],
            &["shared"],
            &["config", "cli", "access", "cluster"],
            &["worker/sched"],
            &[
                "storage",
                "worker/buffers",
                "worker/flight/plan",
                "worker/stats",
                "worker/lifetime",
                "metrics",
            ],
            &["worker/ids", "logging"],
        ],
    ),
    (
        "dafs-stripe",
        &[
            &["check"],
            &["volume"],
            &["file"],
            &["data_server"],
            &["servers", "layout"],
            &["names", "geometry"],
            &["error"],
        ],
    ),
];

/// Which layer may not name what. Tests inside a file are exempt.
pub(crate) const LAYERS: &[Layer] = &[
    Layer {
        under: "proto/src/wire/",
        forbidden: &[
            "crate::session",
            "crate::transport",
            "std::net",
            "std::fs",
            "std::thread",
            "mio",
            "libc",
            "rustix",
        ],
        because: "the wire layer knows bytes only",
    },
    Layer {
        under: "proto/src/session/",
        forbidden: &["crate::transport"],
        because: "sessions name buffers by id; the drivers alone turn that into posted work",
    },
    Layer {
        under: "proto/src/session/",
        forbidden: &[
            "std::net",
            "std::fs",
            "std::os",
            "std::thread",
            "std::time::Instant::now",
            "std::time::SystemTime::now",
            "mio",
            "libc",
            "rustix",
            "getrandom",
        ],
        because: NO_IO,
    },
    Layer {
        under: "proto/src/transport/",
        forbidden: &["crate::wire", "crate::session"],
        because: "a provider moves bytes and knows no protocol",
    },
    Layer {
        under: "dafs-client/src/engine/",
        forbidden: &[
            "dafs_proto::transport::Endpoint",
            "crate::driver",
            "std::thread",
            "std::time::Instant::now",
        ],
        because: "the engine has no connection, no thread and no clock: its driver hands it what arrived, and room to send",
    },
    Layer {
        under: "proto/src/transport/sim/",
        forbidden: &["std::time::Instant::now", "std::time::SystemTime::now", "getrandom", "mio"],
        because: "a simulated run must be the same every time",
    },
];
