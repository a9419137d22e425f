#!/usr/bin/env python3
"""Tests a dafs server against the specification, requirement by requirement.

It connects to the server as a client does, over tcp, and tests what a server must do: it sends good
requests, and hostile ones, and looks at what comes back. For each requirement of the protocol, but for
those of the transports over shared memory and RDMA, it prints one line:

  passed WIRE-24                      every test of the requirement passed
  failed SESS-12: expected …; came …  a test did not
  not tested ACC-32: …                the reason: a client's duty, cannot be seen from outside, …

Each test works in a directory of its own, dafs-conform-PID-N, below the root of the export, and
removes it. Tests send what a server must refuse, so its log will complain: use an export and a
server that may be tried hard. Some requirements show only with more: a key (--key), a second
export, an export that is read-only, a short lease (dafs-server --lease-ms 2000 --keep-alive-ms 500), a state file, a client
that is root or the server's own user.
"""
from __future__ import annotations

import argparse
import json
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence

from conform import (access_tests, change_tests, data_tests, lock_tests, session_tests, storage_tests,  # noqa: F401
                     tcp_tests, view_tests, wire_tests)
from conform.bench import TESTS, Bench, Failed, Skipped, Test
from conform.untested import REASONS
from dafs.session import Address, Key, ServerFault, StatusError
from dafs.tcp import ConnectionEnded, Malformed

PAGES = ("session", "tcp", "wire", "wire-session", "wire-data", "wire-lists", "wire-files", "errors", "files", "lists", "views", "batch", "locks",
         "access")
PASSED, FAILED, NOT_TESTED = "passed", "failed", "not tested"
EXAMPLES = """examples:
  dafs-server --export data=/tmp/try --listen tcp://127.0.0.1:12049 --lease-ms 2000 --keep-alive-ms 500 &
  python3 dafs_conform.py dafs+tcp://127.0.0.1/data
  python3 dafs_conform.py dafs+tcp://host:12049/data --key keys --json result.json
  python3 dafs_conform.py dafs+tcp://127.0.0.1/data --only SESS-12,TCP        one id, and all that begin so

exit status: 0 no requirement failed; 1 some failed; 2 wrong usage, or no connection"""


class Outcome(NamedTuple):
    """What a test came to."""

    result: str
    words: str = ""


def requirements(spec: Path) -> List[str]:
    """Read the ids of the pages, in their order."""
    ids: List[str] = []
    for page in PAGES:
        text = (spec / f"{page}.md").read_text(encoding="utf-8")
        ids += re.findall(r"^(?:\s*[-*] |\| )?(?:\*\*)?\[([A-Z]+-\d+)\]", text, re.MULTILINE)
    return ids


def wanted(requirement: str, only: Sequence[str]) -> bool:
    """Tell whether --only names a requirement, by its id or its prefix."""
    return not only or any(requirement == item or requirement.split("-")[0] == item for item in only)


def run_test(bench: Bench, test: Test) -> Outcome:
    """Run one test in a directory of its own."""
    bench.begin()
    try:
        test.run(bench)
        return Outcome(PASSED)
    except Skipped as reason:
        return Outcome(NOT_TESTED, str(reason))
    except Failed as failure:
        return Outcome(FAILED, f"{test.name}: {failure}")
    except Exception as error:  # whatever a server sends, the other tests are run
        frame = traceback.extract_tb(error.__traceback__)[1]
        came = f"{type(error).__name__}: {error}"
        return Outcome(FAILED, f"{test.name}: expected “{frame.line}” to succeed; came {came}")
    finally:
        bench.finish()


def judge(requirement: str, outcomes: List[Outcome]) -> Outcome:
    """Sum up the outcomes of the tests of a requirement."""
    for result in (FAILED, PASSED, NOT_TESTED):
        for outcome in outcomes:
            if outcome.result == result:
                return outcome if result != PASSED else Outcome(PASSED)
    return Outcome(NOT_TESTED, REASONS.get(requirement, "no test yet"))


def run(bench: Bench, ids: List[str]) -> Dict[str, Outcome]:
    """Run the tests of some requirements and judge each."""
    outcomes: Dict[str, List[Outcome]] = {requirement: [] for requirement in ids}
    chosen = [test for test in TESTS if set(test.ids) & set(ids)]
    for place, test in enumerate(chosen, 1):
        _progress(f"{place}/{len(chosen)} {test.name}")
        outcome = run_test(bench, test)
        for requirement in set(test.ids) & set(ids):
            outcomes[requirement].append(outcome)
    _progress("")
    return {requirement: judge(requirement, outcomes[requirement]) for requirement in ids}


def _progress(words: str) -> None:
    """Show on a terminal what is being done."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{words[:100]}")
        sys.stderr.flush()


def report(results: Dict[str, Outcome], path: Optional[Path]) -> None:
    """Print a line for each requirement, and sums; write them as JSON too."""
    for requirement, outcome in results.items():
        print(f"{outcome.result} {requirement}" + (f": {outcome.words}" if outcome.words else ""))
    sums = {kind: sum(outcome.result == kind for outcome in results.values()) for kind in (PASSED, FAILED, NOT_TESTED)}
    print(", ".join(f"{count} {kind}" for kind, count in sums.items()), f"of {len(results)} requirements")
    if path:
        listed = {requirement: outcome._asdict() for requirement, outcome in results.items()}
        path.write_text(json.dumps({"requirements": listed, "sums": sums}, indent=1) + "\n", encoding="utf-8")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Take the command line apart."""
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", metavar="dafs+tcp://HOST:PORT/EXPORT", help="the server, and an export to write to")
    parser.add_argument("--key", type=Path, metavar="FILE", help="prove the first key of this key file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file too")
    parser.add_argument("--only", default="", metavar="IDS", help="test these only: ids or prefixes, with commas")
    parser.add_argument("--spec", type=Path, default=_default_spec(), metavar="DIR",
                        help="where the pages are, with vectors/ beside (default: %(default)s)")
    return parser.parse_args(arguments)


def _default_spec() -> Path:
    """Find the specification: where DAFS_SPEC says, beside the program, or above it."""
    here = Path(__file__).resolve().parent
    places = [Path(os.environ["DAFS_SPEC"])] if "DAFS_SPEC" in os.environ else []
    places += [directory / "spec" / "protocol" for directory in (here, *here.parents)]
    return next((path for path in places if (path / "wire.md").is_file()), here / "spec" / "protocol")


def main(arguments: Sequence[str]) -> int:
    """Test the server that the command line names."""
    options = parse(arguments)
    try:
        if not Address.parse(options.address).export:
            raise ValueError("the address names no export")
        ids = [item for item in requirements(options.spec) if wanted(item, list(filter(None, options.only.split(","))))]
        if not ids:
            raise ValueError(f"--only {options.only} names no requirement")
        bench = Bench(options.address, Key.from_file(options.key) if options.key else None, options.spec.parent)
        bench.begin()
        bench.finish()
        wire_tests.register_vectors(bench)
    except (ValueError, OSError, StatusError, ServerFault, ConnectionEnded, Malformed) as error:
        print(f"dafs_conform: {error}", file=sys.stderr)
        return 2
    try:
        results = run(bench, ids)
    except KeyboardInterrupt:
        print("\ninterrupted: what the tests made is removed", file=sys.stderr)
        return 2
    finally:
        bench.close()
    report(results, options.json)
    return int(any(outcome.result == FAILED for outcome in results.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
