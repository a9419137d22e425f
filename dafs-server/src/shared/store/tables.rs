//! What is in the file: its tables, how they are read, and how a change is written.

use dafs_proto::wire::{Crossovers, FenceList, SessionId, Status, encode_message_pack};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableHandle, WriteTransaction};

use super::change::{Change, Kept, LocksChange, Proof, PublishedEntry, Record};

/// The form of all tables.
const FORM: TableDefinition<'_, &str, u64> = TableDefinition::new("form");
const FORM_NUMBER: u64 = 2;
/// Its name.
const NUMBER: &str = "number";

/// Sessions that have locks, and what proves who has such a session.
const SESSIONS: TableDefinition<'_, u64, Proof> = TableDefinition::new("sessions");
/// Persistent locks: by the file's number, its generation and where they begin.
const LOCKS: TableDefinition<'_, (u64, u64, u64), Holder> = TableDefinition::new("persistent locks");
/// Who is fenced off, by the exports' names, those too that the server does not have now: a [`FenceList`] as it is on the wire.
const FENCES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("fences");

/// Crossovers that were published, by transport and whose clients they are for: their order, for reads into registered memory and other,
/// and for writes.
const PUBLISHED: TableDefinition<'_, (&str, &str), Sizes> = TableDefinition::new("published crossovers");
type Sizes = (u64, u32, u32, u32, u32);

/// The end of a lock, its session, owner and client, and whether it is mandatory.
type Holder = (u64, u64, u64, [u8; 16], bool);

/// In form 1, that of lock files, all locks of a file were one entry: lists of start, end, session, owner, client and whether they are
/// mandatory.
const LOCKS_OF_FORM_1: TableDefinition<'_, (u64, u64), &[u8]> = TableDefinition::new("locks");
type RecordOfForm1 = (u64, u64, u64, u64, [u8; 16], bool);

/// Why the file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreFault {
    /// The database or the system says no.
    #[error("{}", told(.0))]
    Database(redb::Error),
    /// What it says cannot be.
    #[error("{0}")]
    Content(String),
}

impl<E: Into<redb::Error>> From<E> for StoreFault {
    fn from(error: E) -> Self {
        Self::Database(error.into())
    }
}

fn told(error: &redb::Error) -> String {
    match error {
        redb::Error::Corrupted(what) => format!("it is damaged: {what}"),
        redb::Error::Io(error) if error.raw_os_error().is_none() => format!("it is damaged: {error}"),
        redb::Error::Io(error) => error.to_string(),
        redb::Error::UpgradeRequired(version) => format!("its database version {version} is not supported"),
        other => other.to_string(),
    }
}

impl StoreFault {
    /// What whoever asked is told of it.
    pub(super) fn status(&self) -> Status {
        match self {
            Self::Database(redb::Error::Io(error)) => {
                error.raw_os_error().map_or(Status::IO, Status::from_errno)
            }
            Self::Database(_) | Self::Content(_) => Status::IO,
        }
    }
}

/// Begins to write. What is committed then is durable, and was never half there, whatever order the disk writes in.
fn begin(database: &Database) -> Result<WriteTransaction, StoreFault> {
    let mut begun = database.begin_write()?;
    begun.set_two_phase_commit(true);
    Ok(begun)
}

/// Reads everything, from tables that are made where they are missing.
pub(super) fn read(database: &Database) -> Result<Kept, StoreFault> {
    let begun = begin(database)?;
    prepare(&begun)?;
    begun.commit()?;
    let found = database.begin_read()?;
    let mut kept = Kept::default();
    for entry in found.open_table(SESSIONS)?.iter()? {
        let (session, proof) = entry?;
        kept.sessions.push((SessionId(session.value()), proof.value()));
    }
    for entry in found.open_table(LOCKS)?.iter()? {
        let (key, holder) = entry?;
        let (number, generation, start) = key.value();
        let record = record_of(start, holder.value());
        if record.start >= record.end {
            return Err(StoreFault::Content("it has an empty lock".into()));
        }
        let file = (number, generation);
        match kept.locks.last_mut().filter(|(last, _)| *last == file) {
            Some((_, records)) => records.push(record),
            None => kept.locks.push((file, vec![record])),
        }
    }
    for entry in found.open_table(FENCES)?.iter()? {
        let (export, list) = entry?;
        let list: FenceList = rmp_serde::from_slice(list.value()).map_err(no_entry)?;
        kept.fences.insert(export.value().to_owned(), list);
    }
    for entry in found.open_table(PUBLISHED)?.iter()? {
        let (name, value) = entry?;
        let (transport, whose) = name.value();
        let (order, read_registered, read_unregistered, write_registered, write_unregistered) = value.value();
        let crossovers =
            Crossovers { read_registered, read_unregistered, write_registered, write_unregistered };
        let name = (transport.to_owned(), whose.to_owned());
        kept.published.push((name, PublishedEntry { order, crossovers }));
    }
    Ok(kept)
}

