"""locks.md and limits.md: who gets a lock, who waits for whom, when a lock ends, and what it keeps out."""
from __future__ import annotations

import time
from types import SimpleNamespace as Record
from typing import Any, Callable, List, Sequence

from dafs import wire
from dafs.client import BatchOperation, File
from dafs.session import Identity, Pending
from dafs.wire import (CANCEL, EXCLUSIVE_LOCK, MANDATORY, NOTIFY_LOCK, PERSISTENT, READ, RECLAIM, REPAIR, SHARED_LOCK,
                       WAIT, WRITE, Extent)

from .bench import (Bench, Skipped, ask, expect, expect_end, expect_gone, fails, make, name_of, new_file, same, send,
                    status_of, tests)

LAST_BYTE = 2**64 - 1
NOTIFIED = WAIT | NOTIFY_LOCK
LEASE_MAX_MS = 5000


def sharers(bench: Bench, count: int = 2, flags: int = READ | WRITE) -> List[File]:
    """Open one file by so many clients."""
    _, node = bench.dir()
    new_file(node, "file", bytes(range(100))).close()
    return [bench.dir()[1].open("file", flags) for _ in range(count)]


def is_free(file: File, offset: int, length: int, kind: int = EXCLUSIVE_LOCK) -> bool:
    """Tell whether a client gets a lock, and give it back."""
    came = status_of(file.lock, offset, length, kind, owner=99)
    if came == "OK":
        file.unlock(offset, length, owner=99)
        return True
    same(came, "LOCKED", f"the lock of {length} bytes at {offset}:")
    return False


def free_bytes(file: File, count: int, kind: int = EXCLUSIVE_LOCK) -> str:
    """Draw which bytes a client could lock: a dot for each that it could."""
    return "".join("." if is_free(file, at, 1, kind) else "x" for at in range(count))


def expect_waits(pending: Pending, file: File, what: str) -> None:
    """Fail if a lock was answered before something that was asked later."""
    file.session.call("Null")
    expect(pending.reply is None, f"{what} to wait", pending.reply and name_of(pending.reply))


def finish(pending: Pending, file: File, status: str = "OK") -> None:
    """Fail unless a lock that waited ends with one status."""
    same(name_of(file.session.wait(pending)), status, "the lock that waited:")


def fails_as_locked(what: str, call: Callable[..., Any], *arguments: Any) -> None:
    """Fail unless a lock keeps a call out."""
    same(status_of(call, *arguments), "LOCKED", f"{what}:")


# Taking and giving back.

@tests("LOCK-1", "LOCK-17")
def locks_that_conflict_are_not_granted(bench: Bench) -> None:
    one, other = sharers(bench)
    one.lock(10, 10, SHARED_LOCK)
    same(free_bytes(other, 30, SHARED_LOCK), "." * 30, "what is free of a shared lock:")
    same(free_bytes(other, 30), "." * 10 + "x" * 10 + "." * 10, "what is free of an exclusive one:")
    one.lock(40, 10)
    same((is_free(other, 39, 2, SHARED_LOCK), is_free(other, 49, 1), is_free(other, 50, 0)), (False, False, True),
         "locks that overlap in part:")
    same((is_free(one, 45, 1), is_free(one, 10, 1, SHARED_LOCK)), (False, True), "another owner of the session:")
    same(is_free(other, 0, 0), False, "a lock of all:")
    one.lock(1 << 40, 5)
    same((is_free(other, (1 << 40) + 4, 1), is_free(other, (1 << 40) + 5, 0)), (False, True), "beyond the end:")


@tests("LOCK-1")
def locks_are_of_files_not_of_names(bench: Bench) -> None:
    _, node = bench.dir()
    file = new_file(node, "file", b"data")
    node.link("file", "other")
    file.lock(0, 4)
    same(is_free(node.open("other", READ | WRITE), 0, 1), False, "the file by another name:")
    same(is_free(new_file(node, "third"), 0, 1), True, "another file:")


@tests("LOCK-2")
def locks_replace_what_their_owner_held(bench: Bench) -> None:
    one, other = sharers(bench)
    one.lock(0, 10, SHARED_LOCK)
    one.lock(2, 3)
    same(free_bytes(other, 12, SHARED_LOCK), "..xxx.......", "exclusive in the middle:")
    same(free_bytes(other, 12), "xxxxxxxxxx..", "shared around it:")
    one.lock(3, 5, SHARED_LOCK)
    same(free_bytes(other, 12, SHARED_LOCK), "..x.........", "shared again:")


