"""The recordings: what the probing core did when it was last meant to change.

    python -m tests.simulation.differential record

writes them anew. One line a world; the version changes with the worlds or the form of a line.
"""

from pathlib import Path

import msgspec

from tests.simulation.differential.record import Record
from tests.simulation.differential.worlds import BUILDERS, HOSTS, SEEDS, WAYS

PATH = Path(__file__).with_name("recordings.json")
VERSION = 2


class Recordings(msgspec.Struct, frozen=True):
    """The recordings of all worlds, by kind and seed."""

    version: int
    worlds: dict[str, Record]


def name_of(kind: str, seed: int) -> str:
    return f"{kind}/{seed}"


def recorded_seeds(kind: str) -> range:
    """The seeds whose worlds are recorded: of a sequence, one for each way to ask."""
    return range(SEEDS if kind in HOSTS else len(WAYS))


def recorded_worlds() -> list[tuple[str, int]]:
    return [(kind, seed) for kind in BUILDERS for seed in recorded_seeds(kind)]


def read_recordings() -> dict[str, Record]:
    kept = msgspec.json.decode(PATH.read_bytes(), type=Recordings)
    if kept.version != VERSION:
        raise ValueError(f"{PATH} is of version {kept.version}, not {VERSION}: record it anew")
    return kept.worlds


def write_recordings(records: dict[str, Record]) -> None:
    lines = [
        f"{msgspec.json.encode(name).decode()}: {msgspec.json.encode(record).decode()}"
        for name, record in records.items()
    ]
    worlds = ",\n".join(lines)
    PATH.write_text(f'{{"version": {VERSION}, "worlds": {{\n{worlds}\n}}}}\n', "utf-8")
