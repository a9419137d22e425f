"""Why some requirements have no test: a table from reason to ids."""
from __future__ import annotations

from typing import Dict

_IDS_BY_REASON = {
    "a client's duty": """
        WIRE-19 WIRE-48 WIRE-43 WIRE-8 WIRE-10 SESS-5 SESS-81 SESS-21 SESS-90 SESS-41 SESS-42 SESS-97 SESS-102 SESS-107
        SESS-51 SESS-52 SESS-118 SESS-55 SESS-56 BATCH-1 LIST-2 LIST-3 LIST-12 LIST-20 LIST-10 LIST-13 LIST-15 LIST-48
        VIEW-11 ERR-4 ACC-81 ACC-139 ACC-140 WIRE-32 STOR-154 LIMIT-13""",
    "leave to a receiver, or seen only with hundreds of slots": "WIRE-53 SESS-125",
    "a rule for later versions": "ERR-2",
    "leave to do otherwise: nothing can fail": "BATCH-5 STOR-55 STOR-70 ACC-79 LIST-44 STOR-146 STOR-162 STOR-163",
    "cannot be seen from outside": """
        SESS-47 SESS-109 BATCH-13 BATCH-15 LIST-14 LIST-16 LIST-11 TCP-6 TCP-7 TCP-40 TCP-10 TCP-13 TCP-32 STOR-10
        STOR-56 STOR-22 STOR-23 STOR-71 STOR-78 STOR-79 STOR-84 STOR-88 STOR-32 STOR-33 STOR-95 STOR-34 STOR-96 STOR-87
        ACC-13 ACC-18 ACC-19 ACC-78 ACC-74 ACC-37 ACC-23 STOR-161 STOR-173 LIST-40 LIST-41 LIST-46""",
    "needs a crash, or another start, of the server": """
        STOR-16 STOR-17 STOR-76 STOR-41 STOR-13 STOR-69 STOR-68 LOCK-30 LOCK-31 LOCK-32 LOCK-33 LOCK-43 LOCK-44
        LOCK-56""",
    "needs storage that fails, fills up, or is slow": """
        SESS-98 SESS-54 STOR-62 STOR-179 STOR-177 STOR-25 STOR-29 STOR-30 STOR-175 LOCK-35""",
    "needs a server that shuts down": "SESS-46 SESS-100 SESS-101 LOCK-21",
    "needs an export in memory, which no message tells from a directory": "STOR-145 STOR-178 STOR-180",
    "needs a process on the server's host that locks": """
        LIST-45 LOCK-50 LOCK-51 LOCK-52 LOCK-53 LOCK-54 LOCK-55 LOCK-57""",
    "needs many sessions, or a load that a test should not make": """
        SESS-95 SESS-96 SESS-61 SESS-104 LOCK-10 LIMIT-1 LIMIT-2 LIMIT-12 LIMIT-6 LIMIT-7 LIMIT-8 VIEW-15""",
    "needs another user, or one that is not root": "ACC-31 ACC-90 ACC-91 ACC-32 STOR-181",
    "needs a connection from another address": "ACC-17 ACC-34 ACC-35 ACC-94 ACC-133",
    "needs a race that a client cannot make": "SESS-92 TCP-24 TCP-25 TCP-26 TCP-12 TCP-27 STOR-21",
    "an operator's matter: settings, keys, metrics, log": """
        ACC-75 ACC-20 ACC-82 ACC-83 ACC-84 ACC-85 ACC-86 ACC-87 ACC-88 ACC-21 ACC-89 ACC-22 ACC-33 ACC-105 ACC-40
        ACC-41 ACC-42 ACC-97 ACC-98 ACC-43 ACC-99 ACC-50 ACC-100 ACC-51 ACC-101 ACC-102 ACC-70 ACC-103 ACC-71 ACC-104
        ACC-72 ACC-106 ACC-73 STOR-90 STOR-89 STOR-12 STOR-35 STOR-49 ACC-136 ACC-138 LIMIT-10 LIMIT-17
        LIMIT-11 LIMIT-18 LIMIT-19""",
    "needs another transport": "ACC-3 ACC-95 LIMIT-5 LIMIT-15 LIMIT-16",
    "needs a server without descriptors": "TCP-21 LIMIT-4 LIMIT-14",
}

REASONS: Dict[str, str] = {
    requirement: reason for reason, ids in _IDS_BY_REASON.items() for requirement in ids.split()}
