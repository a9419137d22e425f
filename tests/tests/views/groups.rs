//! Transfers of a group: the server may move them together, and each is as if it were alone.

use dafs_client::{
    Config, Datatype, Explanation, File, MethodOverride, OpenOptions, Pending, Session, Status, Transferred,
    View,
};
use dafs_proto::transport::sim::FaultPlan;
use dafs_tests::cut::{connect_cuttable, cut_connections};
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::sim::{World, WorldPlan};
use dafs_tests::suite::{EXPORTS, Numbers, assert_same, bytes};
use dafs_tests::{on_each_provider, on_three_workers};

on_each_provider! {
    group_leaves_what_its_transfers_leave_alone,
    group_that_stays_incomplete_is_served,
    group_whose_storage_fails_ends_as_its_transfers_do_alone,
    group_whose_connections_break_loses_nothing,
}

// Over an emulated device the members of a group seldom meet within the server's patience.
mod together {
    use super::*;

    dafs_tests::on_sockets! {
        what_lies_side_by_side_is_moved_by_few_calls,
        group_whose_connections_break_writes_nothing_again,
        group_whose_mover_goes_is_told_what_storage_did,
    }

    // Its members are then served by different loops.
    dafs_tests::on_three_workers! {
        what_lies_side_by_side_is_moved_by_few_calls,
        group_whose_connections_break_writes_nothing_again,
        group_whose_mover_goes_is_told_what_storage_did,
    }
}

on_three_workers! {
    group_leaves_what_its_transfers_leave_alone,
    group_that_stays_incomplete_is_served,
    group_whose_storage_fails_ends_as_its_transfers_do_alone,
    group_whose_connections_break_loses_nothing,
}

/// One of those who share a file.
pub(super) struct Member {
    pub(super) session: Session,
    pub(super) file: File,
}

impl Member {
    pub(super) fn of(session: Session, export: &str) -> Self {
        let root = session.mount(export).unwrap();
        let file = root.open_with("f", OpenOptions::new().read(true).write(true).create(true)).unwrap();
        Self { session, file }
    }
}

/// Columns of a matrix: those of each member, with what lies between them.
pub(super) struct Mesh {
    pub(super) row: u64,
    pub(super) columns: Vec<(u64, u64)>,
    pub(super) rows: u64,
}

impl Mesh {
    fn random(numbers: &mut Numbers, members: usize, rows_max: u64, width_max: u64) -> Self {
        let gap =
            |numbers: &mut Numbers| if numbers.below(3) == 0 { numbers.below(2 * width_max) } else { 0 };
        let mut row = gap(numbers);
        let column = |_| {
            let column = (row, 1 + numbers.below(width_max));
            row += column.1 + gap(numbers);
            column
        };
        let columns = (0..members).map(column).collect();
        Self { row, columns, rows: 1 + numbers.below(rows_max) }
    }

    pub(super) fn len(&self, member: usize) -> usize {
        (self.columns[member].1 * self.rows) as usize
    }

    pub(super) fn view(&self, session: &Session, member: usize) -> View {
        session.view(&Datatype::bytes(self.columns[member].1).resized(0, self.row as i64)).unwrap()
    }

    /// Puts a member's data, or part of it, where it belongs.
    pub(super) fn put(&self, model: &mut Vec<u8>, at: u64, member: usize, data: &[u8]) {
        let (column, width) = self.columns[member];
        for (row, data) in data.chunks(width as usize).enumerate() {
            let place = (at + row as u64 * self.row + column) as usize;
            model.resize(model.len().max(place + data.len()), 0);
            model[place..place + data.len()].copy_from_slice(data);
        }
    }

    /// What is in the file when these writes of the members from `first` on have ended, each whole.
    pub(super) fn written(
        &self,
        first: usize,
        writes: Vec<Pending<Transferred<Vec<u8>>>>,
        group: u64,
    ) -> Vec<u8> {
        self.ended(first, writes.into_iter().map(Pending::wait).collect(), group)
    }

    /// The same of writes that have ended.
    pub(super) fn ended(&self, first: usize, writes: Vec<Transferred<Vec<u8>>>, group: u64) -> Vec<u8> {
        let mut model = Vec::new();
        for (member, write) in (first..).zip(writes) {
            assert_eq!(write.result.unwrap(), self.len(member), "group {group}");
            self.put(&mut model, 0, member, &write.buffer);
        }
        model
    }

