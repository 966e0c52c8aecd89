"""Mail hosts that are all alike, and as far away as one wishes: what `tune` measures against.

`python -m bench.exchanges HOSTS DELAY_MS` plays them as a lab.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.lab import Lab, start_process


class Exchanges(Protocol):
    """Running mail hosts, each with a domain of its own, and a resolver that knows them."""

    @property
    def env(self) -> Mapping[str, str]:
        """The settings that reach them."""

    def mailbox(self, number: int) -> str:
        """A mailbox that exists and that no other number has; the n-th host's, then round again."""

    def cpu_s(self) -> float:
        """The processor time that they have used."""


@dataclass(frozen=True, slots=True)
class LabExchanges:
    lab: Lab
    hosts: int

    @property
    def env(self) -> Mapping[str, str]:
        return self.lab.env

    def mailbox(self, number: int) -> str:
        return f"known.{number}@{domain(number % self.hosts)}"

    def cpu_s(self) -> float:
        stat = Path(f"/proc/{self.lab.process.pid}/stat").read_text("ascii")
        fields = stat.rpartition(")")[2].split()  # proc(5)
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def start_exchanges(hosts: int, delay_ms: float) -> Iterator[Exchanges]:
    """So many hosts whose replies take so long, as long as the block lasts."""
    with start_process("bench.exchanges", str(hosts), str(delay_ms)) as lab:
        yield LabExchanges(lab, hosts)


def domain(number: int) -> str:
    return f"d{number}.test"


def main(hosts: int, delay_ms: float) -> int:
    from bench.lab.run import play
    from bench.lab.scenarios import Scenario
    from engine.testing.personalities import new_host

    scenario = Scenario()
    for number in range(hosts):
        name = domain(number)
        latency_s = delay_ms / 1000
        scenario.move_in(name, new_host("postfix", f"mx1.{name}", latency_s=latency_s))
    return play(scenario, 0, until_eof=True)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2])))
