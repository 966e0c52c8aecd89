"""The interface between a session and its mail host."""

from typing import Protocol

from ..catchall import Domains
from ..controls import HostControls
from ..host_policy import Terms
from ..pairing import Renamings
from ..probe import Probe
from ..replies.rules import ReplyMeaning, Step
from ..tolerance.budget import RefusalBudget
from ..tolerance.host import Tolerance
from ..wire import SmtpReply
from .effects import Emit


class HostTimes(Protocol):
    """When a mail host replies, as far as its sessions ask; see host.reply_times."""

    usual_s: float  # from a recipient's write to its reply
    late_s: float  # a reply that takes longer is late
    distrusted: bool  # its replies did not match commands before: prove each verdict by itself
    slow_to_answer: bool  # one of its replies was late recently: likewise
    refused_promptly_at: float  # its latest refusal that was not late: see refused_promptly()


class SessionQueue(Protocol):
    """The probes that wait for a session; see host.queue."""

    count: int

    def any(self) -> bool: ...
    def next(self, now: float, emit: Emit) -> Probe | None: ...


class SessionHost(Protocol):
    """What a session needs of its mail host; implemented by host.Host."""

    name: str
    patient: bool  # it may be slow for all: nothing is sent elsewhere meanwhile
    read_s: float  # of each reply, at most
    clocks_s: tuple[float, float]  # of an address in all; of a patient one
    terms: Terms
    tolerance: Tolerance
    controls: HostControls
    domains: Domains
    renamings: Renamings
    behind: int  # more rows that a list holds back for this host

    @property
    def budget(self) -> RefusalBudget: ...
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