@tests("LOCK-3")
def locks_need_the_rights_of_their_kind(bench: Bench) -> None:
    reader, = sharers(bench, 1, READ)
    writer = bench.dir()[1].open("file", WRITE)
    fails("BAD_HANDLE", reader.lock, 0, 1)
    fails("BAD_HANDLE", writer.lock, 0, 1, SHARED_LOCK)
    reader.lock(0, 1, SHARED_LOCK)
    writer.lock(5, 1)
    looked = bench.dir()[1].lookup("file")
    for kind in (SHARED_LOCK, EXCLUSIVE_LOCK):
        fails("BAD_HANDLE", File(looked.session, looked.handle, looked.attributes).lock, 0, 1, kind)


@tests("WIRE-138")
def ranges_end_with_the_offsets(bench: Bench) -> None:
    one, other = sharers(bench)
    one.lock(LAST_BYTE - 1, 0)
    same((is_free(other, 0, 0), is_free(other, LAST_BYTE - 1, 1), is_free(other, 0, LAST_BYTE - 1)),
         (False, False, True), "around the last byte:")
    one.unlock()
    same(status_of(one.lock, LAST_BYTE, 0), "OK", "a range of nothing:")
    same(is_free(other, 0, 0), True, "all, when nothing is locked:")
    for name, kind in (("Lock", dict(kind=1)), ("Unlock", {}), ("LockTest", dict(kind=1))):
        for offset, length in ((LAST_BYTE, 1), (1, LAST_BYTE), (1 << 63, 1 << 63)):
            client, file = bench.file()
            reply = ask(client, make(name, slot=1, handle=file.handle, offset=offset, length=length, **kind))
            same(name_of(reply), "INVALID", f"{name} of {length} bytes at {offset}:")


@tests("LOCK-4", "LOCK-16")
def unlocking_gives_back_the_range_of_its_owner(bench: Bench) -> None:
    one, other = sharers(bench)
    one.lock(0, 10)
    one.lock(12, 2, owner=2)
    one.unlock(3, 4)
    same(free_bytes(other, 16), "xxx....xxx..xx..", "a lock that was cut:")
    one.unlock(0, 4)
    same(free_bytes(other, 16), ".......xxx..xx..", "a lock that became smaller:")
    one.unlock(0, 0)
    same(free_bytes(other, 16), "............xx..", "another owner's lock:")
    for offset, length in ((0, 0), (12, 2), (LAST_BYTE, 0)):
        same(status_of(one.unlock, offset, length, owner=3), "OK", "an Unlock of nothing:")
    other.unlock(12, 2, owner=2)
    same(is_free(other, 12, 2), False, "the lock of another session, whose owner has the same number:")
    looked = bench.clients[1].mount().lookup(bench.name + b"/file")
    File(looked.session, looked.handle, looked.attributes).unlock(owner=2)
    same(is_free(other, 12, 2), True, "what was given back by another handle of the session:")


@tests("LOCK-8")
def tests_tell_what_is_in_the_way(bench: Bench) -> None:
    one, other = sharers(bench)
    one.lock(10, 5, owner=77)
    one.lock(1 << 40, 0, SHARED_LOCK, owner=78)
    nothing = Record(conflicts=0, kind=0, offset=0, length=0, owner=0, client_id=bytes(16))
    client_id = one.session.identity.client_id
    for (offset, length, kind), found in {
            (0, 10, EXCLUSIVE_LOCK): nothing, (14, 1, SHARED_LOCK): (EXCLUSIVE_LOCK, 10, 5, 77),
            (0, 11, EXCLUSIVE_LOCK): (EXCLUSIVE_LOCK, 10, 5, 77), (15, 100, EXCLUSIVE_LOCK): nothing,
            (1 << 41, 1, EXCLUSIVE_LOCK): (SHARED_LOCK, 1 << 40, 0, 78), (1 << 41, 1, SHARED_LOCK): nothing}.items():
        came = other.test_lock(offset, length, kind)
        if isinstance(found, tuple):
            found = Record(conflicts=1, kind=found[0], offset=found[1], length=found[2], owner=found[3],
                           client_id=client_id)
        same(vars(came), vars(found), f"{length} bytes at {offset}, kind {kind}:")
    same(one.test_lock(10, 5, owner=77).conflicts, 0, "a lock of the owner that asks:")
    same(one.test_lock(10, 5, owner=78).owner, 77, "another owner of the session:")
    same(is_free(other, 0, 10), True, "a range that was tested:")


