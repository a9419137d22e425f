//! The golden bytes of `spec/vectors/`, as the tests of providers read them.

/// One of them.
pub struct Vector {
    /// What it is; of one that is refused, also why.
    pub name: &'static str,
    /// It must not be taken.
    pub is_refused: bool,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl Vector {
    /// Its name begins so: the kind of message.
    pub fn is(&self, kind: &str) -> bool {
        self.name.strip_prefix(kind).is_some_and(|rest| rest.is_empty() || rest.starts_with(','))
    }
}

/// The lines `NAME: BYTES` and `refused NAME, WHY: BYTES` of a file; everything else is prose.
pub fn vectors(text: &'static str) -> Vec<Vector> {
    let vector = |line: &'static str| {
        let (name, digits) = line.rsplit_once(": ")?;
        let digits: Vec<char> = digits.chars().filter(|digit| *digit != ' ').collect();
        if digits.is_empty() || !digits.iter().all(char::is_ascii_hexdigit) {
            return None;
        }
        let byte = |pair: &[char]| u8::from_str_radix(&String::from_iter(pair), 16);
        let bytes = digits.chunks(2).map(byte).collect::<Result<_, _>>().unwrap();
        let refused = name.strip_prefix("refused ");
        Some(Vector { name: refused.unwrap_or(name), is_refused: refused.is_some(), bytes })
    };
    text.lines().filter_map(vector).collect()
}

/// Fails for a kind of which there is no vector, or none that is refused, and for a vector of none of the kinds.
pub fn check_kinds(vectors: &[Vector], kinds: &[&str]) {
    for kind in kinds {
        for is_refused in [false, true] {
            let found = vectors.iter().any(|vector| vector.is(kind) && vector.is_refused == is_refused);
            assert!(found, "no vector of {kind:?}, refused: {is_refused}");
        }
    }
    for vector in vectors {
        assert!(kinds.iter().any(|kind| vector.is(kind)), "{:?} is of no kind", vector.name);
    }
}