    /// What it reads: as far as the file goes.
    pub(super) fn take(&self, model: &[u8], at: u64, member: usize) -> Vec<u8> {
        let (column, width) = self.columns[member];
        let places = (0..self.rows).map(|row| (at + row * self.row + column) as usize);
        let rows =
            places.map(|place| &model[place.min(model.len())..(place + width as usize).min(model.len())]);
        rows.flatten().copied().collect()
    }

    pub(super) fn write(
        &self,
        members: &[Member],
        at: u64,
        group: u64,
        seed: u64,
    ) -> Vec<Pending<Transferred<Vec<u8>>>> {
        let write = |(index, member): (usize, &Member)| {
            let view = self.view(&member.session, index);
            let place = view.at(at + self.columns[index].0, 0).in_group(group, members.len() as u32);
            let pending = member.file.submit_write_view(&place, bytes(seed + index as u64, self.len(index)));
            member.session.flush();
            pending
        };
        members.iter().enumerate().map(write).collect()
    }

    pub(super) fn read(&self, members: &[Member], at: u64, group: u64) -> Vec<Pending<Transferred<Vec<u8>>>> {
        let read = |(index, member): (usize, &Member)| {
            let view = self.view(&member.session, index);
            let place = view.at(at + self.columns[index].0, 0).in_group(group, members.len() as u32);
            let pending = member.file.submit_read_view(&place, vec![0xa5; self.len(index)]);
            member.session.flush();
            pending
        };
        members.iter().enumerate().map(read).collect()
    }
}

/// Random meshes, written and read by groups, against a model of the file.
fn play(members: &[Member], seed: u64, rounds: u64, rows_max: u64) {
    let mut numbers = Numbers::new(seed);
    let mut model = Vec::new();
    members[0].file.truncate(0).unwrap();
    for round in 0..rounds {
        let count = 2 + numbers.below(members.len() as u64 - 1) as usize;
        let members = &members[..count];
        let width_max = [3, 40, 5000][numbers.below(3) as usize];
        let mesh = Mesh::random(&mut numbers, count, rows_max.min(400_000 / width_max), width_max);
        let at = numbers.below(10_000);
        let what =
            format!("round {round} of seed {seed}: {count} members, {:?} of {}", mesh.columns, mesh.row);
        for (index, write) in mesh.write(members, at, 1000 + round, round).into_iter().enumerate() {
            let write = write.wait();
            assert_eq!(write.result.as_ref().ok(), Some(&mesh.len(index)), "{what}: {:?}", write.result);
            mesh.put(&mut model, at, index, &write.buffer);
        }
        // Some of it behind the end of the file.
        let at = at + numbers.below(200);
        for (index, read) in mesh.read(members, at, 5000 + round).into_iter().enumerate() {
            let read = read.wait();
            let expected = mesh.take(&model, at, index);
            assert_eq!(read.result.as_ref().ok(), Some(&expected.len()), "{what}: {:?}", read.result);
            assert_same(&read.buffer[..expected.len()], &expected, &what);
        }
    }
    let mut found = vec![0; model.len() + 1];
    let count = members[0].file.read_at(&mut found, 0).unwrap();
    assert_same(&found[..count], &model, "the file");
}

// [VIEW-13] [VIEW-15]
fn group_leaves_what_its_transfers_leave_alone(on: On) {
    let harness = Harness::start(on);
    for (seed, export) in EXPORTS.into_iter().enumerate() {
        let methods =
            [MethodOverride::Auto, MethodOverride::Inline, MethodOverride::Direct, MethodOverride::Auto];
        let config = methods.map(|method| Config { method, ..Config::default() });
        let members = config.map(|config| Member::of(harness.session_with(&config), export));
        play(&members, seed as u64, on.rounds(60), 9000);
    }
}

mod sim {
    use super::*;

    // [VIEW-13] Connections break, and members come again.
    #[test]
    fn group_leaves_what_its_transfers_leave_alone() {
        for (seed, remote_mapped) in [(1, true), (2, false), (3, true), (4, true)] {
            let network = FaultPlan { cut_ppm: 300 * seed as u32, remote_mapped, ..FaultPlan::calm() };
            let world = World::new(seed, WorldPlan { network, crash_ppm: 0 });
            let member = |node: u32| {
                Member::of(world.connect(node, &World::client_config(node as u8)).unwrap(), "data")
            };
            play(&[1, 2, 3, 4].map(member), seed, 60, 9000);
        }
    }
}

