//! A client with a file of its own, and what it must find in there.

use std::io::{IoSlice, IoSliceMut};

use dafs_client::{
    Error, Export, Extent, File, OpenOptions, RegisteredBuf, Session, Stability, Transferred, wait_any,
    wait_some,
};
use dafs_tests::suite::{Numbers, assert_same, bytes};

use crate::data::{FILE_SIZE_MAX, cuts, extents, len, range};

/// Operations that are in flight together, at most, and the room in the file that each of them has.
const TOGETHER_MAX: u64 = 30;
const ROOM: u64 = FILE_SIZE_MAX / TOGETHER_MAX;

/// Requests of the chain that is sent.
const CHAIN_LEN: u16 = 3;

type Action<'s> = (&'static str, fn(&mut Player<'s>));

pub(crate) struct Player<'s> {
    session: &'s Session,
    export: Export,
    name: String,
    file: File,
    buffer: RegisteredBuf,
    model: Vec<u8>,
    numbers: Numbers,
}

impl<'s> Player<'s> {
    pub(crate) fn new(session: &'s Session, name: &str, numbers: Numbers) -> Self {
        let export = session.mount("data").unwrap();
        let options = OpenOptions::new().read(true).write(true).create(true).to_owned();
        let file = export.open_with(name, &options).unwrap();
        let buffer = session.buffer(300_000).unwrap();
        Self { session, export, name: name.to_owned(), file, buffer, model: Vec::new(), numbers }
    }

