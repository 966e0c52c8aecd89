"""The suites by name. Each runs in a process of its own, so that none warms another's caches.

    python -m bench.suites NAME

prints the suite's figures as one JSON line.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module

from bench.figures import Figure

SUITES: dict[str, str] = {
    "lists": "loading the lists, and looking a domain up",
    "domain": "50 addresses of one domain whose replies take 50 ms",
    "hostile": "1,000 hostile and 1,000 healthy mail hosts at once",
    "memory": "2,000 probes under way",
    "service": "2,000 addresses through the service, which runs in a process of its own",
}


def run_suite(name: str) -> list[Figure]:
    """Run one suite here and now. KeyError for a name that is none."""
    SUITES[name]
    run: Callable[[], list[Figure]] = import_module(f"bench.suite_{name}").run
    return run()


if __name__ == "__main__":
    figures = run_suite(sys.argv[1])
    print(json.dumps({"figures": [asdict(figure) for figure in figures]}, ensure_ascii=False))
