"""Why some requirements have no test: a table from reason to ids."""
from __future__ import annotations

from typing import Dict

_IDS_BY_REASON = {
    "a client's duty": """
        WIRE-19 WIRE-48 WIRE-43 WIRE-8 WIRE-10 WIRE-28 SESS-5 SESS-81 SESS-21 SESS-90 SESS-41 SESS-42 SESS-97 SESS-102
        SESS-107 SESS-113 SESS-51 SESS-52 SESS-118 SESS-55 SESS-56 SESS-63 BATCH-1 LIST-2 LIST-3 LIST-12 LIST-20
        LIST-10 LIST-13 LIST-15 LIST-48 VIEW-11 ERR-4 ACC-81 ACC-139 ACC-140""",
    "leave to a receiver, or seen only with hundreds of slots": "WIRE-53 SESS-125",
    "a rule for later versions": "WIRE-35 ERR-2",
    "leave to do otherwise: nothing can fail": "BATCH-5 STOR-55 STOR-70 ACC-79",
    "cannot be seen from outside": """
        WIRE-22 SESS-23 SESS-47 SESS-103 SESS-109 BATCH-13 BATCH-15 LIST-14 LIST-16 LIST-11 TCP-6 TCP-7 TCP-40 TCP-10
        TCP-13 TCP-32 STOR-10 STOR-56 STOR-22 STOR-23 STOR-71 STOR-78 STOR-79 STOR-84 STOR-88 STOR-32 STOR-33 STOR-95
        STOR-34 STOR-96 STOR-87 ACC-13 ACC-18 ACC-19 ACC-78 ACC-74 ACC-37 ACC-23""",
    "needs a crash, or another start, of the server": "STOR-16 STOR-17 STOR-76 STOR-41 STOR-13 STOR-69 STOR-68",
    "needs storage that fails, fills up, or is slow": "SESS-98 SESS-54 LIST-6 STOR-62 STOR-25 STOR-29 STOR-30",
    "needs a server that shuts down": "SESS-46 SESS-100 SESS-101",
    "needs many sessions, or a load that a test should not make": "SESS-22 SESS-95 SESS-96 SESS-61 SESS-104",
    "needs another user, or one that is not root": "STOR-8 STOR-58 ACC-31 ACC-90 ACC-91 ACC-32",
    "needs a connection from another address": "ACC-17 ACC-34 ACC-35 ACC-94",
    "needs a race that a client cannot make": """
        SESS-92 TCP-24 TCP-25 TCP-26 TCP-12 TCP-27 TCP-19 STOR-21""",
    "an operator's matter: settings, keys, metrics, log": """
        ACC-75 ACC-20 ACC-82 ACC-83 ACC-84 ACC-85 ACC-86 ACC-87 ACC-88 ACC-21 ACC-89 ACC-22 ACC-33 ACC-105 ACC-40 ACC-41
        ACC-42 ACC-97 ACC-98 ACC-43 ACC-99 ACC-50 ACC-100 ACC-51 ACC-101 ACC-102 ACC-70 ACC-103 ACC-71 ACC-104 ACC-72
        ACC-106 ACC-73 STOR-90 STOR-89 STOR-12 STOR-35 STOR-49""",
    "needs another transport": "ACC-3 ACC-95",
    "needs a server without descriptors": "TCP-21",
}

REASONS: Dict[str, str] = {
    requirement: reason for reason, ids in _IDS_BY_REASON.items() for requirement in ids.split()}
