"""access.md: who gets in, who mounts what, and as whom a client acts."""
from __future__ import annotations

import os
from types import SimpleNamespace as Record

from dafs import wire
from dafs.session import Identity, StatusError
from dafs.wire import Message

from .bench import Bench, Skipped, expect, expect_end, fails, name_of, new_file, receive_reply, same, status_of, tests
from .session_tests import authenticate, hello, need_key, send_hello

ID_NONE = 2**32 - 1


def is_loopback(bench: Bench) -> bool:
    """Tell whether the server is on this host, by a loopback address."""
    host = bench.keeper.session.connection.sock.getpeername()[0]
    return host.startswith("127.") or host == "::1"


@tests("SESS-3")
def loopback_listeners_demand_no_key(bench: Bench) -> None:
    connection = send_hello(bench, key_name="")
    reply = receive_reply(connection)
    if not is_loopback(bench) or name_of(reply) == "AUTH_REQUIRED":
        raise Skipped("the listener is not on a loopback address")
    same((name_of(reply), reply.payload.key_required), ("OK", False), "the reply to a Hello without a key:")
    same(name_of(authenticate(connection)), "OK", "Authenticate without a key:")


@tests("ACC-10", "ACC-11")
def owner_of_a_loopback_connection_is_who_it_is(bench: Bench) -> None:
    client = bench.client(identity=Identity(uid=12_345, gid=12_345))
    limits = client.limits()
    if not is_loopback(bench) or limits.uid == 12_345:
        raise Skipped("the server takes this client for what it claims to be, or for the user of its key")
    same(limits.uid, os.getuid(), "the user that the session acts as:")


@tests("ACC-14")
def no_user_and_no_group_are_invalid(bench: Bench) -> None:
    for fields in (dict(uid=ID_NONE), dict(gid=ID_NONE), dict(groups=[5, ID_NONE])):
        key_name = bench.key.name if bench.key else ""
        connection = send_hello(bench, key_name=key_name, **fields)
        reply = receive_reply(connection)
        if name_of(reply) == "OK":
            reply = authenticate(connection, _proof(bench, reply, hello(bench, key_name=key_name, **fields)))
        same(name_of(reply), "INVALID", f"the refusal of {fields}:")
        expect_end(connection, f"{fields}")


def _proof(bench: Bench, reply: Message, sent: Record) -> bytes:
    """Prove the key, where there is one, over a `Hello` that was sent."""
    if not bench.key:
        return b""
    return bench.key.proof(b"client", sent.nonce + reply.payload.nonce, wire.encode_structure(wire.HELLO, sent))


@tests("ACC-15")
def resuming_needs_the_same_key(bench: Bench) -> None:
    need_key(bench)
    client, _ = bench.dir()
    resume = Record(session=client.session.welcome.session, secret=client.session.welcome.secret)
    try:
        other = bench.client(key=None, identity=client.session.identity)
    except StatusError as error:
        raise Skipped("the listener demands a key, and there is one only") from error
    other.session.connection.close()
    fails("AUTH_FAILED", other.session._connect, resume)
    client.null()


@tests("STOR-5")
def files_are_the_client_s(bench: Bench) -> None:
    client, node = bench.dir()
    limits, file = client.limits(), new_file(node, "file")
    attributes = file.getattr()
    if (attributes.uid, attributes.gid) != (limits.uid, limits.gid):
        raise Skipped(f"the export maps users: {limits.uid} acts as {attributes.uid}")
    same(node.mkdir("d").uid, limits.uid, "the owner of a directory:")
    same(node.symlink("t", "s").uid, limits.uid, "the owner of a link:")


@tests("ACC-93", "ACC-38")
def exports_that_are_none_are_not_mounted(bench: Bench) -> None:
    client = bench.client()
    for name in (b"dafs-conform-none", b"", b"\xff\xfe", b".", b"..", b"x" * 300, bench.place.export.encode() + b"/"):
        same(status_of(client.session.call, "Mount", 0, name), "NO_EXPORT", f"the mount of {name!r}:")
    listed = client.exports()
    expect(bench.place.export in listed, "the export under test among those that are listed", listed)
    for name in listed:
        same(status_of(client.session.call, "Mount", 0, name.encode()), "OK", f"the mount of {name}:")
    named = {item.name for item in client.statistics().exports}
    expect(named <= set(listed), "statistics of listed exports only", named)


