"""Why some requirements have no test: a table from reason to ids."""
from __future__ import annotations

from typing import Dict

_IDS_BY_REASON = {
    "a client's duty": """
        WIRE-19 WIRE-48 WIRE-43 WIRE-8 WIRE-10 SESS-5 SESS-81 SESS-21 SESS-90 SESS-41 SESS-42 SESS-97 SESS-102
        SESS-107 SESS-51 SESS-52 SESS-118 SESS-55 SESS-56 BATCH-1 LIST-2 LIST-3 LIST-12 LIST-20 LIST-48 VIEW-11 ERR-4
        ACC-81 WIRE-32 STOR-154 LIMIT-13 SESS-128
        SESS-136 SESS-137 SESS-138 SESS-139 SESS-140 SESS-141 WIRE-139 WIRE-141
        LOCK-67 LOCK-68 LOCK-69 LOCK-70 LOCK-71 LOCK-72 LOCK-73 PROV-77 PROV-78 PROV-79 PROV-80 PROV-81 PROV-93
        PROV-94""",
    "leave to a receiver, or seen only with hundreds of slots": "WIRE-53 SESS-125",
    "a rule for later versions": "ERR-2",
    "leave to do otherwise: nothing can fail": "BATCH-5 STOR-146",
    "cannot be seen from outside": "SESS-47 SESS-109 BATCH-13 TCP-32 STOR-84 STOR-173 LIST-40 LIST-46 BUF-11 BUF-42",
    "needs a crash, or another start, of the server": "STOR-16 STOR-76 STOR-41 LOCK-30 LOCK-32 LOCK-33 LOCK-43 LOCK-44 LOCK-56",
    "needs storage that fails, fills up, or is slow": "SESS-98 SESS-54 STOR-62 STOR-179 STOR-177 STOR-175 LOCK-35 BUF-43 BUF-44 BUF-45 BUF-46 BUF-36",
    "needs a server that shuts down": "SESS-46 SESS-100 SESS-101",
    "needs many sessions, or a load that a test should not make": "SESS-95 SESS-96 LOCK-10 VIEW-15",
    "needs another user, or one that is not root": "ACC-31 ACC-90 ACC-32 STOR-181",
    "needs a connection from another address": "ACC-17 ACC-133",
    "needs keys with and without a right": "ACC-171 ACC-173",
    "needs a race that a client cannot make": "SESS-92 TCP-24 TCP-25 TCP-26",
    "needs another transport": "LIMIT-15",
    "needs a server without descriptors": "LIMIT-14",
}

REASONS: Dict[str, str] = {
    requirement: reason for reason, ids in _IDS_BY_REASON.items() for requirement in ids.split()}