# Waiting.

@tests("LOCK-5", "LOCK-6", "LOCK-17")
def locks_that_wait_are_granted_in_order(bench: Bench) -> None:
    holder, writer, reader = sharers(bench, 3)
    holder.lock(0, 10, SHARED_LOCK)
    waits = writer.submit_lock(5, 10)
    expect_waits(waits, writer, "an exclusive lock")
    fails("LOCKED", reader.lock, 0, 10, SHARED_LOCK)
    same(is_free(reader, 0, 5, SHARED_LOCK), True, "a range that nobody waits for:")
    follows = reader.submit_lock(0, 10, SHARED_LOCK)
    expect_waits(follows, reader, "a shared lock behind it")
    holder.unlock()
    finish(waits, writer)
    expect_waits(follows, reader, "the shared lock")
    writer.unlock()
    finish(follows, reader)


@tests("LOCK-6")
def shared_locks_pass_shared_ones_that_wait(bench: Bench) -> None:
    holder, waiter, other = sharers(bench, 3)
    holder.lock(0, 1)
    waits = waiter.submit_lock(0, 10, SHARED_LOCK)
    expect_waits(waits, waiter, "a shared lock")
    same((is_free(other, 5, 5, SHARED_LOCK), is_free(other, 5, 5)), (True, False), "what passes it:")
    holder.unlock()
    finish(waits, waiter)


@tests("LOCK-18")
def owners_of_a_part_are_served_first(bench: Bench) -> None:
    holder, early, owner = sharers(bench, 3)
    holder.lock(10, 10)
    owner.lock(0, 10)
    first = early.submit_lock(5, 20)
    expect_waits(first, early, "the earlier lock")
    second = owner.submit_lock(5, 10)
    expect_waits(second, owner, "the lock of who holds a part")
    holder.unlock()
    finish(second, owner)
    expect_waits(first, early, "the earlier lock")
    owner.unlock()
    finish(first, early)


@tests("LOCK-7")
def circles_are_deadlocks(bench: Bench) -> None:
    files = sharers(bench, 3)
    for place, file in enumerate(files):
        file.lock(place, 1)
    waiting = []
    for place, file in enumerate(files[:-1]):
        waiting.append(file.submit_lock(place + 1, 1))
        expect_waits(waiting[-1], file, f"lock {place}")
    fails("DEADLOCK", files[-1].lock, 0, 1, flags=WAIT)
    same(is_free(files[-1], 5, 1), True, "another range:")
    fails("DEADLOCK", files[-1].lock, 0, 1, flags=NOTIFIED)
    for file, pending in reversed(list(zip(files, waiting))):
        files[files.index(file) + 1].unlock()
        finish(pending, file)
    one = files[0]
    one.unlock()
    one.lock(20, 1, owner=1)
    one.lock(21, 1, owner=2)
    pending = one.submit_lock(21, 1, owner=1)
    fails("DEADLOCK", one.lock, 20, 1, flags=WAIT, owner=2)
    one.unlock(owner=2)
    finish(pending, one)


@tests("LOCK-11")
def locks_whose_deadline_passes_are_not_granted(bench: Bench) -> None:
    holder, waiter, other = sharers(bench, 3)
    holder.lock(0, 10)
    finish(waiter.submit_lock(0, 10, deadline_ms=200), waiter, "TIMED_OUT")
    holder.unlock()
    same(is_free(other, 0, 10), True, "the range:")


@tests("WIRE-138")
def flags_that_do_not_go_together_are_invalid(bench: Bench) -> None:
    for kind, flags in ((2, NOTIFY_LOCK), (2, REPAIR | WAIT), (2, wire.LAST), (1, PERSISTENT),
                        (1, PERSISTENT | REPAIR), (2, wire.LAST | WAIT), (2, NOTIFY_LOCK | CANCEL)):
        client, file = bench.file()
        finish(file.submit_lock(0, 1, kind, flags), file, "INVALID")
    bench.others_are_served()


