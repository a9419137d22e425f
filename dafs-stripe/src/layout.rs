//! How a file is laid over servers, as it is written down.

pub(crate) use dafs_client::{LAYOUT_XATTR, STRIPED_BIT};

use crate::error::{Error, Result};
use crate::geometry::{FACTOR_MAX, Geometry, UNIT_MAX, UNIT_MIN};
use crate::names::{StripeId, is_name};

/// The extended attribute of a directory that has the striping of its new files.
pub(crate) const STRIPING_XATTR: &str = "user.dafs.striping";

/// The extended attribute of a piece that says which one it is.
pub(crate) const PIECE_XATTR: &str = "user.dafs.piece";

/// Version of all three formats.
const VERSION: &str = "1";

/// How a new file is striped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Striping {
    /// Bytes on one server before the next one follows: a multiple of [`UNIT_MIN`], at most 1 GiB.
    /// Default: 256 KiB.
    pub unit: u64,
    /// Servers; `None` for all that the volume has, at most [`FACTOR_MAX`].
    /// Default: `None`.
    pub factor: Option<usize>,
    /// The place of the first server in the servers file, from 0; `None` for any, so that small files spread.
    /// Default: `None`.
    pub first: Option<usize>,
}

impl Default for Striping {
    fn default() -> Self {
        Self { unit: 256 * 1024, factor: None, first: None }
    }
}

impl Striping {
    pub(crate) fn check(&self) -> Result<()> {
        if !is_unit(self.unit) {
            let unit = self.unit;
            return Err(Error::Invalid(format!(
                "a striping unit of {unit} bytes: it is a multiple of {UNIT_MIN}, at most {UNIT_MAX}"
            )));
        }
        if self.factor.is_some_and(|factor| factor == 0 || factor > FACTOR_MAX) {
            return Err(Error::Invalid(format!("a file lies over 1 to {FACTOR_MAX} servers")));
        }
        Ok(())
    }

    pub(crate) fn encode(&self) -> String {
        let number = |number: Option<usize>| number.map_or("-".to_owned(), |number| number.to_string());
        format!("{VERSION} {} {} {}", self.unit, number(self.factor), number(self.first))
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let [version, unit, factor, first] = words(text)?;
        let number = |word: &str| match word {
            "-" => Some(None),
            word => decimal(word).and_then(|number| usize::try_from(number).ok()).map(Some),
        };
        let striping = Self { unit: decimal(unit)?, factor: number(factor)?, first: number(first)? };
        (version == VERSION && striping.check().is_ok()).then_some(striping)
    }
}

/// How a file is striped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub(crate) id: StripeId,
    /// Of the file that has it, on the metadata server: a copy of the attribute is of no use to another file.
    pub(crate) file_id: u64,
    /// Bytes on one server before the next one follows.
    pub unit: u64,
    /// Names of the servers, in the order of the pieces.
    pub servers: Vec<String>,
}

impl Layout {
    pub(crate) fn geometry(&self) -> Geometry {
        Geometry { unit: self.unit, factor: self.servers.len() as u64 }
    }

    pub(crate) fn encode(&self) -> String {
        let Self { id, file_id, unit, servers } = self;
        format!("{VERSION} {id} {file_id} {unit} {}", servers.join(","))
    }

    /// What an attribute says; the error is a cause.
    pub(crate) fn parse(bytes: &[u8]) -> std::result::Result<Self, String> {
        let malformed = || "it is not as version 1 has it".to_owned();
        let text = std::str::from_utf8(bytes).map_err(|_| malformed())?;
        match text.split(' ').next() {
            Some(VERSION) => {}
            version => {
                return Err(format!("its version is {:?}, and this program knows 1", version.unwrap_or("")));
            }
        }
        let [_, id, file_id, unit, servers] = words(text).ok_or_else(malformed)?;
        let servers: Vec<String> = servers.split(',').take(FACTOR_MAX + 1).map(str::to_owned).collect();
        let layout = Self {
            id: StripeId::parse(id).ok_or_else(malformed)?,
            file_id: decimal(file_id).ok_or_else(malformed)?,
            unit: decimal(unit).filter(|unit| is_unit(*unit)).ok_or_else(malformed)?,
            servers,
        };
        if layout.servers.len() > FACTOR_MAX {
            return Err(format!("it names more than {FACTOR_MAX} servers"));
        }
        if !layout.servers.iter().all(|name| is_name(name)) {
            return Err(malformed());
        }
        // Two pieces of one file on one server have two names there, so a server may come twice.
        Ok(layout)
    }

