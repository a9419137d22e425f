//! Views (`spec/protocol/views.md`): their descriptions, and reads and writes of what they show.

use std::num::NonZeroU64;

use super::body::body;
use super::list::Memory;
use super::{ListError, ListFlags, Method, Opcode, Reader, Sieve, Stability, WireError, WireRange};
use crate::view::{
    ArrayOrder, Block, DarrayDimension, Datatype, Distribution, Node, StructBlock, SubarrayDimension,
    VIEW_NODES_MAX,
};

/// The longest description of a view, bytes.
pub const VIEW_DESCRIPTION_SIZE_MAX: u32 = 2 << 20;

body! {
    /// Body of a part of a view's description, 16 bytes. The payload is the part.
    pub struct ViewSetRequest("view set request") {
        /// The client's number for the view.
        pub view: u32 = "number of a view",
        /// Bytes of the whole description.
        pub description_len: u32 = "length of a view's description",
        /// Where in it the part begins.
        pub offset: u32 = "offset in a view's description" and 4 reserved,
    }
}

body! {
    /// Body of giving a view back, 8 bytes.
    pub struct ViewDropRequest("view drop request") {
        /// The client's number for the view.
        pub view: u32 = "number of a view" and 4 reserved,
    }
}

body! {
    /// Body of a read or write of what a view shows, 48 bytes. The payload holds ranges of memory, then the data of an inline write.
    pub struct ViewRequest("view request") {
        /// Where in the file the first tile begins.
        pub displacement: u64 = "displacement of a view",
        /// The first byte of the view's data that is moved.
        pub place: u64 = "place in a view",
        /// What requests that belong together have in common; 0: it stands alone.
        pub group: u64 = "group",
        /// How many of them there are.
        pub group_size: u32 = "size of a group",
        /// The client's number for the view.
        pub view: u32 = "number of a view",
        /// Bytes.
        pub len: u32 = "view length",
        /// How the data travels.
        pub method: Method = "transfer method",
        /// When written data must be durable; [`Stability::Unstable`] in reads.
        pub stability: Stability = "stability",
        /// What becomes of what lies between the segments.
        pub sieve: Sieve = "sieve",
        /// What else is asked.
        pub flags: ListFlags = "flags of a list",
        /// Ranges of client memory: 0 for inline.
        pub segment_count: u32 = "segment count" and 4 reserved,
    }
}

impl ViewRequest {
    /// Reads the body of a request of this opcode: a read has no stability.
    pub fn decode_for(opcode: Opcode, body: &[u8]) -> Result<Self, WireError> {
        let request = Self::decode(body)?;
        request.stability.check(opcode == Opcode::ReadView)?;
        Ok(request)
    }

    /// The ranges of memory in the payload, which hold as many bytes as the request moves; `inline_len` bytes of data follow them.
    pub fn ranges(&self, payload: &[u8], inline_len: u32) -> Result<Vec<WireRange>, ListError> {
        let Self { len, method, segment_count, .. } = *self;
        Memory { len, method, segment_count }.decode(payload, inline_len)
    }
}

/// Kinds of nodes, by their numbers.
mod kind {
    pub(super) const BYTES: u8 = 0;
    pub(super) const CONTIGUOUS: u8 = 1;
    pub(super) const VECTOR: u8 = 2;
    pub(super) const HVECTOR: u8 = 3;
    pub(super) const INDEXED: u8 = 4;
    pub(super) const HINDEXED: u8 = 5;
    pub(super) const INDEXED_BLOCK: u8 = 6;
    pub(super) const HINDEXED_BLOCK: u8 = 7;
    pub(super) const STRUCT: u8 = 8;
    pub(super) const SUBARRAY: u8 = 9;
    pub(super) const DARRAY: u8 = 10;
    pub(super) const RESIZED: u8 = 11;
}

const NONE: u32 = 0;
const BLOCK: u32 = 1;
const CYCLIC: u32 = 2;

/// What stands before the fields of each node.
struct NodeHead {
    kind: u8,
    order: ArrayOrder,
    of: u32,
    /// Entries of its list.
    entries: u32,
}

impl NodeHead {
    fn new(kind: u8, of: u32, entries: usize) -> Self {
        let entries = u32::try_from(entries).unwrap_or(u32::MAX);
        Self { kind, order: ArrayOrder::C, of, entries }
    }
}

