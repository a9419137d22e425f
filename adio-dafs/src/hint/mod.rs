//! What a program may ask for: hints in an `MPI_Info`, or variables of the environment. One table says what there is; imports `environment`
//! and nothing else.

use std::fmt;
use std::io::Write as _;

use dafs_client::{Direction, Sieve};
use dafs_stripe::{FACTOR_MAX, Layout, Striping, UNIT_MIN};

use crate::environment::text;

/// How ordinary memory gets within the server's reach: the modes of Wu and Panda, "MPI-IO on DAFS over VIA", §4.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MemoryMode {
    /// Whichever of the others is measured to be quickest, by size and direction.
    #[default]
    Auto,
    /// ADIO-on-the-fly: registered for each operation.
    Adio,
    /// ADIO-CACHE-on-the-fly: kept registered, the least recently used giving way.
    AdioCache,
    /// DAFS-on-the-fly: the client library decides.
    Dafs,
}

/// How a transfer of many segments becomes requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Method {
    /// Lists of segments, as many in a request as a message describes.
    #[default]
    List,
    /// A request for each segment.
    Multiple,
    /// Views in the server: the file type is described once, and transfers name it.
    View,
    /// Client data sieving: windows with their gaps, read whole. Writes are by `Multiple` then.
    Sieve,
}

/// Who joins the segments of several processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Collective {
    /// The MPI library, by its two-phase exchange, as its own hints say.
    #[default]
    TwoPhase,
    /// Nobody: each process moves its own.
    Independent,
    /// The server: each process moves its own through a view, and says what belongs together.
    Server,
}

/// What is in force for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `dafs_memory`.
    pub memory: MemoryMode,
    /// `dafs_cache_entries`, where the hints that were taken say it. The session has what is in force, for all files.
    pub cache_entries: Option<usize>,
    /// `dafs_method`; `None` for `auto`.
    method: Option<Method>,
    /// `dafs_read_method`, `dafs_write_method`: they count more than `dafs_method`, whichever was asked for first. `Some(None)` for `auto`.
    methods: [Option<Option<Method>>; 2],
    /// `romio_ds_read`, `romio_ds_write`: data sieving was asked for.
    sieves: [Switch; 2],
    /// `dafs_list_max`: segments in a request at most; 0 for as many as a message describes.
    pub list_max: usize,
    /// `dafs_list_bounds`: the bounds of the file type count as a segment of a call, as in the measurements of PVFS list I/O.
    pub list_bounds: bool,
    /// `ind_rd_buffer_size`: windows of data sieving, bytes; 0 for the default.
    sieve_size: usize,
    /// `dafs_collective`.
    pub collective: Collective,
    /// `dafs_sieve`: what the server does with what lies between the pieces of lists and views.
    pub sieve: Sieve,
    /// `dafs_explain`.
    pub explain: bool,
    /// `dafs_commit_on_close`: what was written is made durable before the file is closed, as MPI demands.
    pub commit_on_close: bool,
    /// `striping_factor`: over how many servers a file is laid that is made; 0 asks for all, 1 for none but the server of its name.
    pub striping_factor: u32,
    /// `striping_unit`, bytes: how much of such a file lies on one server before the next one follows; 0 asks for the default.
    pub striping_unit: u32,
    /// `start_iodevice`: the first of its servers, from 0; −1 for any.
    pub start_iodevice: i32,
}

/// ROMIO's three-valued hints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Switch {
    Enable,
    Disable,
    #[default]
    Automatic,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            memory: MemoryMode::default(),
            cache_entries: None,
            method: None,
            methods: [None; 2],
            sieves: [Switch::default(); 2],
            list_max: 0,
            list_bounds: false,
            sieve_size: SIEVE_SIZE,
            collective: Collective::default(),
            sieve: Sieve::default(),
            explain: false,
            commit_on_close: true,
            striping_factor: 1,
            striping_unit: 0,
            start_iodevice: -1,
        }
    }
}