@tests("LOCK-25", "LOCK-28")
def turns_are_told(bench: Bench) -> None:
    holder, waiter = sharers(bench)
    holder.lock(0, 10)
    fails("WAITING", waiter.lock, 5, 10, SHARED_LOCK, NOTIFIED, owner=7)
    fails("WAITING", waiter.lock, 5, 10, SHARED_LOCK, NOTIFIED, owner=7)
    holder.unlock()
    turn = waiter.session.callback("LockTurn").body
    same((turn.handle, turn.offset, turn.length, turn.owner), (waiter.handle, 5, 10, 7), "the turn:")
    same(is_free(holder, 5, 1), False, "the range, before the client asks again:")
    for _ in range(2):
        same(status_of(waiter.lock, 5, 10, SHARED_LOCK, NOTIFIED, owner=7), "OK", "asking again:")
    waiter.unlock(owner=7)
    same(status_of(waiter.lock, 5, 10, SHARED_LOCK, NOTIFIED), "OK", "a lock that is free:")


@tests("LOCK-28")
def who_asks_again_keeps_the_place(bench: Bench) -> None:
    holder, first, second = sharers(bench, 3)
    holder.lock(0, 10)
    fails("WAITING", first.lock, 0, 10, flags=NOTIFIED)
    fails("WAITING", second.lock, 0, 10, flags=NOTIFIED)
    fails("WAITING", first.lock, 0, 10, flags=NOTIFIED)
    holder.unlock()
    first.session.callback("LockTurn")
    same(status_of(first.lock, 0, 10, flags=NOTIFIED), "OK", "the first to ask:")
    fails("WAITING", second.lock, 0, 10, flags=NOTIFIED)
    first.unlock()
    second.session.callback("LockTurn")
    same(status_of(second.lock, 0, 10, flags=NOTIFIED), "OK", "the second:")


@tests("LOCK-27")
def turns_that_are_not_taken_are_given_back(bench: Bench) -> None:
    holder, lazy, other = sharers(bench, 3)
    lease_ms = lazy.session.welcome.lease_ms
    if lease_ms > LEASE_MAX_MS:
        raise Skipped(f"a lease of {lease_ms} ms is long")
    holder.lock(0, 10)
    fails("WAITING", lazy.lock, 0, 10, flags=NOTIFIED)
    pending = other.submit_lock(0, 10)
    began = time.monotonic()
    holder.unlock()
    lazy.session.callback("LockTurn")
    while pending.reply is None and time.monotonic() - began < 3 * lease_ms / 1000:
        for file in (lazy, other):
            file.session.call("Null")
        time.sleep(0.1)
    expect(pending.reply is not None, f"the lock after {lease_ms} ms", "no reply")
    finish(pending, other)
    expect(time.monotonic() - began > lease_ms / 1000 - 0.2, f"{lease_ms} ms to ask again", time.monotonic() - began)


@tests("LOCK-26")
def cancelled_locks_do_not_wait(bench: Bench) -> None:
    holder, waiter, other = sharers(bench, 3)
    holder.lock(0, 10)
    fails("WAITING", waiter.lock, 0, 10, flags=NOTIFIED)
    for _ in range(2):
        same(status_of(waiter.lock, 0, 10, flags=NOTIFIED | CANCEL), "OK", "the end of the wait:")
    holder.unlock()
    same(is_free(other, 0, 10), True, "the range:")
    same([message.name for message in waiter.session.callbacks if message.name == "LockTurn"], [], "turns:")
    waiter.lock(0, 5)
    same(status_of(waiter.lock, 0, 5, flags=NOTIFIED | CANCEL), "OK", "a lock that is held:")
    same(is_free(other, 0, 5), False, "the lock that is held:")


