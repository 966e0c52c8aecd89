"""What the tests of mail servers share: the names of a server, and checks of it.

A server has profiles: sets of options, each at an address of its own. The domain
PROFILE.SUFFIX is served by that profile; further domains are served by one of them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mailprobe.bench.world.zone import Zone
from mailprobe.engine.verdict import Outcome
from tests.peers import measured
from tests.peers.engine_runs import (
    REAL_CLOCKS,
    Finding,
    assert_outcome,
    open_engine_for,
    verify,
)
from tests.peers.programs.process import Program

KNOWN = [f"known{number}" for number in range(40)]  # local parts that have a mailbox
NAMED_SENDER = "check@probe.peers.test"
PEOPLE = ["ann", "ben.miller", "c.smith", "dora1984", "erik", "f-jones", "gina_lee", "hugo.h.hill"]
PLACES = (0, 4, len(PEOPLE))  # of REFUSED in a list of PEOPLE
REFUSED = "info"  # the name that the catch-all domain `some` of each server refuses
GONE = "mx.gone.test"  # an exchange at an address where nothing listens


@dataclass(frozen=True)
class Domains:
    """The domains of one server, and the addresses of its profiles."""

    suffix: str
    network: str  # the first three octets of the profiles' addresses
    profiles: tuple[str, ...]
    further: Mapping[str, str] = field(default_factory=dict)  # first label -> profile

    @property
    def addresses(self) -> dict[str, str]:
        """By profile, its address."""
        return {name: f"{self.network}.{n}" for n, name in enumerate(self.profiles, 1)}

    def domain(self, label: str) -> str:
        return f"{label}.{self.suffix}"

    def exchange(self, profile: str) -> str:
        """The host name of a profile; `gone` is the exchange where nothing listens."""
        return GONE if profile == "gone" else f"mx.{self.domain(profile)}"

    def emails(self, label: str, local_parts: Iterable[str]) -> list[str]:
        return [f"{local_part}@{self.domain(label)}" for local_part in local_parts]

    def zone(self) -> Zone:
        zone = Zone()
        for name, address in self.addresses.items():
            zone.host(self.exchange(name), address)
            zone.mx(self.domain(name), self.exchange(name))
        for label, profile in self.further.items():
            zone.mx(self.domain(label), self.exchange(profile))
        zone.host(GONE, f"{self.network}.250")
        return zone


@dataclass(frozen=True)
class MailServer:
    """A mail server that runs."""

    name: str  # as dev/peers.md has it
    domains: Domains
    program: Program
    port: int
    settings: Mapping[str, object] = field(default_factory=dict)  # of the engines

    async def verify(
        self, zone: Zone, emails: Iterable[str], **settings: object
    ) -> dict[str, Finding]:
        """Verify these addresses with an engine of their own. Returns the findings by address."""
        async with open_engine_for(zone, self.port, **{**self.settings, **settings}) as engine:
            return await verify(engine, emails)

    async def check_case(
        self,
        zone: Zone,
        label: str,
        local_part: str,
        outcome: Outcome,
        *,
        case: str | None = None,
        **settings: object,
    ) -> Finding:
        """Check the outcome of one address alone, and record it as `case`. Returns the finding.

        A server that must be too slow is probed with the real clocks.
        """
        [email] = self.domains.emails(label, [local_part])
        clocks = REAL_CLOCKS if outcome is Outcome.TIMED_OUT else {}
        finding = (await self.verify(zone, [email], **clocks, **settings))[email]
        measured.record(self.name, f"{case or label}: {local_part}", finding)
        assert_outcome(finding, outcome)
        return finding

    async def check_named_sender(self, zone: Zone, local_part: str) -> None:
        """The profile `named` refuses NAMED_SENDER, and accepts the null sender."""
        outcome = Outcome.DELIVERABLE if local_part in KNOWN else Outcome.UNDELIVERABLE
        await self.check_case(
            zone, "named", local_part, outcome, case="named, then null", mail_from=NAMED_SENDER
        )

    async def check_all(self, zone: Zone, outcomes: Mapping[str, Outcome]) -> None:
        """Check the outcomes of these addresses, verified as one list."""
        findings = await self.verify(zone, outcomes)
        for email, outcome in outcomes.items():
            assert_outcome(findings[email], outcome)

    async def check_known_and_unknown(self, zone: Zone, label: str) -> None:
        """Thirty mailboxes that exist and thirty that do not, in turn: each gets its verdict."""
        known = self.domains.emails(label, KNOWN[:30])
        unknown = self.domains.emails(label, [f"nobody{number}" for number in range(30)])
        outcomes: dict[str, Outcome] = {}
        for one, other in zip(known, unknown, strict=True):
            outcomes |= {one: Outcome.DELIVERABLE, other: Outcome.UNDELIVERABLE}
        await self.check_all(zone, outcomes)

    async def check_catch_all_with_a_refusal(self, zone: Zone, place: int) -> None:
        """The domain `some` accepts every name but REFUSED, which stands at this place of the list.

        An accepted address of such a domain proves nothing.
        """
        outcomes = dict.fromkeys(self.domains.emails("some", PEOPLE), Outcome.CATCH_ALL)
        emails = list(outcomes)
        [refused] = self.domains.emails("some", [REFUSED])
        emails.insert(place, refused)
        outcomes[refused] = Outcome.UNDELIVERABLE
        await self.check_all(zone, {email: outcomes[email] for email in emails})

    async def check_ended_sessions(
        self, zone: Zone, label: str, *, unknown_first: bool = False
    ) -> None:
        """A server that ends a session after some errors: no verdict is wrong, some are unknown."""
        known = self.domains.emails(label, KNOWN[:20])
        unknown = [f"x{email}" for email in known]
        emails = [*unknown, *known] if unknown_first else [*known, *unknown]
        findings = await self.verify(zone, emails)
        for email in known:
            assert findings[email].verdict.status in ("deliverable", "unknown"), findings[email]
        for email in unknown:
            assert findings[email].verdict.status in ("undeliverable", "unknown"), findings[email]

    async def check_slow_greeting(self, zone: Zone, label: str) -> None:
        """Its greeting takes longer than the real clocks allow."""
        [email] = self.domains.emails(label, ["known1"])
        finding = (await self.verify(zone, [email], **REAL_CLOCKS))[email]
        assert_outcome(finding, Outcome.TIMED_OUT)