/// `dafs_cache_entries` where nothing says another.
pub const CACHE_ENTRIES: usize = 200;

/// A hint: its key, and how it is set and shown.
struct Row {
    key: &'static str,
    /// `false` when the value cannot be.
    set: fn(&mut Settings, &str) -> bool,
    show: fn(&Settings) -> String,
}

const READ: usize = 0;
const WRITE: usize = 1;

/// Windows of data sieving, bytes: the default, which is ROMIO's own.
const SIEVE_SIZE: usize = 4 << 20;
const SIEVE_SIZES: std::ops::RangeInclusive<usize> = 4096..=1 << 30;

const ROWS: &[Row] = &[
    Row {
        key: "dafs_memory",
        set: |s, v| put(&mut s.memory, parse_named(v)),
        show: |s| s.memory.to_string(),
    },
    Row {
        key: "dafs_cache_entries",
        set: |s, v| put(&mut s.cache_entries, v.parse().ok().filter(|n| *n <= 1 << 20).map(Some)),
        show: |s| s.cache_entries.unwrap_or(CACHE_ENTRIES).to_string(),
    },
    Row {
        key: "dafs_method",
        set: |s, v| put(&mut s.method, parse_method(v)),
        show: |s| s.method.map_or("auto", Named::name).to_owned(),
    },
    Row {
        key: "dafs_read_method",
        set: |s, v| put(&mut s.methods[READ], parse_method(v).map(Some)),
        show: |s| s.method(Direction::Read).to_string(),
    },
    Row {
        key: "dafs_write_method",
        set: |s, v| put(&mut s.methods[WRITE], parse_method(v).map(Some)),
        show: |s| s.method(Direction::Write).to_string(),
    },
    Row {
        key: "dafs_list_max",
        set: |s, v| put(&mut s.list_max, v.parse().ok()),
        show: |s| s.list_max.to_string(),
    },
    Row {
        key: "dafs_list_bounds",
        set: |s, v| put(&mut s.list_bounds, parse_bool(v)),
        show: |s| s.list_bounds.to_string(),
    },
    Row {
        key: "dafs_collective",
        set: |s, v| put(&mut s.collective, parse_named(v)),
        show: |s| s.collective.to_string(),
    },
    Row {
        key: "dafs_sieve",
        set: |s, v| put(&mut s.sieve, parse_switch(v, [Sieve::Off, Sieve::On])),
        show: |s| s.sieve.name().to_owned(),
    },
    Row {
        key: "dafs_explain",
        set: |s, v| put(&mut s.explain, parse_bool(v)),
        show: |s| s.explain.to_string(),
    },
    Row {
        key: "dafs_commit_on_close",
        set: |s, v| put(&mut s.commit_on_close, parse_bool(v)),
        show: |s| s.commit_on_close.to_string(),
    },
    Row {
        key: "romio_ds_read",
        set: |s, v| put(&mut s.sieves[READ], parse_switch(v, [Switch::Disable, Switch::Enable])),
        show: |s| s.sieves[READ].to_string(),
    },
    Row {
        key: "romio_ds_write",
        set: |s, v| put(&mut s.sieves[WRITE], parse_switch(v, [Switch::Disable, Switch::Enable])),
        show: |s| s.sieves[WRITE].to_string(),
    },
    Row {
        key: "ind_rd_buffer_size",
        set: |s, v| {
            put(&mut s.sieve_size, v.parse().ok().filter(|size| *size == 0 || SIEVE_SIZES.contains(size)))
        },
        show: |s| s.sieve_size.to_string(),
    },
    Row {
        key: "striping_factor",
        set: |s, v| put(&mut s.striping_factor, v.parse().ok()),
        show: |s| s.striping_factor.to_string(),
    },
    Row {
        key: "striping_unit",
        set: |s, v| put(&mut s.striping_unit, v.parse().ok()),
        show: |s| s.striping_unit.to_string(),
    },
    Row {
        key: "start_iodevice",
        set: |s, v| put(&mut s.start_iodevice, v.parse().ok().filter(|first| *first >= -1)),
        show: |s| s.start_iodevice.to_string(),
    },
];