fn prepare(begun: &WriteTransaction) -> Result<(), StoreFault> {
    let mut form = begun.open_table(FORM)?;
    let found = form.get(NUMBER)?.map(|number| number.value());
    match found {
        Some(FORM_NUMBER) => {}
        None if begun.list_tables()?.all(|table| table.name() == FORM.name()) => {}
        Some(1) => take_over(begun)?,
        Some(other) => {
            return Err(StoreFault::Content(format!("its format version {other} is not supported")));
        }
        None => return Err(StoreFault::Content("it is not a state file".into())),
    }
    begun.open_table(SESSIONS)?;
    begun.open_table(LOCKS)?;
    begun.open_table(FENCES)?;
    begun.open_table(PUBLISHED)?;
    form.insert(NUMBER, FORM_NUMBER)?;
    Ok(())
}

/// Makes this form of form 1.
fn take_over(begun: &WriteTransaction) -> Result<(), StoreFault> {
    {
        let (before, mut locks) = (begun.open_table(LOCKS_OF_FORM_1)?, begun.open_table(LOCKS)?);
        for entry in before.iter()? {
            let (file, records) = entry?;
            let (number, generation) = file.value();
            let records: Vec<RecordOfForm1> = rmp_serde::from_slice(records.value()).map_err(no_entry)?;
            for (start, end, session, owner, client, is_mandatory) in records {
                locks.insert((number, generation, start), (end, session, owner, client, is_mandatory))?;
            }
        }
    }
    begun.delete_table(LOCKS_OF_FORM_1)?;
    Ok(())
}

fn no_entry(error: rmp_serde::decode::Error) -> StoreFault {
    StoreFault::Content(format!("it is damaged: an entry cannot be read: {error}"))
}

fn record_of(start: u64, (end, session, owner, client, is_mandatory): Holder) -> Record {
    Record { start, end, session, owner, client, is_mandatory }
}

fn holder_of(record: &Record) -> Holder {
    (record.end, record.session, record.owner, record.client, record.is_mandatory)
}

/// Writes all of these changes, or nothing.
pub(super) fn write<'a>(
    database: &Database,
    changes: impl Iterator<Item = &'a Change>,
) -> Result<(), StoreFault> {
    let begun = begin(database)?;
    apply(&begun, changes)?;
    Ok(begun.commit()?)
}

fn apply<'a>(begun: &WriteTransaction, changes: impl Iterator<Item = &'a Change>) -> Result<(), StoreFault> {
    let mut sessions = begun.open_table(SESSIONS)?;
    let mut locks = begun.open_table(LOCKS)?;
    let mut fences = begun.open_table(FENCES)?;
    let mut published = begun.open_table(PUBLISHED)?;
    for change in changes {
        match change {
            Change::Session(SessionId(session), Some(proof)) => drop(sessions.insert(session, proof)?),
            Change::Session(SessionId(session), None) => drop(sessions.remove(session)?),
            Change::Locks(change) => replace(&mut locks, change)?,
            Change::Fence(export, list) if *list == FenceList::default() => {
                fences.remove(export.as_str())?;
            }
            Change::Fence(export, list) => {
                fences.insert(export.as_str(), encode_message_pack(list).as_slice())?;
            }
            Change::Published((transport, whose), None) => {
                published.remove((transport.as_str(), whose.as_str()))?;
            }
            Change::Published((transport, whose), Some(PublishedEntry { order, crossovers: sizes })) => {
                let reads = (sizes.read_registered, sizes.read_unregistered);
                let writes = (sizes.write_registered, sizes.write_unregistered);
                let value = (*order, reads.0, reads.1, writes.0, writes.1);
                published.insert((transport.as_str(), whose.as_str()), value)?;
            }
        }
    }
    Ok(())
}

/// Puts what lasts in a range of a file in the place of what did. What reaches beyond the range stays there.
fn replace(
    locks: &mut redb::Table<'_, (u64, u64, u64), Holder>,
    LocksChange { file: (number, generation), range, records }: &LocksChange,
) -> Result<(), StoreFault> {
    let key = |start| (*number, *generation, start);
    let before = locks.range(key(0)..key(range.start))?.next_back().transpose()?;
    let before = before.map(|(key, holder)| record_of(key.value().2, holder.value()));
    let mut cut: Vec<Record> = before.into_iter().filter(|before| before.end > range.start).collect();
    for entry in locks.range(key(range.start)..key(range.end))? {
        let (key, holder) = entry?;
        cut.push(record_of(key.value().2, holder.value()));
    }
    for record in cut {
        locks.remove(key(record.start))?;
        let rests = [Record { end: range.start, ..record.clone() }, Record { start: range.end, ..record }];
        for rest in rests.iter().filter(|rest| rest.start < rest.end) {
            locks.insert(key(rest.start), holder_of(rest))?;
        }
    }
    for record in records {
        locks.insert(key(record.start), holder_of(record))?;
    }
    Ok(())
}
