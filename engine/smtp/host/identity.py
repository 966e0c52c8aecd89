"""Whose mail host it is, and on which software it runs, as far as known: its row of the operators."""

from msgspec import Struct, field

from ..controls import COUNTED_S, HostControls
from ..host_policy import Terms
from ..operators import OTHERS, MailOperator, MailOperators
from ..tolerance.budget import KnownLimits
from ..tolerance.limits import HOUR_S, RefusalLimits
from .connections import HostConnections


class HostIdentity(Struct, eq=False):
    """What the names and the words of one mail host tell of it, and what follows from that."""

    _rows: MailOperators
    _known: KnownLimits
    _controls: HostControls
    name: str = ""
    key: str = ""  # by which the domains at this host are remembered
    addresses: tuple[str, ...] = ()
    names: set[str] = field(default_factory=set)  # of exchanges that have these addresses
    _site: MailOperator | None = None

    def __post_init__(self) -> None:
        self._rely_on(self._known.row)  # its counterpart may have learned them

    @property
    def site_id(self) -> str | None:
        """The operator whose rules read its replies."""
        return self._site.id if self._site else None

    def move_to(self, addresses: tuple[str, ...]) -> None:
        """The exchange's addresses have changed."""
        self.addresses = addresses

    def named(self, name: str, terms: Terms, connections: HostConnections) -> None:
        """This is one of its names: apply its operator's policy."""
        site = self._rows.find(name)
        if site is None or site == self._site:
            return
        self._site = site
        if site.refusals is not None:
            self._limit(site.refusals, site.id)
        if site.one_each:
            terms.limits.declare_one_each()
        if site.connections_max is not None:
            connections.cap(site.connections_max)

    def recognise(self, text: str, *, refuses: bool = False) -> None:
        """Recognise its software by the words of its greeting or refusal, if it is still unknown."""
        if self._known.label in ("", OTHERS):
            software = self._rows.refuses_as(text) if refuses else self._rows.greets_as(text)
            if software is not None:
                self._limit(software.limits, software.id)

    def _limit(self, limits: RefusalLimits, label: str) -> None:
        self._known.set_row(limits, label)
        self._rely_on(limits)

    def _rely_on(self, limits: RefusalLimits) -> None:
        """If the row limits an hour, the host's limit is known, and it is trusted up to it."""
        if limits.hour is not None:
            self._controls.rely(limits.hour * round(COUNTED_S / HOUR_S))
