"""Runs `clean` with another bound between requests and a list, and a list that is polled often.

    python -m tests.api.cli.remote.quick_clean LONG clean ...

LONG is from how many addresses on a service gets a list.
"""

import sys
from collections.abc import Sequence

from mailprobe.api import cli
from mailprobe.api.cli.remote import list_way

POLL_S = 0.1


def main(words: Sequence[str]) -> None:
    long, *others = words
    list_way.LONG, list_way.POLL_S = int(long), POLL_S
    cli.main(others)


if __name__ == "__main__":
    main(sys.argv[1:])