    /// Does something, and returns what that was.
    pub(crate) fn act(&mut self) -> &'static str {
        let actions: [Action<'s>; 12] = [
            ("write", Self::write),
            ("read", Self::read),
            ("list write", Self::write_list),
            ("list read", Self::read_list),
            ("writes together", Self::submit_writes),
            ("reads together", Self::submit_reads),
            ("append", Self::append),
            ("batch", Self::batch),
            ("registered transfers", Self::move_registered),
            ("truncate", Self::truncate),
            ("durable write", Self::write_durably),
            ("chain", Self::chain),
        ];
        let (name, action) = self.numbers.one_of(&actions);
        action(self);
        name
    }

    pub(crate) fn check_all(&mut self) {
        let mut found = vec![0; self.model.len() + 1];
        let mut len = 0;
        loop {
            match self.file.read_at(&mut found[len..], len as u64).unwrap() {
                0 => break,
                count => len += count,
            }
        }
        assert_same(&found[..len], &self.model, "all of the file");
        assert_eq!(self.file.metadata().unwrap().size, self.model.len() as u64);
    }

    fn fresh(&mut self, len: usize) -> Vec<u8> {
        bytes(self.numbers.next(), len)
    }

    fn note_written(&mut self, offset: u64, data: &[u8]) {
        let (begin, end) = (offset as usize, offset as usize + data.len());
        if data.is_empty() {
            return;
        }
        self.model.resize(self.model.len().max(end), 0);
        self.model[begin..end].copy_from_slice(data);
    }

    fn expected(&self, offset: u64, len: usize) -> &[u8] {
        let at = |place: usize| place.min(self.model.len());
        &self.model[at(offset as usize)..at(offset as usize + len)]
    }

    fn check_read(&self, count: usize, buffer: &[u8], offset: u64, what: &str) {
        let expected = self.expected(offset, buffer.len());
        assert_eq!(count, expected.len(), "{what}");
        assert_same(&buffer[..count], expected, what);
    }

    fn write(&mut self) {
        let (offset, len) = range(&mut self.numbers);
        let data = self.fresh(len);
        self.file.write_all_at(&data, offset).unwrap();
        self.note_written(offset, &data);
    }

    fn read(&mut self) {
        let (offset, len) = range(&mut self.numbers);
        let mut buffer = vec![0xee; len + 8];
        let count = self.file.read_at(&mut buffer[..len], offset).unwrap();
        self.check_read(count, &buffer[..len], offset, "a read");
        assert!(buffer[len..].iter().all(|byte| *byte == 0xee), "memory behind a read's");
    }

    fn write_list(&mut self) {
        let extents = extents(&mut self.numbers);
        let total = total(&extents);
        let (data, cuts) = (self.fresh(total), cuts(&mut self.numbers, total));
        let pieces: Vec<_> = cuts.windows(2).map(|cut| IoSlice::new(&data[cut[0]..cut[1]])).collect();
        assert_eq!(self.file.write_list(&extents, &pieces).unwrap(), total);
        for (extent, part) in parts(&extents) {
            self.note_written(extent.offset, &data[part]);
        }
    }

    fn read_list(&mut self) {
        let extents = extents(&mut self.numbers);
        let mut buffer = vec![0xee; total(&extents)];
        let cuts = cuts(&mut self.numbers, buffer.len());
        let (mut rest, mut pieces) = (&mut buffer[..], Vec::new());
        for cut in cuts.windows(2) {
            let (piece, behind) = rest.split_at_mut(cut[1] - cut[0]);
            pieces.push(IoSliceMut::new(piece));
            rest = behind;
        }
        self.file.read_list(&extents, &mut pieces).unwrap();
        for (extent, part) in parts(&extents) {
            let expected = self.expected(extent.offset, extent.len as usize);
            assert_same(&buffer[part][..expected.len()], expected, "an extent of a list");
        }
    }

    fn submit_writes(&mut self) {
        let mut pendings = Vec::new();
        for place in 0..=self.numbers.below(TOGETHER_MAX - 1) {
            let len = len(&mut self.numbers).min(ROOM) as usize;
            let data = self.fresh(len);
            self.note_written(place * ROOM, &data);
            pendings.push(self.file.submit_write_at(data, place * ROOM));
        }
        let check = |done: Transferred<Vec<u8>>| assert_eq!(done.result.unwrap(), done.buffer.len());
        while !pendings.is_empty() {
            match self.numbers.below(3) {
                0 => wait_some(&mut pendings).into_iter().for_each(check),
                1 => {
                    let place = wait_any(&mut pendings).unwrap();
                    check(pendings.swap_remove(place).wait());
                }
                _ => {
                    let place = self.numbers.below(pendings.len() as u64) as usize;
                    check(pendings.swap_remove(place).wait());
                }
            }
        }
    }

    fn submit_reads(&mut self) {
        let mut pendings = Vec::new();
        for _ in 0..=self.numbers.below(TOGETHER_MAX) {
            let (offset, len) = range(&mut self.numbers);
            pendings.push((offset, self.file.submit_read_at(vec![0; len], offset)));
        }
        for (offset, pending) in pendings {
            match self.numbers.below(8) {
                0 => drop(pending),
                1 => match pending.cancel() {
                    Transferred { result: Err(Error::Cancelled), .. } => {}
                    done => self.check_read(done.result.unwrap(), &done.buffer, offset, "cancelled too late"),
                },
                _ => {
                    let done = pending.wait();
                    self.check_read(done.result.unwrap(), &done.buffer, offset, "a nonblocking read");
                }
            }
        }
    }

    fn append(&mut self) {
        let len = len(&mut self.numbers).min(20_000) as usize;
        if self.model.len() + len > FILE_SIZE_MAX as usize {
            return;
        }
        let data = self.fresh(len);
        let end = self.model.len() as u64;
        match self.file.append(&data) {
            Ok(offset) => assert_eq!(offset, end),
            // More than a session that moves everything in messages can append at once.
            Err(Error::Invalid(_)) if len > 8192 => return,
            Err(error) => panic!("{error}"),
        }
        self.note_written(end, &data);
    }

    fn batch(&mut self) {
        let writes: Vec<(u64, Vec<u8>)> = (0..=self.numbers.below(TOGETHER_MAX - 1))
            .map(|place| {
                let len = len(&mut self.numbers).min(ROOM) as usize;
                (place * ROOM, self.fresh(len))
            })
            .collect();
        let mut batch = self.session.batch_io();
        for (offset, data) in &writes {
            batch.write_at(&self.file, data, *offset);
        }
        for (outcome, (_, data)) in batch.run().unwrap().into_iter().zip(&writes) {
            assert_eq!(outcome.unwrap().count, data.len());
        }
        drop(batch);
        for (offset, data) in &writes {
            self.note_written(*offset, data);
        }
        let mut reads: Vec<(u64, Vec<u8>)> = Vec::new();
        for _ in 0..=self.numbers.below(60) {
            let (offset, len) = range(&mut self.numbers);
            reads.push((offset, vec![0; len.min(100_000)]));
        }
        let mut batch = self.session.batch_io();
        for (offset, buffer) in &mut reads {
            batch.read_at(&self.file, buffer, *offset);
        }
        let counts: Vec<_> = batch.run().unwrap().into_iter().map(|outcome| outcome.unwrap().count).collect();
        drop(batch);
        for (count, (offset, buffer)) in counts.into_iter().zip(&reads) {
            self.check_read(count, buffer, *offset, "a read of a batch");
        }
    }

    fn move_registered(&mut self) {
        let data = self.fresh(self.buffer.len());
        let offset = self.numbers.below(FILE_SIZE_MAX - data.len() as u64);
        self.buffer.copy_from_slice(&data);
        assert_eq!(self.file.write_buf_at(&self.buffer, offset).unwrap(), data.len());
        self.note_written(offset, &data);
        let count = self.file.read_buf_at(&mut self.buffer, offset / 2).unwrap();
        self.check_read(count, &self.buffer, offset / 2, "a read into registered memory");
    }

    fn truncate(&mut self) {
        let size = self.numbers.below(FILE_SIZE_MAX);
        self.file.truncate(size).unwrap();
        self.model.resize(size as usize, 0);
    }

    fn write_durably(&mut self) {
        let (offset, len) = range(&mut self.numbers);
        let data = self.fresh(len.min(60_000));
        let stability = self.numbers.one_of(&[Stability::DataSync, Stability::FileSync]);
        let mut done = 0;
        while done < data.len() {
            done += self.file.write_at_with(&data[done..], offset + done as u64, stability).unwrap();
        }
        self.note_written(offset, &data);
        self.file.commit().unwrap();
    }

    fn chain(&mut self) {
        if self.session.agreed().slots < CHAIN_LEN {
            return;
        }
        let (offset, mut buffer) = (self.numbers.below(FILE_SIZE_MAX), vec![0; 1000]);
        let options = OpenOptions::new().read(true).to_owned();
        let chain = self.export.chain().open(&self.name, &options).read_at(&mut buffer, offset).close();
        let count = chain.run().unwrap().counts[0];
        self.check_read(count, &buffer, offset, "a read in a chain");
    }
}

fn total(extents: &[Extent]) -> usize {
    extents.iter().map(|extent| extent.len as usize).sum()
}

/// Each extent with its part of the memory.
fn parts(extents: &[Extent]) -> impl Iterator<Item = (&Extent, std::ops::Range<usize>)> {
    extents.iter().scan(0, |at, extent| {
        let begin = *at;
        *at += extent.len as usize;
        Some((extent, begin..*at))
    })
}