/// A description as bytes. One whose lists have 2^32 entries or more cannot be encoded, nor be sent: it would be longer than
/// [`VIEW_DESCRIPTION_SIZE_MAX`].
pub fn encode_datatype(datatype: &Datatype) -> Vec<u8> {
    let mut encoder = Encoder { bytes: Vec::new() };
    encoder.u32(u32::try_from(datatype.nodes().len()).unwrap_or(u32::MAX)).u32(0);
    for node in datatype.nodes() {
        encoder.node(node);
    }
    encoder.bytes
}

struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn i64(&mut self, value: i64) -> &mut Self {
        self.u64(value.cast_unsigned())
    }

    fn head(&mut self, head: &NodeHead) -> &mut Self {
        self.bytes.extend_from_slice(&[head.kind, head.order as u8, 0, 0]);
        self.u32(head.of).u32(head.entries).u32(0)
    }

    fn node(&mut self, node: &Node) {
        match node {
            Node::Bytes { len } => {
                self.head(&NodeHead::new(kind::BYTES, 0, 0)).u64(*len);
            }
            Node::Contiguous { count, of } => {
                self.head(&NodeHead::new(kind::CONTIGUOUS, *of, 0)).u64(*count);
            }
            Node::Vector { count, block_len, stride, in_bytes, of } => {
                let kind = if *in_bytes { kind::HVECTOR } else { kind::VECTOR };
                self.head(&NodeHead::new(kind, *of, 0)).u64(*count).u64(*block_len).i64(*stride);
            }
            Node::Indexed { blocks, in_bytes, of } => {
                let kind = if *in_bytes { kind::HINDEXED } else { kind::INDEXED };
                self.head(&NodeHead::new(kind, *of, blocks.len()));
                for block in blocks {
                    self.u64(block.len).i64(block.displacement);
                }
            }
            Node::IndexedBlock { block_len, displacements, in_bytes, of } => {
                let kind = if *in_bytes { kind::HINDEXED_BLOCK } else { kind::INDEXED_BLOCK };
                self.head(&NodeHead::new(kind, *of, displacements.len())).u64(*block_len);
                for displacement in displacements {
                    self.i64(*displacement);
                }
            }
            Node::Struct { blocks } => {
                self.head(&NodeHead::new(kind::STRUCT, 0, blocks.len()));
                for block in blocks {
                    self.u64(block.len).i64(block.displacement).u32(block.of).u32(0);
                }
            }
            Node::Subarray { order, dimensions, of } => {
                let head = NodeHead::new(kind::SUBARRAY, *of, dimensions.len());
                self.head(&NodeHead { order: *order, ..head });
                for dimension in dimensions {
                    self.u64(dimension.size).u64(dimension.subsize).u64(dimension.start);
                }
            }
            Node::Darray { size, rank, order, dimensions, of } => {
                let head = NodeHead::new(kind::DARRAY, *of, dimensions.len());
                self.head(&NodeHead { order: *order, ..head }).u32(*size).u32(*rank);
                for dimension in dimensions {
                    let (number, len) = match dimension.distribution {
                        Distribution::None => (NONE, None),
                        Distribution::Block(len) => (BLOCK, len),
                        Distribution::Cyclic(len) => (CYCLIC, len),
                    };
                    self.u64(dimension.size).u64(len.map_or(0, NonZeroU64::get));
                    self.u32(number).u32(dimension.processes);
                }
            }
            Node::Resized { lower, extent, of } => {
                self.head(&NodeHead::new(kind::RESIZED, *of, 0)).i64(*lower).i64(*extent);
            }
        }
    }
}

/// Reads a description. Nothing is allocated for entries that are not there. That it is a view is for
/// [`View::new`](crate::view::View::new) to say.
pub fn decode_datatype(description: &[u8]) -> Result<Datatype, WireError> {
    let mut reader = Reader::new(description);
    let count = reader.u32("nodes of a view")?;
    reader.reserved("reserved bytes of a view", 4)?;
    if count as usize > VIEW_NODES_MAX {
        let limit = VIEW_NODES_MAX as u64;
        return Err(WireError::TooLarge { what: "nodes of a view", value: count.into(), limit });
    }
    let nodes = (0..count).map(|_| decode_node(&mut reader)).collect::<Result<Vec<_>, WireError>>()?;
    reader.finish("description of a view")?;
    Ok(Datatype::from_nodes(nodes))
}

