"""The commands of lists: see mailprobe.storage.commands."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from mailprobe.storage.commands import EncryptedFirst, StoreCommand
from mailprobe.storage.list_records import (
    ChunkPart,
    HostWait,
    ListBounds,
    ListChunk,
    ListClaim,
    ListOrder,
    ListShare,
    ListState,
    ListWaits,
    StoredList,
)
from mailprobe.storage.records import SERVICE, Actor, Caller, IdempotencyRecord

EncryptedListClaim = tuple[ListClaim, bytes | None]  # as EncryptedClaim


@dataclass(frozen=True, slots=True)
class CreateList(StoreCommand[StoredList]):
    """A list to store, with its secret encrypted."""

    caller: Caller
    order: ListOrder
    secret: bytes | None
    bounds: ListBounds
    holder: str | None = None  # the process that stores its rows; see lease_holders


@dataclass(frozen=True, slots=True)
class AddChunks(StoreCommand[bool]):
    list_id: str
    chunks: Sequence[ListChunk]
    octets_max: int  # of all lists of the account


@dataclass(frozen=True, slots=True)
class LoadedList:
    """What is known of a list once its rows are stored."""

    columns: Sequence[str]
    rows: int
    addresses: int
    blank_rows: int | None = None
    reading: str | None = None  # how its cells were read; the format is the caller's


@dataclass(frozen=True, slots=True)
class ChangeList(StoreCommand[StoredList | None]):
    list_id: str
    state: ListState
    before: Sequence[ListState]  # its state must be one of these
    cause: str | None = None
    loaded: LoadedList | None = None
    key_id: str | None = None  # by whose limits it goes on
    idempotency: IdempotencyRecord | None = None
    answer: Callable[[StoredList], EncryptedFirst] | None = None


@dataclass(frozen=True, slots=True)
class FindList(StoreCommand[StoredList | None]):
    list_id: str


@dataclass(frozen=True, slots=True)
class ListLists(StoreCommand[list[StoredList]]):
    account_id: str
    limit: int
    is_test: bool | None = None  # None: of both kinds


@dataclass(frozen=True, slots=True)
class ClaimChunks(StoreCommand[list[EncryptedListClaim]]):
    limit: int
    lease_s: float
    each_max: int  # of an account that is not in `shares`
    shares: Mapping[str, ListShare]  # by account
    after: str = ""  # the account whose turn was last
    holder: str | None = None  # of the claims; see lease_holders


@dataclass(frozen=True, slots=True)
class ExtendChunks(StoreCommand[list[bool | None]]):
    claims: Sequence[ListClaim]
    lease_s: float


@dataclass(frozen=True, slots=True)
class ReleaseChunk(StoreCommand[bool]):
    claim: ListClaim
    due_at: datetime
    waits: Sequence[HostWait] | None = None  # None: what waits of the chunk stays as it is


@dataclass(frozen=True, slots=True)
class ReadWaits(StoreCommand[dict[str, ListWaits]]):
    list_ids: Sequence[str]
    hosts_max: int


@dataclass(frozen=True, slots=True)
class ReadChunks(StoreCommand[list[ListChunk]]):
    list_id: str
    first: int
    limit: int


@dataclass(frozen=True, slots=True)
class ReadResults(StoreCommand[list[tuple[int, str]]]):
    list_id: str
    places: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReadPlaces(StoreCommand[list[ListChunk]]):
    list_id: str
    places: Sequence[int]


@dataclass(frozen=True, slots=True)
class FindPlaces(StoreCommand[list[int]]):
    list_id: str
    pattern: str  # of LIKE, in lower case; "!" escapes
    first: int
    limit: int  # places that are searched


@dataclass(frozen=True, slots=True)
class ReadMarks(StoreCommand[list[tuple[int, str]]]):
    list_id: str
    first: int
    limit: int


@dataclass(frozen=True, slots=True)
class KeepMarks(StoreCommand[None]):
    list_id: str
    marks: Mapping[int, Mapping[int, str]]  # by place, then by the address's number


@dataclass(frozen=True, slots=True)
class NoteWait(StoreCommand[None]):
    list_id: str
    until: datetime
    cause: str


@dataclass(frozen=True, slots=True)
class ReadColumns(StoreCommand[tuple[str, ...]]):
    list_id: str


@dataclass(frozen=True, slots=True)
class DeleteList(StoreCommand[bool]):
    list_id: str
    by: Actor = SERVICE


@dataclass(frozen=True, slots=True)
class DropUpload(StoreCommand[bool]):
    list_id: str


@dataclass(frozen=True, slots=True)
class PassStep:
    """Whether chunks are due, once it is known, and at which place to go on; None at the end."""

    is_due: bool
    next_place: int | None


@dataclass(frozen=True, slots=True)
class BeginPass(StoreCommand[PassStep | None]):
    claim: ListClaim  # of the chunk that finishes the list
    due_at: datetime
    first: int  # place


@dataclass(frozen=True, slots=True)
class RecordPart(StoreCommand[bool]):
    part: ChunkPart
