"""A lab in a process that is forked with all modules loaded: see warm_process."""

import sys
from contextlib import AbstractContextManager

from mailprobe.bench import lab
from tests.warm_process import WarmProcess


def start_lab(scenario: str = "default", seed: int = 0) -> AbstractContextManager[lab.Lab]:
    """See `mailprobe.bench.lab.start_lab`."""
    return lab.start_lab(scenario, seed, start=WarmProcess, program=[__name__])


def main(words: list[str]) -> None:
    from mailprobe.bench.lab.run import run

    sys.exit(run(words[0], int(words[1]), until_eof=True))