@tests("ACC-38", "ACC-92")
def exports_for_keys_are_hidden(bench: Bench) -> None:
    need_key(bench)
    try:
        stranger = bench.client(key=None)
    except StatusError as error:
        raise Skipped("the listener demands a key") from error
    hidden = set(bench.client().exports()) - set(stranger.exports())
    if not hidden:
        raise Skipped("no export is for holders of this key only")
    for name in hidden:
        fails("NO_EXPORT", stranger.mount, name)


@tests("ACC-96", "ACC-134")
def fences_are_not_for_all(bench: Bench) -> None:
    client, node = bench.dir()
    fences = client.session.call("FenceRead", node.handle).payload
    came = status_of(client.session.call, "FenceWrite", node.handle, fences)
    if came == "PERMISSION":
        return
    same(came, "OK", "FenceWrite:")
    many = Record(**{**vars(fences), "clients": [bytes([number % 256, number // 256] * 8) for number in range(1025)]})
    fails("TOO_LARGE", client.session.call, "FenceWrite", node.handle, many)
    for wrong in (dict(addresses=["10.0.0.1/8"]), dict(addresses=["host"]), dict(keys=[""]), dict(keys=["k" * 257])):
        fails("INVALID", client.session.call, "FenceWrite", node.handle, Record(**{**vars(fences), **wrong}))
    same(client.session.call("FenceRead", node.handle).payload, fences, "the list after a refusal:")


@tests("ACC-172", "ACC-174")
def published_crossovers_are_exported_and_bounded(bench: Bench) -> None:
    client, _ = bench.dir()
    thresholds = client.limits().thresholds
    before = thresholds.crossovers
    came = status_of(client.session.call, "Publish", 0, before)
    if came == "PERMISSION":
        raise Skipped("this client may not publish crossovers")
    same(came, "OK", "Publish:")
    published = Record(**{**vars(before), "read_registered": 1, "write_unregistered": thresholds.write_inline_max + 1})
    try:
        client.session.call("Publish", 0, published)
        for wrong in (dict(read_registered=0), dict(read_unregistered=thresholds.read_inline_max + 2),
                      dict(write_registered=2**32 - 1)):
            fails("INVALID", client.session.call, "Publish", 0, Record(**{**vars(before), **wrong}))
        same(client.limits().thresholds.crossovers, published, "the crossovers of this session:")
        same(bench.client().limits().thresholds.crossovers, published, "the crossovers of another session:")
    finally:
        client.session.call("Publish", 0, before)


@tests("ACC-131", "ACC-132", "ACC-135")
def allow_lists_fence_all_others_off(bench: Bench) -> None:
    named = Identity(uid=os.getuid(), gid=os.getgid(), client_name="dafs-conform")
    chosen = bench.client(identity=named).mount().lookup(bench.name)
    _, other = bench.dir()
    keeper, root = bench.keeper.session, bench.root.handle
    before = keeper.call("FenceRead", root).payload
    if before.mode != "Deny":
        raise Skipped("the export has a list of whom it allows")
    only = Record(mode="Allow", clients=[named.client_id], keys=[], addresses=[])
    if status_of(keeper.call, "FenceWrite", root, only) == "PERMISSION":
        raise Skipped("this client may not fence others")
    try:
        came = [status_of(chosen.mkdir, "d"), status_of(other.mkdir, "e"), status_of(bench.root.getattr)]
        own = [status_of(keeper.call, "FenceRead", root), status_of(bench.keeper.mount)]
    finally:
        keeper.call("FenceWrite", root, before)
    same(came, ["OK", "FENCED", "FENCED"], "who is named, another, and who wrote the list:")
    same(own, ["OK", "OK"], "FenceRead and Mount of who may write the list:")
    same(status_of(other.mkdir, "e"), "OK", "another, after the fence:")


@tests("ACC-141")
def clients_are_named_to_those_who_may_fence(bench: Bench) -> None:
    client, node = bench.dir()
    fences = client.session.call("FenceRead", node.handle).payload
    may_fence = status_of(client.session.call, "FenceWrite", node.handle, fences) == "OK"
    named = {item.client_id for item in client.statistics().clients or []}
    if may_fence:
        expect(client.session.identity.client_id in named, "this client among those that have sessions", len(named))
    else:
        same(named, set(), "the clients that are named to this one:")
