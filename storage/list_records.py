"""Records of lists: a list, its rows in chunks, and the claims of chunks."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from msgspec import Struct, field

from .records import Caller

# loading: its rows are being stored. running: its chunks can be claimed. paused: by the user, or
# because a limit is reached. The others have ended.
ListState = Literal["loading", "running", "paused", "done", "failed", "cancelled"]
LAST_PLACE = -1  # of the chunk that finishes a list
PATIENCE_S = 4 * 3600  # of a list, for what its mail hosts take
KEY_REVOKED = "key_revoked"  # the cause of a pause
ENDED: frozenset[ListState] = frozenset({"done", "failed", "cancelled"})


def list_context(list_id: str) -> str:
    """The context of a list's secret."""
    return f"list {list_id}"


class ListOrder(Struct, frozen=True):
    """A list to verify. The secret signs the callback."""

    id: str  # uuid
    name: str  # shown, such as the file's
    webhook: str | None
    host: str  # as in JobOrder
    secret: str | None = None
    rechecks: int = 0  # passes over what time may cure, after the first
    strict_clocks: bool = False  # these give slow hosts no more time
    asks_hosts: bool = True  # False: layer 4 is left out
    trace: str | None = None  # as in JobOrder
    patience_s: int = PATIENCE_S  # so long each chunk may wait for its mail hosts


class ListBounds(Struct, frozen=True):
    """How many lists an account may have, and how often it may send one."""

    active_max: int  # that have not ended
    kept_max: int  # in all states
    per_minute_max: int


class StoredList(Struct, frozen=True):
    """A list and its progress. `counts` has its answered addresses by status.

    The names of its columns are not here: they may be long, and progress is asked for often.
    """

    id: str
    account_id: str
    name: str
    state: ListState
    cause: str | None  # the code of the error that paused or failed it
    rows: int
    addresses: int  # different ones
    answered: int
    counts: Mapping[str, int]
    created_at: datetime
    ended_at: datetime | None
    webhook: str | None
    host: str
    rechecks: int = 0  # passes that are left
    recheck_at: datetime | None = None  # when the next pass begins, or has begun
    is_test: bool = False  # made by a test key
    strict_clocks: bool = False  # later passes give slow hosts no more time
    waits_until: datetime | None = None  # a limit lets it wait, or has
    waits_for: str | None = None  # the code of that limit's error
    blank_rows: int | None = None  # without an address; None: an earlier version has read it
    ran_at: datetime | None = None  # when it was started or resumed last
    ran_from: int = 0  # how many addresses were answered then
    asks_hosts: bool = True  # False: layer 4 is left out
    trace: str | None = None
    patience_s: int = PATIENCE_S  # of each chunk, from when it first had to wait
    reading: str | None = None  # as in LoadedList; None: an earlier version has read it
    mails: bool = False  # the account gets a mail when it is done

    def matches(self, text: str) -> bool:
        """Whether the text is in its name, in whichever case, or its id begins with it."""
        wanted = text.strip().casefold()
        return wanted in self.name.casefold() or self.id.startswith(wanted)


class HostWait(Struct, frozen=True):
    """Addresses that wait for one mail host.

    `reason` is that of the answers that they would have got; `takes` are the refusals that the
    host takes in ten minutes, 0 where it waits for something else; `until` is when the first of
    them may be asked.
    """

    host: str
    reason: str
    takes: int
    addresses: int
    until: datetime
    numbers: tuple[int, ...] = ()  # of a chunk's addresses; none in the sums of a list


class ListWaits(Struct, frozen=True):
    """What waits of a list for its mail hosts; `hosts` are those at which most wait."""

    addresses: int = 0
    hosts_count: int = 0
    first_until: datetime | None = None  # when the first host takes more
    hosts: tuple[HostWait, ...] = ()
    passing: int = 0  # once all are answered: those that are to be asked again


NO_WAITS = ListWaits()


class ListChunk(Struct, frozen=True):
    """Some rows of a list: `units` different addresses that no chunk before has.

    The chunk at LAST_PLACE has no rows: it is claimed when all addresses are answered, to
    finish the list.
    """

    place: int
    units: int
    rows: str  # lines of JSON, the format is the caller's
    results: str = ""  # lines of JSON as they were recorded
    waits_since: datetime | None = None  # it first had to wait for its mail hosts then
    waits: tuple[HostWait, ...] = ()  # of its addresses, as it was released last


class ListClaim(Struct, frozen=True):
    """A chunk that one worker holds under a lease. A later claim of it has a higher fence."""

    list: StoredList
    caller: Caller  # the key may have been revoked since
    chunk: ListChunk
    fence: int
    secret: str | None = None
    undecryptable: bool = False

    @property
    def is_last(self) -> bool:
        """Whether it is to finish the list."""
        return self.chunk.place == LAST_PLACE

    @property
    def name(self) -> str:
        return f"{self.list.id} {self.chunk.place}"


class ListShare(Struct, frozen=True):
    """Of an account at one worker: the chunks that it has claimed, and how many it may have."""

    held: int
    most: int


class ChunkPart(Struct, frozen=True):
    """Results of a claimed chunk, to be stored in the transaction that counts them.

    Those of a later pass replace others: `counts` are then differences, whose sum is 0.
    """

    list_id: str
    place: int
    fence: int
    results: str  # lines of JSON
    counts: Mapping[str, int]  # by status
    ends: bool  # the chunk is answered
    passing: int = 0  # how many more of its answers may be cured by time
    has_waited: bool = False  # for its mail hosts: with its end, none of its addresses waits
    marks: Mapping[int, str] = field(default_factory=dict)  # a character, by the address's number

    @property
    def answered(self) -> int:
        return sum(self.counts.values())


class LoadedList(Struct, frozen=True):
    """What is known of a list once its rows are stored."""

    columns: Sequence[str]
    rows: int
    addresses: int
    blank_rows: int | None = None
    reading: str | None = None  # how its cells were read; the format is the caller's
