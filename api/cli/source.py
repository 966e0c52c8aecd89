"""Sources of answers: the one interface through which `verify`, `clean` and `demo` verify.

One source is an engine in this process, another a service (`remote/source.py`).
"""

from array import array
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mailprobe.engine.settings import EngineSettings

from ..gc_tuning import COMMAND_COLLECT_AFTER, tune_collector
from ..results.row_result import domain_of

if TYPE_CHECKING:  # the engine imports DNS, HTTP and SMTP: import it only when it is opened
    from mailprobe.engine.smtp.tolerance.hosts import Attach
    from mailprobe.engine.stream.answers import Answer
    from mailprobe.engine.stream.engine import Engine

    from ..listfile.journal import SentList, SentRequest

ACCOUNT = "command line"
NO_BOUNCES: Mapping[str, str] = {}
DOMAIN_RUN = 20  # addresses of one domain in a row


class AnswerSource(Protocol):
    """Verifies texts and returns the answers as a stream.

    One Answer for each text, in completion order: `position` counts the texts from 0
    and `verdict.email` is the text as given. Texts are submitted in the order given,
    as capacity allows. Leaving the block cancels what is unanswered. A source that
    fails raises CommandError. `patient` gives slow hosts more time; a service ignores it.
    """

    def open_answers(
        self, texts: Sequence[str], *, explain: bool = False, patient: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterable["Answer"]]: ...


class SentRecord(Protocol):
    """What a run has sent to a service, kept so that a later run gets the same answers again."""

    @property
    def sent(self) -> "list[SentRequest | SentList]":
        """What an earlier run sent that may still have answers; who has used them takes it out."""

    def record_sent(self, sent: "SentRequest | SentList") -> None: ...


@runtime_checkable
class ResumableSource(Protocol):
    """An AnswerSource that pays for no answer twice if it may keep a record of what it sends."""

    def keep_record(self, record: SentRecord) -> None: ...


NoteWait = Callable[[datetime | None], None]


@runtime_checkable
class PatientSource(Protocol):
    """An AnswerSource of a list that comes back for what its mail hosts do not take at once."""

    def wait_up_to(self, left_s: Callable[[], float], note_wait: NoteWait) -> None:
        """`left_s` returns what is left of the list's patience, in seconds.

        `note_wait` is told when the list goes on, while all that is left of it waits inside the
        source; None once it does.
        """


OpenSource = Callable[[], AbstractAsyncContextManager[AnswerSource]]


class OwnEngine:
    """An engine in this process. A probe's deadline starts once its host has a free connection.

    With `is_request` the deadlines are those of a request to the service, from the first moment.
    Mail hosts and resolvers are shared fairly by `account`. `bounced`: see open_answers().
    """

    def __init__(
        self,
        engine: "Engine",
        *,
        account: str = ACCOUNT,
        asks_hosts: bool = True,
        bounced: Mapping[str, str] = NO_BOUNCES,
        is_request: bool = False,
    ) -> None:
        self._engine = engine
        self._is_request = is_request
        self._account = account
        self._asks_hosts = asks_hosts
        self._bounced = bounced
        self._patience_left_s: Callable[[], float] = lambda: 0.0

    def wait_up_to(self, left_s: Callable[[], float], note_wait: NoteWait) -> None:
        """See PatientSource. It does not wait by itself: what comes back says when to ask again."""
        self._patience_left_s = left_s

    def open_answers(
        self, texts: Sequence[str], *, explain: bool = False, patient: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterable["Answer"]]:
        from mailprobe.engine.stream.scheduler import open_answers

        return open_answers(
            self._engine,
            texts,
            account=self._account,
            deferred_start=not self._is_request,
            explain=explain,
            patient=patient,
            asks_hosts=self._asks_hosts,
            bounced=self._bounced,
            patience_s=self._patience_left_s(),
        )


@asynccontextmanager
async def open_own_engine(
    settings: EngineSettings,
    bounced: Mapping[str, str] = NO_BOUNCES,
    *,
    is_request: bool = False,
    known: "Attach | None" = None,
) -> AsyncIterator[AnswerSource]:
    """Open an engine for one command, which knows who `bounced`.

    Leaving the block closes its connections with QUIT. `is_request`: see OwnEngine. `known`
    gives each mail host what an earlier run knows of its name.
    """
    from mailprobe.engine.stream.engine import open_engine

    async with open_engine(settings, refusals=known) as engine:
        tune_collector(COMMAND_COLLECT_AFTER)
        yield OwnEngine(engine, bounced=bounced, is_request=is_request)


def in_request_order(addresses: Sequence[str]) -> list[str]:
    """Order the addresses so that those of a domain share connections: see `request_order`."""
    return [addresses[position] for position in request_order(addresses)]


def request_order(addresses: Sequence[str]) -> "array[int]":
    """Return the positions of the addresses in the order in which to ask about them.

    Domains alternate, with DOMAIN_RUN addresses each, so that a domain with half of the
    list does not delay the others.
    """
    domains: dict[str, int] = {}
    counts = array("I")  # addresses of each domain
    numbers, turns = array("I"), array("I")  # of each address: its domain, and its turn
    for address in addresses:
        number = domains.setdefault(domain_of(address), len(domains))
        if number == len(counts):
            counts.append(0)
        numbers.append(number)
        turns.append(counts[number] // DOMAIN_RUN)
        counts[number] += 1
    return _counting_sort(_counting_sort(range(len(addresses)), numbers), turns)


def _counting_sort(positions: Iterable[int], keys: "array[int]") -> "array[int]":
    """Sort the positions by key, stably. Uses four bytes per position."""
    starts = array("I", bytes(4 * (max(keys, default=0) + 2)))
    for key in keys:
        starts[key + 1] += 1
    for key in range(1, len(starts)):
        starts[key] += starts[key - 1]
    ordered = array("I", bytes(4 * len(keys)))
    for position in positions:
        key = keys[position]
        ordered[starts[key]] = position
        starts[key] += 1
    return ordered
