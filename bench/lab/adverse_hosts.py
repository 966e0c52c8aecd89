"""Hosts and names that fail as those of the Internet do, one group for each fault.

`bench hostile` verifies each group by itself. A local part with "known" is a mailbox, one
with "gone" is not; the group's name says which addresses it has.
"""

from random import Random
from string import ascii_lowercase

from mailprobe.engine.verdict import Outcome

from ..world.host_profiles import HOSTILE_TEXTS, TARPIT_S, new_host
from ..world.mail_host import EHLO_LINES
from ..world.zone import ZoneMode
from .scenario import Scenario

TARPIT_LATENCY_S = 0.02
GONE_SHARE = 0.15  # of the addresses at a tarpit
BATCH, LIST = 50, 400
SILENT_PLACES = ((0, 1), (0, 4), (1, 3), (2, 5))  # of those without an answer among eight
HUNG_DOMAINS, DOMAINS_BESIDE_HUNG = 300, 1_200
SHARED_HOSTS = 40
DEAD_BATCHES = 8
NEIGHBOURS = 20
TEXT_RECIPIENTS = 20  # of each host with a hostile text
HEALTHY_BESIDE_TEXT = 40
FAILING_OVER = 10
SHUT_OUT = 20  # addresses at each of the three hosts that refuse a later transaction
NO_PIPELINING = tuple(line for line in EHLO_LINES if line != "PIPELINING")


def adverse(rng: Random) -> Scenario:
    """A group of addresses for each row of `bench hostile`; see the functions below."""
    scenario = Scenario()
    _tarpits(scenario, rng)
    _hung_names(scenario)
    _hostile_texts(scenario)
    _first_exchanges(scenario)
    _later_transactions(scenario)
    return scenario


def _tarpits(scenario: Scenario, rng: Random) -> None:
    """Known recipients are answered at once, unknown ones after five seconds, all in order."""
    for group, count in (("tarpit batch", BATCH), ("tarpit list", LIST)):
        domain = f"{group.replace(' ', '-')}.test"
        scenario.move_in(domain, new_host("tarpit", f"mx1.{domain}", latency_s=TARPIT_LATENCY_S))
        gone = round(count * GONE_SHARE)
        locals_ = [f"known{n}" for n in range(count - gone)] + [f"gone{n}" for n in range(gone)]
        rng.shuffle(locals_)
        scenario.groups[group] = [f"{local}@{domain}" for local in locals_]
    for place, silent in enumerate(SILENT_PLACES):
        domain = f"some-silent{place}.test"
        scenario.move_in(
            domain,
            new_host(
                "silent for some, in step",
                f"mx1.{domain}",
                latency_s=TARPIT_LATENCY_S,
                unknown_delay_s=TARPIT_S,
            ),
        )
        names = [f"known.silent{n}" if n in silent else f"known{n}" for n in range(8)]
        scenario.groups["silent for some"] += [f"{name}@{domain}" for name in names]


def _hung_names(scenario: Scenario) -> None:
    """Domains about which the resolver never answers, and others on hosts that they share."""
    for place in range(SHARED_HOSTS):
        scenario.settle(f"mx{place}.hub.test", new_host("plain", f"mx{place}.hub.test"))

    def open_domain(domain: str, place: int) -> str:
        scenario.zone.mx(domain, f"mx{place % SHARED_HOSTS}.hub.test")
        scenario.expect(Outcome.DELIVERABLE, f"known@{domain}")
        return f"known@{domain}"

    def hang(domain: str) -> str:
        scenario.zone.mode(domain, ZoneMode.HANG)
        return f"known@{domain}"

    for version in ("h2", "h1"):  # each asked once: what is known already hangs no more
        scenario.groups[f"hung {version}"] = [
            hang(f"hung{n}-{version}.test") for n in range(HUNG_DOMAINS)
        ]
        scenario.groups[f"beside hung {version}"] = [
            open_domain(f"shop{n}-{version}.test", n) for n in range(DOMAINS_BESIDE_HUNG)
        ]
    scenario.groups["dead"] = [hang(f"dead{n}.test") for n in range(DEAD_BATCHES * BATCH)]
    scenario.groups["neighbour"] = [open_domain(f"next{n}.test", n) for n in range(NEIGHBOURS)]


def _hostile_texts(scenario: Scenario) -> None:
    """Refusals that are dear to read, none of them twice; and healthy hosts beside them."""
    for place, text in enumerate(HOSTILE_TEXTS):
        domain = f"wordy{place:02}.test"
        host = new_host("friendly", f"mx1.{domain}", default_known=text, default_unknown=text)
        scenario.move_in(domain, host)
        names = ascii_lowercase[:TEXT_RECIPIENTS]  # letters alone: a number is read as a ticket's
        scenario.groups["hostile text"] += [f"known{name}@{domain}" for name in names]
    for place in range(HEALTHY_BESIDE_TEXT):
        domain = f"terse{place:02}.test"
        scenario.move_in(domain, new_host("plain", f"mx1.{domain}", latency_s=0.02))
        scenario.groups["beside hostile text"].append(f"known@{domain}")
        scenario.expect(Outcome.DELIVERABLE, f"known@{domain}")


def _first_exchanges(scenario: Scenario) -> None:
    """Domains whose first exchange accepts and is silent, or never answers the connect."""
    for place in range(FAILING_OVER):
        domain = f"second{place}.test"
        first = new_host(("silent", "unanswered")[place % 2])
        scenario.move_in(domain, first, new_host("plain", f"mx2.{domain}"))
        scenario.groups["first exchange silent"].append(f"known@{domain}")
        scenario.expect(Outcome.DELIVERABLE, f"known@{domain}")


def _later_transactions(scenario: Scenario) -> None:
    """Hosts that take one recipient a transaction, and refuse the later transactions."""
    for place, (domain, reply) in enumerate(
        (
            ("again451.test", "451 4.7.1 Too many messages on this connection, try again later"),
            ("again421.test", "421 4.7.0 Too many messages on this connection, closing"),
            ("again452.test", "452 4.3.1 Insufficient system storage"),
        )
    ):
        host = new_host(
            "one recipient declared",
            f"mx1.{domain}",
            mail_again_reply=reply,
            mails_accepted=4,
            ehlo_lines=(*(NO_PIPELINING if place else EHLO_LINES), "LIMITS RCPTMAX=1"),
        )
        scenario.move_in(domain, host)
        addresses = [f"known{n}@{domain}" for n in range(SHUT_OUT)]
        scenario.groups["later transactions"] += addresses
        scenario.expect(Outcome.DELIVERABLE, *addresses)
