"""The interface between a session and its mail host."""

from typing import Protocol

from ..controls import HostControls
from ..host_policy import Terms
from ..pairing import Renamings
from ..patience import HostClocks
from ..probe import Probe
from ..replies.rules import ReplyMeaning, Step
from ..tolerance.host import Tolerance
from ..wire import SmtpReply
from .effects import Emit


class HostTimes(Protocol):
    """When a mail host replies, as far as its sessions ask; see host.reply_times."""

    usual_s: float  # from a recipient's write to its reply
    gap_s: float  # between the replies to two recipients of one write; 0: not known yet
    late_s: float  # a reply that takes longer is late
    distrusted: bool  # its replies did not match commands before: prove each verdict by itself
    slow_to_answer: bool  # one of its replies was late recently: likewise
    refused_promptly_at: float  # its latest refusal that was not late: see refused_promptly()


class SessionQueue(Protocol):
    """The probes that wait for a session; see host.queue."""

    count: int
    behind: int  # more rows that a list holds back for this host

    def any(self) -> bool: ...
    def next(self, now: float, emit: Emit) -> Probe | None: ...


class NamedHost(Protocol):
    """Whose mail host it is; see host.identity."""

    name: str


class SessionHost(Protocol):
    """What a session needs of its mail host; implemented by host.Host."""

    clocks: HostClocks
    terms: Terms
    tolerance: Tolerance
    controls: HostControls
    renamings: Renamings

    @property
    def identity(self) -> NamedHost: ...
    @property
    def waiting(self) -> SessionQueue: ...
    @property
    def times(self) -> HostTimes: ...
    @property
    def refuses_too_late(self) -> bool: ...
    def read(self, step: Step, reply: SmtpReply) -> ReplyMeaning: ...
    def window(self) -> int: ...
    def work_with_tests_s(self) -> float: ...
    def is_needed_elsewhere(self, address: str) -> bool: ...