impl Settings {
    /// The defaults, and what the environment says instead: `DAFS_MPI_MEMORY` for the hint `dafs_memory` and so on.
    pub fn of_process() -> Self {
        Self::from_variables(text)
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let mut settings = Self::default();
        for row in ROWS {
            let Some(own) = row.key.strip_prefix("dafs_") else { continue };
            let name = format!("DAFS_MPI_{}", own.to_ascii_uppercase());
            if let Some(value) = variable(&name)
                && !settings.set(row.key, &value)
            {
                say_unusable(&name, &value, &format!("not a value of the hint {}", row.key));
            }
        }
        settings
    }

    /// A file that is made is to be laid over several servers, where the export has any.
    pub fn stripes(&self) -> bool {
        self.striping_factor != 1 || self.striping_unit > 0
    }

    /// How it is laid over them, where the export has so many; hints that no file can have are passed over.
    pub fn striping(&self, servers: usize) -> Option<Striping> {
        if !self.stripes() || servers == 0 {
            return None;
        }
        let mut striping = Striping::default();
        let unit = u64::from(self.striping_unit).next_multiple_of(UNIT_MIN).min(1 << 30);
        if unit > 0 {
            striping.unit = unit;
        }
        let factor = usize::try_from(self.striping_factor).ok().filter(|factor| *factor > 1);
        striping.factor = factor.map(|factor| factor.min(servers).min(FACTOR_MAX));
        striping.first = usize::try_from(self.start_iodevice).ok().filter(|first| *first < servers);
        Some(striping)
    }

    /// The hints say how a file is laid over servers, not how it was to be.
    pub fn show_layout(&mut self, layout: Option<&Layout>) {
        let Some(layout) = layout else { return };
        self.striping_factor = u32::try_from(layout.servers.len()).unwrap_or(u32::MAX);
        self.striping_unit = u32::try_from(layout.unit).unwrap_or(u32::MAX);
    }

    /// Takes hints over; keys that are not known, and values that cannot be, are passed over, as MPI demands.
    pub fn take<'a>(&mut self, hints: impl IntoIterator<Item = (&'a str, &'a str)>) {
        for (key, value) in hints {
            self.set(key, value);
        }
    }

    fn set(&mut self, key: &str, value: &str) -> bool {
        let row = ROWS.iter().find(|row| row.key == key);
        row.is_some_and(|row| (row.set)(self, value.trim()))
    }

    /// All hints and their values, as a program may read them.
    pub fn shown(&self) -> impl Iterator<Item = (&'static str, String)> + '_ {
        ROWS.iter().map(|row| (row.key, (row.show)(self)))
    }

    /// Windows of data sieving, bytes.
    pub fn sieve_size(&self) -> usize {
        if self.sieve_size == 0 { SIEVE_SIZE } else { self.sieve_size }
    }

    /// How segments become requests.
    pub fn method(&self, direction: Direction) -> Method {
        let sieves = self.sieves[place(direction)] == Switch::Enable;
        let default = match self.collective {
            Collective::Server => Method::View,
            Collective::TwoPhase | Collective::Independent if sieves => Method::Sieve,
            Collective::TwoPhase | Collective::Independent => Method::List,
        };
        self.methods[place(direction)].unwrap_or(self.method).unwrap_or(default)
    }
}

/// Tells of a variable of the environment that changes nothing.
pub fn say_unusable(name: &str, value: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "adio-dafs: cannot use {name}={value}: {why}; ignored");
}

fn place(direction: Direction) -> usize {
    match direction {
        Direction::Read => READ,
        Direction::Write => WRITE,
    }
}

fn put<T>(target: &mut T, value: Option<T>) -> bool {
    match value {
        Some(value) => {
            *target = value;
            true
        }
        None => false,
    }
}