@tests("LOCK-22")
def fences_do_not_wait_for_locks(bench: Bench) -> None:
    identity = Identity(client_name="dafs-conform")
    _, node = bench.dir()
    holder = new_file(node, "file")
    holder.lock()
    waiter = bench.client(identity=identity).mount().open(bench.name + b"/file", READ | WRITE)
    pending = waiter.submit_lock()
    expect_waits(pending, waiter, "the lock")
    keeper, root = bench.keeper.session, bench.root.handle
    before = keeper.call("FenceRead", root).payload
    both = Record(**{**vars(before), "clients": before.clients + [identity.client_id]})
    came = status_of(keeper.call, "FenceWrite", root, both)
    if came == "PERMISSION":
        raise Skipped("this client may not fence others")
    keeper.call("FenceWrite", root, before)
    same(came, "OK", "the fence:")


# The end of a lock.

@tests("LOCK-9")
def locks_end_with_handle_and_session(bench: Bench) -> None:
    one, other, third = sharers(bench, 3)
    again = bench.dir()[1].open("file", READ | WRITE)
    one.lock(0, 10)
    again.lock(20, 10)
    one.close()
    same(free_bytes(third, 30), "." * 20 + "x" * 10, "what is free after a Close:")
    again.session.bye()
    same(free_bytes(third, 30), "." * 30, "what is free after Bye:")
    other.lock(0, 10)
    send_slot = make("Null", slot=2**31)
    other.session.connection.send(*wire.encode(send_slot))
    expect_end(other.session.connection, "a slot that is none")
    same(status_of(third.lock, 0, 10, flags=WAIT), "OK", "after the end of a session by a fault:")


@tests("LOCK-19")
def locks_that_wait_end_with_their_handle(bench: Bench) -> None:
    holder, waiter, other = sharers(bench, 3)
    holder.lock(0, 10)
    pending = waiter.submit_lock(0, 10)
    waiter.close()
    finish(pending, waiter, "BAD_HANDLE")
    holder.unlock()
    same(is_free(other, 0, 10), True, "the range:")


@tests("LOCK-14")
def locks_of_others_are_not_reclaimed(bench: Bench) -> None:
    one, other = sharers(bench)
    one.lock(0, 10)
    fails("NO_RECLAIM", other.lock, 5, 10, flags=RECLAIM)
    one.unlock()
    fails("NO_RECLAIM", other.lock, 5, 10, flags=RECLAIM)


# Persistent locks.

def persistent(bench: Bench, count: int) -> Sequence[File]:
    """Open a file by so many clients; the first locks its first ten bytes persistently, where the server can."""
    files = sharers(bench, count)
    came = status_of(files[0].lock, 0, 10, flags=PERSISTENT)
    if came == "NOT_SUPPORTED":
        raise Skipped("the server has no state file, or the export is in memory")
    same(came, "OK", "the persistent lock:")
    return files


@tests("LOCK-45")
def persistent_locks_are_granted_or_not_supported(bench: Bench) -> None:
    one, other = sharers(bench)
    came = status_of(one.lock, 0, 10, flags=PERSISTENT)
    expect(came in ("OK", "NOT_SUPPORTED"), "OK or NOT_SUPPORTED", came)
    same(is_free(other, 0, 10), came != "OK", "whether the range is free:")
    if came == "OK":
        one.unlock()


@tests("LOCK-40", "LOCK-41", "LOCK-42")
def persistent_locks_break_and_are_repaired(bench: Bench) -> None:
    one, other, third = persistent(bench, 3)
    one.unlock(5, 5)
    pending = other.submit_lock(0, 10, flags=WAIT)
    expect_waits(pending, other, "a lock")
    one.close()
    finish(pending, other, "LOCK_BROKEN")
    fails("LOCK_BROKEN", third.lock, 4, 1, SHARED_LOCK)
    same(is_free(third, 5, 5), True, "what was given back:")
    found = third.test_lock(0, 10)
    same((found.kind, found.offset, found.length), (wire.BROKEN_LOCK, 0, 5), "the broken lock:")
    other.lock(0, 10, flags=PERSISTENT | REPAIR)
    fails("LOCKED", third.lock, 0, 1)
    other.close()
    fails("LOCK_BROKEN", third.lock, 9, 1)
    third.lock(0, 10, flags=PERSISTENT | REPAIR)
    third.unlock()
    same(is_free(third, 0, 10), True, "the range when it is repaired:")


