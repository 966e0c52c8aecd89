"""Decides when refusals and silence cause a back-off from a domain or from the whole host.

If a host refuses recipients because of us, we first back off from that domain only. We back
off from the whole host once it treats several domains so and answers none.
"""

from collections.abc import Callable

import trio
from msgspec import Struct, field
from msgspec.structs import replace

from ...verdict import Outcome
from ..backoff import NEVER, NO_SILENCE, REFUSAL_BACKOFF_S, Silence
from ..catchall import DomainAcceptance, DomainAtHost
from ..operators import is_own_server
from ..probe import Cause
from ..replies.rules import Meaning, ReplyMeaning
from ..session.failure_causes import refusal_outcome
from ..wire import SmtpReply
from .reply_times import Lateness
from .resting import HostParts

COLD_MAX = 3  # recipients in a row refused because of us, before a back-off from the domain
COLD_DOMAINS_MAX = 3  # domains in a row backed off from, before a back-off from the host,
RECENT_SUCCESS_DOMAINS_MAX = 8  # or this many if another domain was answered there
RECENT_SUCCESS_S = 600.0  # within this long
BARREN_MAX = 2  # sessions in a row that gave a domain's recipients only 421, a close or garbage


class RefusalMemory(Struct, eq=False):
    """Refusals and silence of one host, by domain."""

    _host: HostParts
    _lateness: Lateness
    _now: Callable[[], float] = field(
        default_factory=lambda: trio.lowlevel.current_clock().current_time
    )
    _accepted: DomainAtHost | None = None  # whose recipient was accepted last
    _backed_off: set[str] = field(default_factory=set)  # domains, since a recipient was answered
    _refused: dict[str, None] = field(default_factory=dict)  # domains with a refusal since then
    _silence: Silence = NO_SILENCE  # of the host as a whole
    deferred_since: float | None = None  # it has only deferred recipients since then
    _succeeded: bool = False  # a recipient was answered since the latest check,
    _succeeded_at: float = NEVER  # which was then

    def recipient_read(
        self, domain: DomainAcceptance, reply: SmtpReply, reading: ReplyMeaning, address: str
    ) -> None:
        """Record whether a recipient was refused because of us, or answered, at this IP address.

        A domain may keep a blocklist of its own, so refusals count by domain first.
        """
        if reading.about_us or domain.at.is_troubled:
            domain.at.recipient_read(about_us=reading.about_us)
        if self._silence.sessions:
            self._silence = NO_SILENCE
        self._lateness.recipient_read(accepted=reply.code < 300)
        if reply.code < 300:
            if domain.at is not self._accepted:
                self._accepted = domain.at
                self._accepts_for(domain.at.name)
        elif reply.code >= 500 and reading.meaning is Meaning.NO_MAILBOX:
            self._host.identity.recognise(" ".join(reply.lines), refuses=True)
        if reply.code < 400 or reply.code >= 500:
            self.deferred_since = None
        elif self.deferred_since is None:
            self.deferred_since = self._now()
        if not reading.about_us:
            self._succeeded = True
            if self._backed_off or self._refused:
                self._backed_off.clear()
                self._refused.clear()
            rest = self._host.rest
            if rest.backoff.failures or rest.names_until != NEVER:
                rest.end()
            return
        self._refused[domain.name] = None
        spread = len(self._refused) >= COLD_MAX * COLD_DOMAINS_MAX
        if domain.at.cold < COLD_MAX and not spread:
            return
        domain.at.forget_cold()
        words = f"{reply.code} {reply.text[:80]}"
        cause = Cause(refusal_outcome(reply, reading), reading.rule, words, about_us=True)
        if spread:  # few refusals at each of many domains: it is the host
            self._backed_off.update(self._refused)
            self._refused.clear()
        self._back_off_domain(domain, cause, address)

    def _accepts_for(self, domain: str) -> None:
        """A recipient of this domain is accepted: the host is shared if it is not the domain's."""
        known, names = self._host.tolerance.known, self._host.identity.names
        if not (known.is_shared or any(is_own_server(name, domain) for name in names)):
            known.share_host()

    def session_barren(self, cause: Cause, domain: DomainAcceptance, address: str) -> None:
        """A session ended at a recipient of this domain without an answer to any recipient."""
        now = self._now()
        if self._succeeded:
            self._succeeded, self._succeeded_at = False, now
        domain.at.note_session(now)
        if cause.outcome is not Outcome.TIMED_OUT:
            if domain.at.count_unanswered(BARREN_MAX):
                self._back_off_domain(domain, cause, address)
            else:
                self._judge_refusals(domain, cause, address)
            return
        domain.at.note_silence(now)
        self._silence = self._silence.after_session(now)
        if domain.at.silence.lasting(now) and now - domain.at.answered_at >= RECENT_SUCCESS_S:
            self._back_off_domain(domain, cause, address)
        if self._silence.lasting(now) and now - self._succeeded_at >= RECENT_SUCCESS_S:
            self._judge_refusals(domain, cause, address)

    def _back_off_domain(self, domain: DomainAcceptance, cause: Cause, address: str) -> None:
        """Back off from this domain at this host."""
        domain.at.back_off(cause, self._now() + REFUSAL_BACKOFF_S)
        self._judge_refusals(domain, cause, address)

    def _judge_refusals(self, domain: DomainAcceptance, cause: Cause, address: str) -> None:
        """Back off from the whole host once it refuses several domains and answers none.

        The owner of a domain decides what the host replies for its recipients, so one or
        two domains never decide for the others.
        """
        now = self._now()
        self._backed_off.add(domain.name)
        if self._succeeded:
            self._succeeded, self._succeeded_at = False, now
        recently = now - self._succeeded_at < RECENT_SUCCESS_S
        if len(self._backed_off) >= (RECENT_SUCCESS_DOMAINS_MAX if recently else COLD_DOMAINS_MAX):
            self._backed_off.clear()
            cause = replace(cause, about_us=True)
            self._host.rest.record_failure(cause, [address], at_once=True)
