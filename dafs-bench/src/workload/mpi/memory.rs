//! Memory modes: the time of a transfer by the size of blocks and by how often a buffer is used again (Figures 4 and 5).

use crate::workload::mpi::client::{Load, Memory};
use crate::workload::mpi::single::{Actor, Compare, Entry, Single};

/// What a driver may do with ordinary memory.
pub(super) const MODES: [&str; 4] = ["dafs", "adio", "adio_cache", "auto"];
/// Sizes of blocks: those of the paper, and larger ones, where registering costs more.
const SIZES: [usize; 5] = [1 << 10, 2 << 10, 16 << 10, 64 << 10, 1 << 20];
/// Transfers of a hundred that use the same buffer.
const REUSES: [u32; 5] = [0, 25, 50, 75, 100];
/// Registrations that are kept, as in the paper; each measurement begins with none.
pub(super) const ENTRIES: usize = 200;
/// Other buffers, each used in its turn: more than are kept registered.
const FRESH: usize = 240;

pub(super) fn run(single: &mut Single<'_, '_, '_>, sizes: Option<&[usize]>) -> anyhow::Result<()> {
    let entries = entries(single);
    for &bytes in sizes.unwrap_or(&SIZES) {
        for op in single.bench.plan.ops.clone() {
            for reuse in REUSES {
                let load = Load { op, bytes, random: false, reuse, fresh: FRESH };
                let rounds = single.alternate(&entries, &load)?;
                single.report("memory", (&entries, &rounds), &load, Compare::Mean);
            }
        }
    }
    Ok(())
}

/// The client API in memory that needs no registering first; the modes beside it. Without dafs there is nothing to register.
fn entries(single: &Single<'_, '_, '_>) -> Vec<Entry> {
    let mut entries = vec![Entry { actor: Actor::Local, beside: None }];
    let mut none = Vec::new();
    for client in 0..single.clients.len() {
        none.push(entries.len());
        entries.push(Entry { actor: Actor::Client(client, Memory::Registered), beside: Some(0) });
        entries.push(Entry { actor: Actor::Client(client, Memory::Pinned), beside: none.last().copied() });
    }
    for contender in single.arena.contenders() {
        let Some(client) = single.client_of(&contender) else { continue };
        entries.extend(MODES.map(|mode| Entry {
            actor: Actor::Program(contender.clone(), Some(mode)),
            beside: none.get(client).copied(),
        }));
    }
    entries
}
