"""Controls of a session: which address is sent again, to see whether its host still judges.

See mailprobe.engine.smtp.controls for what a control is, and which addresses a host has for it.
"""

from ..catchall import Acceptance, DomainAcceptance
from ..controls import Known, Treatment
from ..probe import Probe
from ..tolerance.limits import Kind
from .batch import CatchAllTest
from .host import SessionHost

_ACCEPTED, _REFUSED = Treatment.ACCEPTED, Treatment.REFUSED


class Control(CatchAllTest, eq=False, kw_only=True):
    """An address that the host treated in one way before, sent again.

    If it is not answered, nothing follows: it counts as abandoned from the start.
    """

    known: Known
    expected: Treatment
    is_postmaster: bool = False  # its acceptance is expected by RFC 5321 4.5.1 alone

    def __post_init__(self) -> None:
        self.abandoned = True

    @property
    def kind(self) -> Kind:
        return Kind.CONTROL if self.expected is _ACCEPTED else Kind.LONE_NAME


def confirming_control(
    host: SessionHost, probe: Probe, expected: Treatment, now: float
) -> Control | None:
    """One that confirms the verdict of this probe if it is answered as `expected`.

    None if no such address is known, or none may be sent.
    """
    controls = host.controls
    domain: DomainAcceptance = probe.target.domain
    known, is_postmaster = controls.known.find(expected, domain, now), False
    if known is None and expected is _ACCEPTED and controls.accepted_nobody():
        known, is_postmaster = controls.known.postmaster(domain, now), True
    if known is None and expected is _REFUSED and _may_be_named(probe, now):
        # The names that were refused went out within the hour.
        known = Known(domain.fresh_mailbox(probe.mailbox), domain, now)
    if known is None or not _may_send(host, expected, probe, now):
        return None
    return _control(host, known, expected, probe.asker, now, is_postmaster=is_postmaster)


def is_control_known(host: SessionHost, probe: Probe, expected: Treatment, now: float) -> bool:
    """Is there an address that could confirm the verdict of this probe?"""
    known = host.controls.known.find(expected, probe.target.domain, now)
    return known is not None or (expected is _REFUSED and _may_be_named(probe, now))


def _may_be_named(probe: Probe, now: float) -> bool:
    """Is its domain known to refuse random names, and does a list wait for the proof?"""
    return probe.deferred_start and probe.target.domain.known(now) is Acceptance.SOME


def _may_send(host: SessionHost, expected: Treatment, probe: Probe, now: float) -> bool:
    """One that is refused costs one of the host's refusals."""
    if expected is _ACCEPTED:
        return True
    kind = Kind.NAME if probe.has_patience else Kind.LONE_NAME
    return host.tolerance.room_for_name(kind, probe.asker, now, probe.patience_s) > 0


def proof_control(
    host: SessionHost, domain: DomainAcceptance, account: str, now: float
) -> Control | None:
    """One that shows whether the host still judges, so that it may be asked for more."""
    controls = host.controls
    proof = controls.known.find_proof(domain, now)
    if proof is None:
        return None
    known, is_postmaster = proof
    controls.known.proves(now, host.clocks.read_s)
    return _control(host, known, _ACCEPTED, account, now, is_postmaster=is_postmaster)


def _control(
    host: SessionHost,
    known: Known,
    expected: Treatment,
    account: str,
    now: float,
    *,
    is_postmaster: bool,
) -> Control:
    host.controls.known.asks(known.mailbox, now)
    return Control(
        known.domain,
        known.mailbox,
        account,
        known=known,
        expected=expected,
        is_postmaster=is_postmaster,
    )
