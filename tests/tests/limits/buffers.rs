//! Transfer buffers, which clients give back only when RDMA has moved what is in them.

use std::time::{Duration, Instant};

use dafs_client::{Background, Config};
use dafs_proto::transport::Access;
use dafs_proto::wire::{FileHandle, Header, Opcode, OpenFlags, Status};
use dafs_tests::cut::{Relay, Way};
use dafs_tests::harness::{Harness, On};
use dafs_tests::raw::{Raw, read_body, write_body};
use dafs_tests::suite::{bytes, wait_for};

// [LIMIT-23] [LIMIT-24] [BUF-2] Each keeps its session by what needs no data, or has a little of it move that needs no buffer.
#[test]
fn buffers_of_clients_that_serve_no_rdma_go_to_others() {
    for reads in [false, true] {
        serve_no_rdma(reads);
    }
}

fn serve_no_rdma(reads: bool) {
    const LEN: u32 = 256 << 10;
    const KEEP_ALIVE: Duration = Duration::from_millis(400);
    let harness = Harness::start_with(On::Tcp, |config| {
        [config.lease_ms, config.keep_alive_ms] = [2000, 400];
        config.buffers_size_max = 1 << 20;
    });
    let patient = Config { operation_timeout: Some(Duration::from_secs(60)), ..Config::default() };
    let bystander = harness.session_with(&patient);
    let root = bystander.mount("mem").unwrap();
    root.create("little").unwrap().write_all_at(&bytes(1, 4096), 0).unwrap();
    let mut greedy: Vec<_> = (0..2)
        .map(|_| {
            let (mut raw, _) = Raw::session(harness.address(), 8);
            while raw.credits() < 8 {
                raw.call(Header::request(Opcode::Null, FileHandle(0)), &[], &[]);
            }
            let root = raw.mount("mem");
            let little = raw.open(root, b"little", OpenFlags::READ).header.handle;
            let handle = raw.create(root, b"greedy");
            let region = raw.region(LEN as usize, Access::all());
            let segment = [region.range().key.0, region.range().offset, LEN.into()];
            for _ in 0..4 {
                let mut write = Header::request(Opcode::Write, handle);
                raw.begin(&mut write);
                raw.send(write, &write_body(0, LEN, Some(segment)), &[]);
            }
            let mut said = match reads {
                true => Header::request(Opcode::Read, little),
                false => Header::request(Opcode::Null, FileHandle(0)),
            };
            raw.begin(&mut said);
            let body = if reads { read_body(0, 16, Some([segment[0], segment[1], 16])) } else { Vec::new() };
            (raw, said, body, region)
        })
        .collect();
    let lent = || bystander.statistics().unwrap().zones.iter().map(|zone| zone.lent * zone.size).sum::<u64>();
    wait_for("all buffers are lent", || lent() > (1 << 20) - (16 << 10));
    let mut write = root.create("f").unwrap().submit_append(bytes(1, LEN as usize));
    let mut said = Instant::now();
    while !write.test() {
        // Not more often than a client does: it takes no replies.
        if said.elapsed() >= KEEP_ALIVE {
            said = Instant::now();
            for (raw, header, body, _) in &mut greedy {
                raw.send(*header, body, &[]);
                header.sequence += 1;
            }
        }
        bystander.ping().unwrap();
    }
    assert_eq!(write.wait().unwrap(), 0, "where it was appended");
    assert_eq!(bystander.statistics().unwrap().protocol_errors, 0);
}

// [LIMIT-24] What comes in a lease is less than a buffer.
#[test]
fn client_on_a_slow_line_keeps_its_buffers_while_others_wait() {
    const AT_ONCE: u64 = 8 << 10;
    const LEN: u32 = 512 << 10;
    let lease = |lease_ms, keep_alive_ms| {
        Harness::start_with(On::Tcp, |config| {
            [config.lease_ms, config.keep_alive_ms] = [lease_ms, keep_alive_ms];
            config.buffer_sizes = vec![16 << 10, 128 << 10];
            config.buffers_size_max = 512 << 10;
        })
    };
    let (harness, clock) = (lease(2000, 400), lease(100, 30));
    let (relay, watcher) = (Relay::start(harness.address(), vec![]), clock.session());
    let patient = Config { operation_timeout: Some(Duration::from_secs(60)), ..Config::default() };
    let bystander = harness.session_with(&patient);
    let waiting = bystander.mount("mem").unwrap().create("waiting").unwrap();
    let (mut slow, _) = Raw::session(&relay.address(), 8);
    let root = slow.mount("mem");
    let handle = slow.create(root, b"slow");
    let region = slow.region(LEN as usize, Access::all());
    let segment = [region.range().key.0, region.range().offset, LEN.into()];
    relay.stall_way(Way::ToServer);
    relay.let_through(Way::ToServer, AT_ONCE);
    std::thread::scope(|scope| {
        let write = scope.spawn(|| {
            let mut write = Header::request(Opcode::Write, handle);
            slow.begin(&mut write);
            slow.send(write, &write_body(0, LEN, Some(segment)), &[]);
            slow.receive()
        });
        let lent =
            || bystander.statistics().unwrap().zones.iter().map(|zone| zone.lent * zone.size).sum::<u64>();
        wait_for("all buffers are lent", || lent() > (512 << 10) - (128 << 10));
        let mut append = waiting.submit_append(bytes(1, 128 << 10));
        // Those that are silent elsewhere end, one after the other.
        while !append.test() {
            relay.let_through(Way::ToServer, AT_ONCE);
            let silent = clock.session_with(&Config { background: Background::None, ..Config::default() });
            silent.ping().unwrap();
            wait_for("it has ended", || watcher.statistics().unwrap().sessions == 1);
            drop(silent);
            bystander.ping().unwrap();
        }
        assert_eq!(append.wait().unwrap(), 0, "where it was appended");
        relay.go_on();
        let reply = write.join().unwrap().expect("its data moved all the while, and its connection goes on");
        assert_eq!(reply.header.status, Status::OK);
    });
}