fn decode_head(reader: &mut Reader<'_>) -> Result<NodeHead, WireError> {
    let kind = reader.u8("kind of a node")?;
    let order = match reader.u8("order of an array")? {
        0 => ArrayOrder::C,
        1 if matches!(kind, kind::SUBARRAY | kind::DARRAY) => ArrayOrder::Fortran,
        value => return Err(WireError::Invalid { what: "order of an array", value: value.into() }),
    };
    reader.reserved("reserved bytes of a node", 2)?;
    let (of, entries) = (reader.u32("what a node is of")?, reader.u32("entries of a node")?);
    reader.reserved("reserved bytes of a node", 4)?;
    if of != 0 && matches!(kind, kind::BYTES | kind::STRUCT) {
        return Err(WireError::Invalid { what: "what a node is of", value: of.into() });
    }
    let has_list =
        !matches!(kind, kind::BYTES | kind::CONTIGUOUS | kind::VECTOR | kind::HVECTOR | kind::RESIZED);
    if entries != 0 && !has_list {
        return Err(WireError::Invalid { what: "entries of a node", value: entries.into() });
    }
    Ok(NodeHead { kind, order, of, entries })
}

fn decode_node(reader: &mut Reader<'_>) -> Result<Node, WireError> {
    let head = decode_head(reader)?;
    let (of, order) = (head.of, head.order);
    Ok(match head.kind {
        kind::BYTES => Node::Bytes { len: reader.u64("bytes of a node")? },
        kind::CONTIGUOUS => Node::Contiguous { count: reader.u64("count of a node")?, of },
        kind::VECTOR | kind::HVECTOR => {
            let (count, block_len) = (reader.u64("count of a node")?, reader.u64("length of a block")?);
            let stride = signed(reader, "stride of a node")?;
            Node::Vector { count, block_len, stride, in_bytes: head.kind == kind::HVECTOR, of }
        }
        kind::INDEXED | kind::HINDEXED => {
            let blocks = list(reader, &head, 16, decode_block)?;
            Node::Indexed { blocks, in_bytes: head.kind == kind::HINDEXED, of }
        }
        kind::INDEXED_BLOCK | kind::HINDEXED_BLOCK => {
            let block_len = reader.u64("length of a block")?;
            let displacements = list(reader, &head, 8, |reader| signed(reader, "displacement of a block"))?;
            Node::IndexedBlock { block_len, displacements, in_bytes: head.kind == kind::HINDEXED_BLOCK, of }
        }
        kind::STRUCT => {
            let block = |reader: &mut Reader<'_>| {
                let Block { len, displacement } = decode_block(reader)?;
                let of = reader.u32("what a block is of")?;
                reader.reserved("reserved bytes of a block", 4)?;
                Ok(StructBlock { len, displacement, of })
            };
            Node::Struct { blocks: list(reader, &head, 24, block)? }
        }
        kind::SUBARRAY => {
            let dimension = |reader: &mut Reader<'_>| {
                Ok(SubarrayDimension {
                    size: reader.u64("size of a dimension")?,
                    subsize: reader.u64("part of a dimension")?,
                    start: reader.u64("start in a dimension")?,
                })
            };
            Node::Subarray { order, dimensions: list(reader, &head, 24, dimension)?, of }
        }
        kind::DARRAY => {
            let (size, rank) = (reader.u32("processes of an array")?, reader.u32("process of an array")?);
            Node::Darray { size, rank, order, dimensions: list(reader, &head, 24, decode_dealt)?, of }
        }
        kind::RESIZED => {
            let lower = signed(reader, "lower bound of a node")?;
            Node::Resized { lower, extent: signed(reader, "extent of a node")?, of }
        }
        value => return Err(WireError::Invalid { what: "kind of a node", value: value.into() }),
    })
}

fn signed(reader: &mut Reader<'_>, what: &'static str) -> Result<i64, WireError> {
    Ok(reader.u64(what)?.cast_signed())
}

