"""Limits of a list."""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from mailprobe.storage.list_records import PATIENCE_S, ListBounds
from mailprobe.storage.records import Tier

UPLOAD_OCTETS_MAX = 256 * 1024 * 1024
ROWS_MAX: Mapping[Tier, int] = {
    "free": 1_000,
    "builder": 100_000,
    "scale": 1_000_000,
    "own": 1_000_000,  # of the operator too: a list is read and stored whole
}
# Of an account. The pages show a hundred; each list in work is asked for at every claim; a list
# costs its reading, and no unit if it has no address.
BOUNDS = ListBounds(active_max=10, kept_max=100, per_minute_max=20)
NAME_CHARACTERS_MAX = 200
TIER_OCTETS_MIN = 16 * 1024 * 1024  # a list of few rows may be a workbook with pictures
UPLOADS_MAX = 16  # that arrive at a time, by a process: each may hold UPLOAD_OCTETS_MAX of disk
ACCOUNT_UPLOADS_MAX = UPLOADS_MAX // 4  # of an account, those that wait or are read included
# What arrived waits for its turn to be read: it holds octets of the disk, and no place.
WAITING_UPLOADS_MAX = 64
WAITING_OCTETS_MAX = 8 * UPLOAD_OCTETS_MAX
WAITING_S_MAX = 60.0  # for a turn: proxies give an answer as long
READ_AT_ONCE_MAX = 2  # of them are read at a time, each by a process of 512 MiB at most
READ_BEGUN_MAX = 4  # with those that are paused meanwhile
ACCOUNT_READ_MAX = 2  # of these, whatever is free
MADE_AT_ONCE_MAX = 2  # workbooks for downloads, each by a process as well
MADE_BEGUN_MAX = 4
ACCOUNT_MADE_MAX = 2
ACCOUNT_DOWNLOADS_MAX = 4  # of results and of audit logs; more of an account wait for these
UPLOAD_OCTETS_MIN = 64 * 1024  # in each UPLOAD_WINDOW_S: a modem brings this
UPLOAD_WINDOW_S = 10.0
UPLOAD_S_MAX = 900
LINES_OF_A_ROW_MAX = 20  # on average, within quotes: more lines are not looked at
ROW_OCTETS_MEAN = 16 * 1024  # at most, on average: a long row of a list has one
LINES_ABOVE_MAX = 1_000  # titles and notes
CHUNKS_AT_ONCE = 400  # of a process; most wait for their key's minute


class ListLimits(Struct, frozen=True):
    """The limits that an operator may set."""

    rows_max: int | None = None  # of every tier; None: ROWS_MAX
    octets_max: int = UPLOAD_OCTETS_MAX  # of an upload
    active_max: int = BOUNDS.active_max
    upload_folder: Path | None = None  # None: the system's for temporary files
    patience_s: int = PATIENCE_S  # of a list that names none

    def rows_of(self, tier: Tier) -> int:
        return ROWS_MAX[tier] if self.rows_max is None else self.rows_max

    def lines_of(self, tier: Tier) -> int:
        return LINES_ABOVE_MAX + LINES_OF_A_ROW_MAX * self.rows_of(tier)

    def octets_of(self, tier: Tier, octets_max: int) -> int:
        """Of a list of a tier's rows, packed or unpacked; at most `octets_max`."""
        return min(octets_max, max(TIER_OCTETS_MIN, ROW_OCTETS_MEAN * self.rows_of(tier)))

    @property
    def bounds(self) -> ListBounds:
        """Lists under way are kept, too."""
        kept_max = max(BOUNDS.kept_max, self.active_max)
        return replace(BOUNDS, active_max=self.active_max, kept_max=kept_max)


LIST_LIMITS = ListLimits()
