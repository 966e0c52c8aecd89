"""The bench suites by name. Each runs in a process of its own, so that none warms another's caches.

    python -m mailprobe.bench.harness.suites NAME

prints the suite's remarks. The last line is JSON: the figures and series, or what this
machine lacks for the suite (exit code 3).
"""

import json
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable
from importlib import import_module

from mailprobe.api.cli.runner import raise_foremost

from .figures import Figure, MissingRequirement, Result, to_json

SUITES: dict[str, str] = {
    "start": "cold starts: to the first packet, to the first word, to the end",
    "lists": "loading the lists, and looking a domain up",
    "wire": "commands written and replies paired with them, without a socket",
    "replies": "replies read by the rules",
    "fair_queue": "the fair queue with 1, 100 and 10,000 accounts",
    "dns": "layer 3 over TLS: look-ups of unknown domains, beside httpx with dnspython",
    "domain": "50 addresses of one domain whose replies take 50 ms",
    "hostile": "1,000 hostile and 1,000 healthy mail hosts at once; each kind of trouble alone",
    "truth": "addresses as on the Internet, and in awkward sequences: what is answered and what is true",
    "tolerance": "refusals that mail hosts take: the learned tolerance beside fixed ones, simulated",
    "memory": "2,000 probes under way",
    "clean": "1,000,000 rows of CSV and as many of XLSX through `clean`",
    "engine": "addresses through the engine: near, far, and as work grows",
    "library": "the library on trio, on asyncio and without either, beside the bare engine",
    "store": "grants and settlements a second, by stores, callers and rows",
    "service": "2,000 addresses through the service, which runs in a process of its own",
    "files": "lists as people have them; lists made to do harm, sent to the service beside a neighbour",
    "fair": "what a neighbour gets of what accounts share, beside the worst accounts",
    "readme": "the README's list of 300 rows through the service",
    "pages": "the pages: their script, their first paint, the table of 1,000,000 rows (needs Chromium)",
    "live": "the live socket beside the NDJSON stream",
    "fleet": "lists over one PostgreSQL: many, large, and one on three processes, hosts 50 ms away",
    "peers": "other verifiers beside ours (python -m mailprobe.bench.peers install; needs root)",
}
FOLDERS = {  # of suites that are not at the top
    **dict.fromkeys(("service", "files", "fair", "readme", "pages", "live", "fleet"), "serving"),
    "truth": "truths",
}
LACKING = 3  # exit codes of a suite's process
INTERRUPTED = 130


def run_suite(name: str) -> Result:
    """Run one suite in this process. Raises KeyError for an unknown name, and MissingRequirement."""
    try:
        found = suite_of(name)()
    except BaseExceptionGroup as group:  # of its nurseries
        raise_foremost(group)
    return found if isinstance(found, Result) else Result(found)


def suite_of(name: str) -> Callable[[], list[Figure] | Result]:
    """The function that runs a suite. Raises KeyError for an unknown name."""
    SUITES[name]
    module = f"{FOLDERS[name]}.{name}" if name in FOLDERS else name
    run: Callable[[], list[Figure] | Result] = import_module(f"mailprobe.bench.suites.{module}").run
    return run


def main(name: str) -> int:
    """A suite's process: prints the result as JSON and returns the exit code."""
    end_with_parent()
    try:
        found, code = to_json(run_suite(name)), 0
    except MissingRequirement as lacking:
        found, code = {"lacking": str(lacking)}, LACKING
    except KeyboardInterrupt:
        return INTERRUPTED
    print(json.dumps(found, ensure_ascii=False))
    return code


def end_with_parent() -> None:
    """If standard input is a pipe, interrupt this process when the pipe closes: the parent has gone.

    The suite's own processes get /dev/null instead, so that none of them reads from the pipe.
    """
    if not stat.S_ISFIFO(os.fstat(0).st_mode):
        return
    pipe = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def watch() -> None:
        while os.read(pipe, 1024):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