    pub(crate) fn piece_name(&self, index: usize) -> String {
        format!("{}.{index}", self.id)
    }

    /// What a piece says of itself.
    pub(crate) fn piece_mark(&self, index: usize) -> String {
        format!("{VERSION} {} {index} {} {}", self.id, self.servers.len(), self.unit)
    }
}

fn is_unit(unit: u64) -> bool {
    (UNIT_MIN..=UNIT_MAX).contains(&unit) && unit.is_multiple_of(UNIT_MIN)
}

/// A number as this program writes it: one value has one form.
fn decimal(word: &str) -> Option<u64> {
    let number: u64 = word.parse().ok()?;
    (number.to_string() == word).then_some(number)
}

fn words<const N: usize>(text: &str) -> Option<[&str; N]> {
    let mut words = text.split(' ');
    let mut found = [""; N];
    for word in &mut found {
        *word = words.next()?;
    }
    words.next().is_none().then_some(found)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn layout() -> Layout {
        let servers = vec!["io1".to_owned(), "io2".to_owned()];
        Layout { id: StripeId([7; 16]), file_id: 42, unit: 65_536, servers }
    }

    // [STRIPE-4]
    #[test]
    fn layout_is_read_as_it_was_written() {
        let text = "1 07070707070707070707070707070707 42 65536 io1,io2";
        assert_eq!(layout().encode(), text);
        assert_eq!(Layout::parse(text.as_bytes()), Ok(layout()));
        assert_eq!(layout().piece_name(1), "07070707070707070707070707070707.1");
        assert_eq!(layout().piece_mark(1), "1 07070707070707070707070707070707 1 2 65536");
    }

    // [STRIPE-4]
    #[test]
    fn layout_that_is_not_one_is_refused() {
        let many = vec!["a"; 10_000].join(",");
        let id = "07070707070707070707070707070707";
        for wrong in [
            String::new(),
            format!("2 {id} 42 65536 io1"),
            format!("1 {id} 42 65536"),
            format!("1 {id} 42 65536 io1 io2"),
            format!("1 {id} 42 65536 "),
            format!("1 {id} 42 65536 io1,"),
            format!("1 {id} 42 65536 ../io1"),
            format!("1 {id} 42 65536 IO1"),
            format!("1 {id} 42 0 io1"),
            format!("1 {id} 42 4095 io1"),
            format!("1 {id} 42 6000 io1"),
            format!("1 {id} 42 2147483648 io1"),
            format!("1 {id} 042 65536 io1"),
            format!("1 {id} +42 65536 io1"),
            format!("1 {id} -1 65536 io1"),
            format!("1 {}f 42 65536 io1", &id[2..]),
            format!("1 {} 42 65536 io1", id.replace('7', "G")),
            format!("1 {id} 42 65536 {many}"),
            format!("1 {id} 42 65536 {}", "a".repeat(33)),
        ] {
            assert!(Layout::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert!(Layout::parse(&[0xff; 40]).is_err());
    }

    proptest! {
        // [STRIPE-4]
        #[test]
        fn layout_of_any_bytes_is_refused_or_is_those_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(layout) = Layout::parse(&bytes) {
                prop_assert_eq!(layout.encode().into_bytes(), bytes);
            }
        }

        // [STRIPE-20]
        #[test]
        fn striping_is_read_as_it_was_written(
            pages in 1..1000u64,
            factor in proptest::option::of(1..=FACTOR_MAX),
            first in proptest::option::of(0..1000usize),
        ) {
            let striping = Striping { unit: pages * UNIT_MIN, factor, first };
            prop_assert_eq!(Striping::parse(striping.encode().as_bytes()), Some(striping));
        }
    }
}