/// Whether something is asked for: the words of hints, and of variables that are none.
pub fn parse_bool(value: &str) -> Option<bool> {
    match value {
        "true" | "enable" | "1" | "yes" | "on" => Some(true),
        "false" | "disable" | "0" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// A hint that says on, off, or by a name of its own what is neither.
fn parse_switch<T: Named>(value: &str, off_and_on: [T; 2]) -> Option<T> {
    parse_named(value).or_else(|| parse_bool(value).map(|is_on| off_and_on[usize::from(is_on)]))
}

/// `Some(None)` for `auto`.
fn parse_method(value: &str) -> Option<Option<Method>> {
    if value == "auto" { Some(None) } else { parse_named(value).map(Some) }
}

/// Values of a hint that have names.
trait Named: Copy + PartialEq + 'static {
    const NAMES: &'static [(&'static str, Self)];

    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, value)| *value == self).map_or("", |(name, _)| name)
    }
}

fn parse_named<T: Named>(value: &str) -> Option<T> {
    T::NAMES.iter().find(|(name, _)| *name == value).map(|(_, value)| *value)
}

macro_rules! names {
    ($type:ty: $($name:literal = $value:ident),*) => {
        impl Named for $type {
            const NAMES: &'static [(&'static str, Self)] = &[$(($name, Self::$value)),*];
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

names!(MemoryMode: "auto" = Auto, "adio" = Adio, "adio_cache" = AdioCache, "dafs" = Dafs);
names!(Method: "list" = List, "multiple" = Multiple, "sieve" = Sieve, "view" = View);
names!(Collective: "two_phase" = TwoPhase, "independent" = Independent, "server" = Server);

impl Named for Sieve {
    const NAMES: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("on", Self::On), ("off", Self::Off)];
}

names!(Switch: "enable" = Enable, "disable" = Disable, "automatic" = Automatic);

#[cfg(test)]
mod tests {
    use super::*;

    fn with(hints: &[(&str, &str)]) -> Settings {
        let mut settings = Settings::default();
        settings.take(hints.iter().copied());
        settings
    }

    // [MPI-50] [MPI-52]
    #[test]
    fn hint_taken_is_shown_and_one_that_cannot_be_changes_nothing() {
        for (key, value) in [
            ("dafs_memory", "adio_cache"),
            ("dafs_cache_entries", "0"),
            ("dafs_method", "sieve"),
            ("dafs_read_method", "multiple"),
            ("dafs_write_method", "view"),
            ("dafs_sieve", "off"),
            ("dafs_list_max", "128"),
            ("dafs_list_bounds", "true"),
            ("dafs_collective", "independent"),
            ("dafs_explain", "true"),
            ("dafs_commit_on_close", "false"),
            ("romio_ds_read", "enable"),
            ("romio_ds_write", "disable"),
            ("ind_rd_buffer_size", "1073741824"),
            ("striping_factor", "4"),
            ("striping_unit", "65536"),
            ("start_iodevice", "2"),
        ] {
            let settings = with(&[(key, value)]);
            assert_ne!(settings, Settings::default(), "{key}");
            // [MPI-52] The others are shown as well.
            assert!(settings.shown().map(|(key, _)| key).eq(ROWS.iter().map(|row| row.key)), "{key}");
            assert!(settings.shown().all(|(_, value)| !value.is_empty()), "{key}");
            assert!(settings.shown().any(|shown| shown == (key, value.to_owned())), "{key}");
            for bad in ["", "nonsense", "-1", "99999999999999999999"] {
                assert_eq!(with(&[(key, bad)]), Settings::default(), "{key}={bad}");
            }
        }
        assert_eq!(with(&[("cb_nodes", "2"), ("unknown", "x")]), Settings::default());
        for (key, shown) in [("striping_factor", "0"), ("ind_rd_buffer_size", "0")] {
            let settings = with(&[(key, "0")]);
            assert!(settings.shown().any(|(own, value)| own == key && value == shown), "{key}");
            assert_eq!(settings.sieve_size(), Settings::default().sieve_size());
        }
        for size in ["1", "4095", "1073741825"] {
            assert_eq!(with(&[("ind_rd_buffer_size", size)]), Settings::default());
        }
        // What is shown, taken over by another file, is the same.
        let settings = with(&[("dafs_write_method", "multiple"), ("romio_ds_read", "enable")]);
        let shown: Vec<(&str, String)> = settings.shown().collect();
        let again = with(&shown.iter().map(|(key, value)| (*key, value.as_str())).collect::<Vec<_>>());
        assert_eq!(again.shown().collect::<Vec<_>>(), shown);
    }