@tests("LOCK-46")
def repairs_that_are_cancelled_break_again(bench: Bench) -> None:
    one, other, third = persistent(bench, 3)
    one.close()
    other.lock(0, 10, flags=PERSISTENT | REPAIR)
    same(status_of(other.lock, 0, 10, flags=PERSISTENT | REPAIR | CANCEL), "OK", "the end of the repair:")
    fails("LOCK_BROKEN", third.lock, 0, 1)
    third.lock(0, 10, flags=PERSISTENT | REPAIR)
    third.unlock()


@tests("LOCK-40")
def persistent_locks_are_replaced(bench: Bench) -> None:
    one, other = persistent(bench, 2)
    one.lock(0, 10)
    one.close()
    same(is_free(other, 0, 10), True, "a lock that is not persistent any more:")


# Mandatory locks.

@tests("LOCK-12", "LOCK-20")
def mandatory_locks_keep_reads_out(bench: Bench) -> None:
    holder, other = sharers(bench)
    holder.lock(10, 10, flags=MANDATORY)
    for method in (wire.INLINE, wire.DIRECT):
        fails_as_locked("a read", other.read, 0, 11, method)
        fails_as_locked("a list", other.read_list, [Extent(0, 1), Extent(19, 1)], method)
        same((other.read(0, 10, method), other.read(20, 5, method)), (bytes(range(10)), bytes(range(20, 25))),
             "what is read beside it:")
        same(holder.read(0, 30, method), bytes(range(30)), "what the holder reads:")
    client = bench.clients[-1]
    operations = [BatchOperation(other, [Extent(15, 1)]), BatchOperation(other, [Extent(5, 1)])]
    (result, _), (good, data) = client.batch(operations)
    same((wire.status_name(result.status), good.status, data), ("LOCKED", 0, b"\5"), "reads of a batch:")
    holder.lock(10, 10, SHARED_LOCK, MANDATORY)
    same(other.read(0, 30), bytes(range(30)), "a read of what is locked shared:")
    holder.lock(10, 10)
    same(other.read(0, 30), bytes(range(30)), "a read of what is locked, but not mandatorily:")


@tests("LOCK-13", "LOCK-20")
def mandatory_locks_keep_changes_out(bench: Bench) -> None:
    holder, other = sharers(bench)
    for kind in (SHARED_LOCK, EXCLUSIVE_LOCK):
        holder.lock(10, 10, kind, MANDATORY)
        for what, change in {
                "a write": lambda: other.write(19, b"x"),
                "a direct write": lambda: other.write(5, b"x" * 6, 0, wire.DIRECT),
                "a list": lambda: other.write_list([Extent(0, 1), Extent(12, 1)], b"xx"),
                "an append": lambda: other.append(b"x"), "a truncation": lambda: other.truncate(15),
                "a truncation before it": lambda: other.truncate(5), "an allocation": lambda: other.allocate(0, 11),
                "a punch": lambda: other.punch(15, 1), "a copy": lambda: other.copy_from(other, 50, 10, 5)}.items():
            fails_as_locked(what, change)
        same(other.read(0, 30) if kind == SHARED_LOCK else holder.read(0, 30), bytes(range(30)), "the data:")
    other.write(0, b"\0" * 10)
    other.write(20, b"\0" * 10)
    same(status_of(holder.write, 10, bytes(10)), "OK", "a write of the holder:")
    same(status_of(holder.append, b"x"), "OK", "an append of the holder:")
    holder.unlock()
    same(status_of(other.append, b"x"), "OK", "an append when the lock is gone:")


@tests("LOCK-20")
def mandatory_locks_do_not_keep_their_session_out(bench: Bench) -> None:
    holder, = sharers(bench, 1)
    again = File(holder.session, bench.clients[-1].mount().open(bench.name + b"/file", READ | WRITE).handle,
                 holder.attributes)
    holder.lock(flags=MANDATORY, owner=5)
    same((again.read(0, 3), status_of(again.write, 0, b"x"), status_of(again.truncate, 1)), (b"\0\1\2", "OK", "OK"),
         "another handle of the session:")


# limits.md

@tests("LIMIT-3")
def sessions_without_a_mount_end_with_their_connection(bench: Bench) -> None:
    client = bench.client()
    client.null()
    expect_gone(client)
    client = bench.client()
    client.mount()
    client.session.resume()
    same(name_of(ask(client, make("Null"))), "OK", "a session with a mount:")