/// Runs a group until it was moved together: its members have to arrive within the server's patience.
fn until_together(
    members: &[Member],
    mut run: impl FnMut(u64, &[Member]),
    is_one: impl Fn(&Explanation) -> bool,
) {
    for group in 1..3000 {
        run(group, members);
        let mut all = members.iter().map(|member| member.file.take_explanation());
        if all.any(|explanation| is_one(&explanation)) {
            return;
        }
    }
    panic!("no group was moved together");
}

// [VIEW-15]
fn what_lies_side_by_side_is_moved_by_few_calls(on: On) {
    const ROWS: u64 = 4200;
    let harness = Harness::start(on);
    // Through buffers, over tcp and verbs, nothing waits.
    let config = Config { method: MethodOverride::Inline, ..Config::default() };
    for export in EXPORTS {
        let member = |_| {
            let Member { session, file } = Member::of(harness.session_with(&config), export);
            Member { file: file.with_explanation(), session }
        };
        let members: Vec<Member> = (0..4).map(member).collect();
        let mesh = Mesh { row: 8, columns: (0..4).map(|place| (2 * place, 2)).collect(), rows: ROWS };
        let write = |group: u64, members: &[Member]| {
            mesh.write(members, 0, group, group)
                .into_iter()
                .for_each(|write| assert_eq!(write.wait().result.unwrap(), mesh.len(0)));
        };
        let all =
            |told: &Explanation| told.parts == 4 * ROWS && told.calls <= 4 * ROWS / 500 && told.windows == 0;
        until_together(&members, write, all);
        let read = |group: u64, members: &[Member]| {
            mesh.read(members, 0, group)
                .into_iter()
                .for_each(|read| assert_eq!(read.wait().result.unwrap(), mesh.len(0)));
        };
        until_together(&members, read, |told| told.parts == 4 * ROWS);
    }
}

// [VIEW-13]
fn group_that_stays_incomplete_is_served(on: On) {
    let harness = Harness::start(on);
    let members = [0; 3].map(|_| Member::of(harness.session(), "data"));
    let mesh = Mesh { row: 6, columns: vec![(0, 2), (2, 2), (4, 2)], rows: 5000 };
    let mut model = Vec::new();
    for group in 1..4 {
        // One of three never comes, and one comes twice.
        for index in [0, 2] {
            let view = mesh.view(&members[index].session, index);
            let data = bytes(group, mesh.len(index));
            let place = view.at(mesh.columns[index].0, 0).in_group(group, 3);
            assert_eq!(members[index].file.write_view(&place, &data).unwrap(), data.len());
            mesh.put(&mut model, 0, index, &data);
        }
    }
    let mut found = vec![0; model.len()];
    members[1].file.read_exact_at(&mut found, 0).unwrap();
    assert_same(&found, &model, "the file");
    // A group of one, of too many, and of none.
    for size in [0, 1, 65, u32::MAX] {
        let view = mesh.view(&members[0].session, 0);
        let place = view.at(0, 0).in_group(7, size);
        assert_eq!(members[0].file.write_view(&place, &bytes(9, mesh.len(0))).unwrap(), mesh.len(0));
    }
}

// [VIEW-15]
fn group_whose_storage_fails_ends_as_its_transfers_do_alone(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let members = [0; 4].map(|_| Member::of(harness.session(), "data"));
    let mesh = Mesh { row: 20, columns: (0..4).map(|place| (5 * place, 5)).collect(), rows: 4100 };
    let mut model = Vec::new();
    for (group, fault) in
        [Fault::Fail(Status::NO_SPACE), Fault::Short, Fault::Fail(Status::IO)].into_iter().enumerate()
    {
        faults.next(Kind::Write, fault, 1);
        let mut refused = 0;
        for (index, write) in
            mesh.write(&members, 0, 1 + group as u64, 10 * group as u64).into_iter().enumerate()
        {
            let write = write.wait();
            // Moved together each tries again by itself; alone one of them meets the fault.
            let count = match (write.result, fault) {
                (Ok(count), _) => count,
                (Err(error), Fault::Fail(status)) if error.status() == Some(status) => 0,
                (Err(error), _) => panic!("{fault:?}: {error}"),
            };
            refused += u32::from(count < write.buffer.len());
            mesh.put(&mut model, 0, index, &write.buffer[..count]);
            if count < write.buffer.len() {
                let view = mesh.view(&members[index].session, index);
                let place = view.at(mesh.columns[index].0, 0);
                members[index].file.write_view(&place, &write.buffer).unwrap();
                mesh.put(&mut model, 0, index, &write.buffer);
            }
        }
        assert!(
            faults.left() == 0 && refused <= 1,
            "{fault:?}: one call meets it, {refused} writes end with it"
        );
        faults.release();
    }
    let mut found = vec![0; model.len()];
    members[1].file.read_exact_at(&mut found, 0).unwrap();
    assert_same(&found, &model, "the file");
}