    // [MPI-97]
    #[test]
    fn hints_about_striping_ask_for_what_the_export_has() {
        let striping = |hints: &[(&str, &str)], servers| with(hints).striping(servers);
        assert_eq!(striping(&[], 4), None);
        assert_eq!(striping(&[("striping_factor", "4")], 0), None);
        let all = striping(&[("striping_factor", "0")], 4).unwrap();
        assert_eq!((all.factor, all.first, all.unit), (None, None, Striping::default().unit));
        let some = [("striping_factor", "8"), ("striping_unit", "65537"), ("start_iodevice", "3")];
        let four = striping(&some, 4).unwrap();
        assert_eq!((four.factor, four.first, four.unit), (Some(4), Some(3), 69_632));
        assert_eq!(striping(&some, 3).unwrap().first, None);
        assert_eq!(striping(&[("striping_unit", "4096")], 4).unwrap().factor, None);
    }

    #[test]
    fn directional_method_overrides_general_which_overrides_romios() {
        let methods = |settings: Settings| [Direction::Read, Direction::Write].map(|d| settings.method(d));
        assert_eq!(methods(Settings::default()), [Method::List; 2]);
        assert_eq!(methods(with(&[("romio_ds_read", "enable")])), [Method::Sieve, Method::List]);
        let both = ("dafs_method", "list");
        assert_eq!(methods(with(&[("romio_ds_read", "enable"), both])), [Method::List; 2]);
        // In either order, also where the one comes later by itself.
        let write = ("dafs_write_method", "multiple");
        let mut by_and_by = with(&[write]);
        by_and_by.take([both]);
        for settings in [with(&[write, both]), with(&[both, write]), by_and_by] {
            let shown: Vec<_> = settings.shown().filter(|(key, _)| key.ends_with("_method")).collect();
            let [method, read, write] = [0, 1, 2].map(|place| shown[place].1.as_str());
            assert_eq!((method, read, write), ("list", "list", "multiple"));
            assert_eq!(methods(settings), [Method::List, Method::Multiple]);
        }
        let auto = [("dafs_method", "multiple"), ("dafs_write_method", "auto")];
        assert_eq!(methods(with(&auto)), [Method::Multiple, Method::List]);
    }

    #[test]
    fn words_for_on_and_off_are_the_same_in_all_hints() {
        for key in ["dafs_list_bounds", "dafs_explain", "dafs_commit_on_close", "dafs_sieve", "romio_ds_read"]
        {
            for words in [["true", "enable", "yes", "on", "1"], ["false", "disable", "no", "off", "0"]] {
                let shown = words.map(|word| {
                    let settings = with(&[(key, word)]);
                    settings.shown().find(|(own, _)| *own == key).map(|(_, value)| value)
                });
                assert!(
                    shown[0].is_some() && shown.iter().all(|value| *value == shown[0]),
                    "{key}: {shown:?}"
                );
            }
            assert_ne!(with(&[(key, "yes")]), with(&[(key, "no")]), "{key}");
        }
    }

    #[test]
    fn variables_of_the_environment_are_defaults() {
        let settings = Settings::from_variables(|name| match name {
            "DAFS_MPI_MEMORY" => Some("dafs".to_owned()),
            "DAFS_MPI_LIST_MAX" => Some("128".to_owned()),
            "DAFS_MPI_EXPLAIN" => Some("perhaps".to_owned()),
            _ => None,
        });
        assert_eq!(settings, with(&[("dafs_memory", "dafs"), ("dafs_list_max", "128")]));
    }
}