/// Entries of `size` bytes each, which are there before anything is allocated for them.
fn list<T>(
    reader: &mut Reader<'_>,
    head: &NodeHead,
    size: usize,
    entry: impl Fn(&mut Reader<'_>) -> Result<T, WireError>,
) -> Result<Vec<T>, WireError> {
    let count = head.entries as usize;
    let missing = count.saturating_mul(size).saturating_sub(reader.remaining());
    if missing > 0 {
        return Err(WireError::Truncated { what: "entries of a node", missing });
    }
    (0..count).map(|_| entry(reader)).collect()
}

fn decode_block(reader: &mut Reader<'_>) -> Result<Block, WireError> {
    let len = reader.u64("length of a block")?;
    Ok(Block { len, displacement: signed(reader, "displacement of a block")? })
}

fn decode_dealt(reader: &mut Reader<'_>) -> Result<DarrayDimension, WireError> {
    let size = reader.u64("size of a dimension")?;
    let len = reader.u64("block of a distribution")?;
    let distribution = match (reader.u32("distribution")?, NonZeroU64::new(len)) {
        (NONE, None) => Distribution::None,
        (NONE, Some(_)) => return Err(WireError::Invalid { what: "block of a distribution", value: len }),
        (BLOCK, len) => Distribution::Block(len),
        (CYCLIC, len) => Distribution::Cyclic(len),
        (value, _) => return Err(WireError::Invalid { what: "distribution", value: value.into() }),
    };
    Ok(DarrayDimension { size, distribution, processes: reader.u32("processes of a dimension")? })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// A node of each kind, each list with entries.
    fn of_each_kind() -> Datatype {
        let block = |len, displacement| Block { len, displacement };
        let all = Datatype::bytes(4)
            .contiguous(2)
            .vector(2, 3, -4)
            .hvector(2, 1, 500)
            .indexed(&[block(1, 0), block(2, -3)])
            .hindexed(&[block(1, 7)])
            .indexed_block(1, &[0, 9])
            .hindexed_block(2, &[-1])
            .subarray(ArrayOrder::Fortran, &[SubarrayDimension { size: 5, subsize: 2, start: 1 }])
            .resized(-7, 9000);
        let dimension = |distribution, processes| DarrayDimension { size: 6, distribution, processes };
        let dimensions = [
            dimension(Distribution::None, 1),
            dimension(Distribution::Block(NonZeroU64::new(3)), 2),
            dimension(Distribution::Cyclic(None), 2),
        ];
        Datatype::structure(&[(1, 3, &all), (2, -8, &Datatype::bytes(1))]).darray(
            4,
            3,
            ArrayOrder::C,
            &dimensions,
        )
    }

    // [WIRE-2] [WIRE-25]
    #[test]
    fn description_round_trips_and_no_other_length_is_one() {
        let datatype = of_each_kind();
        let bytes = encode_datatype(&datatype);
        assert_eq!(decode_datatype(&bytes).unwrap(), datatype);
        for len in 0..bytes.len() {
            let error = decode_datatype(&bytes[..len]).unwrap_err();
            assert!(matches!(error, WireError::Truncated { .. }), "{len}: {error}");
        }
        let longer = [&*bytes, &[0]].concat();
        assert!(matches!(decode_datatype(&longer), Err(WireError::TrailingBytes { extra: 1, .. })));
    }

    // [WIRE-24] [VIEW-4] each byte of the heads, changed
    #[test]
    fn description_with_a_changed_byte_is_refused_or_another() {
        let datatype = of_each_kind();
        let bytes = encode_datatype(&datatype);
        for index in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[index] ^= 1 << bit;
                if let Ok(other) = decode_datatype(&changed) {
                    assert_ne!(other, datatype, "byte {index}, bit {bit}");
                    assert_eq!(encode_datatype(&other), changed, "byte {index}, bit {bit}");
                }
            }
        }
    }

    // [WIRE-26]
    #[test]
    fn entries_that_are_not_there_are_refused_before_they_are_allocated() {
        let mut bytes = encode_datatype(&Datatype::bytes(1).hindexed(&[]));
        let at = bytes.len() - 8;
        bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(
            decode_datatype(&bytes),
            Err(WireError::Truncated { what: "entries of a node", .. })
        ));
        bytes[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(decode_datatype(&bytes), Err(WireError::TooLarge { .. })));
    }

    #[test]
    fn read_that_is_to_be_durable_is_refused() {
        let request = ViewRequest {
            displacement: 1,
            place: 2,
            group: 3,
            group_size: 4,
            view: 5,
            len: 6,
            method: Method::Inline,
            stability: Stability::FileSync,
            sieve: Sieve::Off,
            flags: ListFlags::default(),
            segment_count: 0,
        };
        let mut body = [0; ViewRequest::HEAD_SIZE - super::super::HEADER_SIZE];
        request.encode(&mut body);
        assert_eq!(body.len(), 48);
        assert_eq!(ViewRequest::decode_for(Opcode::WriteView, &body).unwrap(), request);
        assert!(ViewRequest::decode_for(Opcode::ReadView, &body).is_err());
    }
}
