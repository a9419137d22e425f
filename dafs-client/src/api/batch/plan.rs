//! From the operations of a batch to what is sent, and from what came of that to their results.

use std::sync::Arc;

use dafs_proto::extent::is_ascending;
use dafs_proto::wire::{
    BATCH_OPERATION_SIZE, BATCH_RESULT_SIZE, Features, LIST_MAX, Opcode, ShortLists, Status, lists_size,
};
use smallvec::SmallVec;

use crate::api::batch::memory::{BOUNCE_KEPT_MAX, memory_of};
use crate::api::batch::part::{BatchOutcome, Part, Parts};
use crate::config::Config;
use crate::driver::SharedSession;
use crate::engine::choice::Question;
use crate::engine::core::Core;
use crate::error::{Error, Result};
use crate::handle::node::Node;
use crate::memory::Keep;
use crate::method::io_path::{Circumstances, Direction, Form, IoPath, Registration, decide};
use crate::op::Op;
use crate::op::batch::BatchHints;
use crate::op::batch::{BatchWork, Bounds, Entry, cut};
use crate::op::body::wire;
use crate::op::list::{joined, without_gap};

/// How the operations are done.
pub(crate) enum Plan {
    Batch(Prepared),
    /// Each on its own: no batch can be made of them here.
    Singly {
        parts: Parts,
        keep: Keep,
    },
}

/// A batch that can be run, and what is needed to make its results of it.
pub(crate) struct Prepared {
    pub(crate) op: Box<Op>,
    pub(crate) operations: Vec<Asked>,
}

/// One operation as the caller asked for it.
pub(crate) struct Asked {
    node: Arc<Node>,
    write: bool,
}

pub(crate) fn prepare(
    shared: &SharedSession,
    core: &mut Core,
    mut parts: Parts,
    hints: Option<BatchHints>,
    keep: Keep,
) -> std::result::Result<Plan, (Error, Keep)> {
    if let Some(error) = parts.wrong.take().or(shared.check_home().err()) {
        return Err((error, keep));
    }
    let bounds = Bounds::of(&core.terms);
    if !core.terms.has(Features::BATCHES) {
        return Ok(Plan::Singly { parts, keep });
    }
    for part in &mut parts.operations {
        part.inline = fits_inline(part, &bounds) && goes_inline(core, &shared.config, part);
    }
    let mut memory = memory_of(shared, core, &parts.operations);
    if memory.is_none() {
        // Where the server reaches no memory, messages carry what they can.
        parts.operations.iter_mut().for_each(|part| part.inline = fits_inline(part, &bounds));
        memory = memory_of(shared, core, &parts.operations);
    }
    let Some(memory) = memory else { return Ok(Plan::Singly { parts, keep }) };
    let count = parts.operations.len();
    let (mut entries, mut operations) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for (operation, (part, ranges)) in parts.operations.into_iter().zip(memory.ranges).enumerate() {
        let ranges: SmallVec<[_; 1]> = ranges.into_iter().map(wire).collect();
        let mut push = |lists, len, memory| {
            let (node, write, stability) = (Arc::clone(&part.node), part.write, part.stability);
            entries.push(Entry { operation, node, write, stability, lists, len, memory, result: None });
        };
        if part.inline {
            let lists = ShortLists { extents: joined(&part.extents), segments: SmallVec::new() };
            push(lists, part.len(), Some(part.memory));
        } else {
            let pieces = cut(&part.extents, &ranges, &bounds);
            if part.write && pieces.len() > 1 && !is_ascending(&part.extents) {
                let what = format!(
                    "operation {operation} of a batch: a list that is too large for one request must be in ascending order"
                );
                return Err((Error::Invalid(what), keep));
            }
            pieces.into_iter().for_each(|(lists, len)| push(lists, len, None));
        }
        operations.push(Asked { node: part.node, write: part.write });
    }
    let inline = entries.iter().filter(|entry| entry.memory.is_some());
    let work = BatchWork {
        inline_left: inline.map(|entry| entry.len).sum(),
        entries,
        sent: 0,
        redo: Vec::new(),
        hints,
        expedite: parts.expedite,
        holds: memory.holds,
        keep,
        lent: parts.lent,
        bounce: memory.bounce,
        told: Vec::new(),
        copied: 0,
        written: 0,
    };
    Ok(Plan::Batch(Prepared { op: Box::new(Op::batch(work)), operations }))
}

/// One request and its reply carry its data.
fn fits_inline(part: &Part, bounds: &Bounds) -> bool {
    let len = part.len();
    let described = BATCH_OPERATION_SIZE + lists_size(part.extents.len(), 0);
    let (request, reply) = if part.write { (described + len, 0) } else { (described, len) };
    let fits = request <= bounds.payload_max && BATCH_RESULT_SIZE + reply <= bounds.reply_max;
    len > 0 && fits && part.extents.len() <= LIST_MAX
}

/// Its data is to travel in the messages, as that of a transfer of its own would.
fn goes_inline(core: &Core, config: &Config, part: &Part) -> bool {
    let direction = if part.write { Direction::Write } else { Direction::Read };
    let memory = match part.range {
        Some(_) => Registration::Registered,
        None => Registration::Ordinary,
    };
    let circumstances = core.circumstances(config, &Question::of(direction, part.len() as u64, memory));
    let form = Form::Batched { is_mapped: core.terms.bounce_overlaps };
    // Batches use no eager buffers, and are not cut as transfers are.
    let circumstances = Circumstances { has_eager_buffers: false, cuts_inline: false, form, ..circumstances };
    decide(&circumstances).path == IoPath::Inline
}

/// From a finished batch to its buffers and results.
#[allow(clippy::type_complexity, reason = "both halves of the caller's result")]
pub(crate) fn results(
    shared: &SharedSession,
    mut op: Op,
    operations: &[Asked],
) -> (Keep, Result<Vec<Result<BatchOutcome>>>) {
    let keep = op.take_keep();
    let mut batch = match op.into_batch() {
        Ok(batch) => batch,
        Err(error) => return (keep, Err(error)),
    };
    if let Some(bounce) = batch.bounce.take().filter(|bounce| bounce.buffer.len() <= BOUNCE_KEPT_MAX) {
        shared.lock().buffers.batch_bounce = Some(bounce.buffer);
    }
    let mut entries = batch.entries.iter().peekable();
    let mut outcomes = Vec::with_capacity(operations.len());
    for (place, asked) in operations.iter().enumerate() {
        let mut outcome = BatchOutcome { count: 0, end: None };
        let (mut failed, mut is_short) = (None, false);
        while let Some(entry) = entries.next_if(|entry| entry.operation == place) {
            let Some(result) = entry.result else { continue };
            if result.status != Status::OK {
                failed = failed.or(Some(result.status));
                is_short = true;
                continue;
            }
            let count = result.count as usize;
            if !asked.write && count < entry.len {
                outcome.end = Some(outcome.end.map_or(result.value, |end| end.min(result.value)));
                // Extents before the end of the file follow behind some that are not.
                outcome.count +=
                    if is_short { 0 } else { without_gap(entry.lists.extents.iter().copied(), result.value) };
                is_short = true;
            } else if !is_short {
                outcome.count += count;
                is_short = count < entry.len;
            }
        }
        outcomes.push(match failed {
            Some(status) if !asked.write || outcome.count == 0 => Err(Error::Status {
                status,
                operation: Opcode::Batch,
                path: asked.node.path.clone(),
                explanation: String::new(),
            }),
            _ => Ok(outcome),
        });
    }
    (keep, Ok(outcomes))
}