// [VIEW-13]
fn group_whose_connections_break_loses_nothing(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let config = Config { method: MethodOverride::Auto, ..Config::default() };
    let members = [0; 4].map(|_| Member::of(connect_cuttable(&harness, &config).unwrap(), "data"));
    let mesh = Mesh { row: 20, columns: (0..4).map(|place| (5 * place, 5)).collect(), rows: 4100 };
    for group in 1..6 {
        faults.next(Kind::Write, Fault::Hold, 1);
        let writes = mesh.write(&members, 0, group, 100 * group);
        faults.wait_for_held(1);
        cut_connections(harness.address());
        members[group as usize % 4].session.probe().unwrap();
        faults.release();
        let model = mesh.written(0, writes, group);
        let mut found = vec![0; model.len()];
        members[0].file.read_exact_at(&mut found, 0).unwrap();
        assert_same(&found, &model, "the file");
    }
}

// [VIEW-13] What a group has written counts for each of its members: others may have changed it since.
fn group_whose_connections_break_writes_nothing_again(on: On) {
    const SEEN: usize = 1000;
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    // Through buffers, over tcp, nothing waits for others.
    let config = Config { method: MethodOverride::Inline, ..Config::default() };
    let members = [0; 4].map(|_| Member::of(connect_cuttable(&harness, &config).unwrap(), "data"));
    let mesh = Mesh { row: 20, columns: (0..4).map(|place| (5 * place, 5)).collect(), rows: 4100 };
    let mut met = 0;
    for group in 1..100 {
        faults.next(Kind::Write, Fault::Late, 1);
        let writes = mesh.write(&members, 0, group, 100 * group);
        faults.wait_for_held(1);
        cut_connections(harness.address());
        // By the time that it is served, the server knows of the others' ends.
        let other = Member::of(harness.session(), "data");
        let mut found = [0; SEEN];
        let count = other.file.read_at(&mut found, 0).unwrap();
        other.file.write_all_at(&[0xee; SEEN], 0).unwrap();
        faults.release();
        let model = mesh.written(0, writes, group);
        let was_written = count == SEEN && found == model[..SEEN];
        other.file.read_exact_at(&mut found, 0).unwrap();
        if was_written {
            assert_same(&found, &[0xee; SEEN], &format!("what another wrote over group {group}"));
            met += 1;
        }
        if met == 5 {
            return;
        }
    }
    assert!(met > 0, "no group had written its first bytes when its connections broke");
}

// [VIEW-15] The session of the member that moves them ends while storage writes, and then storage fails.
fn group_whose_mover_goes_is_told_what_storage_did(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let watcher = harness.session();
    // Through buffers, over tcp, nothing waits for others.
    let config = Config { method: MethodOverride::Inline, ..Config::default() };
    let member = || Member::of(harness.session_with(&config), "data");
    let mut members = vec![member(), member(), member()];
    // A request of each carries all of its data.
    let mesh = Mesh { row: 8, columns: (0..4).map(|place| (2 * place, 2)).collect(), rows: 4200 };
    let mut met = 0;
    for group in 1..1000 {
        members.push(member());
        faults.next(Kind::Write, Fault::FailLate(Status::NO_SPACE), 1);
        let mut writes = mesh.write(&members, 0, group, 100 * group);
        faults.wait_for_held(1);
        // It came last.
        let mover = members.pop().unwrap();
        mover.session.close();
        drop((mover, writes.pop()));
        while watcher.statistics().unwrap().sessions > 4 {
            std::thread::yield_now();
        }
        faults.release();
        let written: Vec<_> = writes.into_iter().map(Pending::wait).collect();
        if written.iter().any(|write| write.result.as_ref().ok() != Some(&mesh.len(0))) {
            // They were not moved together: one of them met the fault itself.
            continue;
        }
        let mut found = vec![0; 8 * 4200];
        let count = members[0].file.read_at(&mut found, 0).unwrap();
        for (index, write) in written.iter().enumerate() {
            let what = format!("member {index} of group {group}");
            assert_same(&mesh.take(&found[..count], 0, index), &write.buffer, &what);
        }
        met += 1;
        if met == 5 {
            return;
        }
    }
    assert!(met > 0, "no group was moved together");
}
