"""The scenario of one lab: a zone, mail hosts by address, and the outcome of each address."""

from collections import defaultdict
from enum import Enum
from ipaddress import IPv4Address

from msgspec import Struct, field

from mailprobe.engine.verdict import Outcome

from ..world.mail_host import MailHost
from ..world.zone import Zone

FIRST_ADDRESS = IPv4Address("127.10.0.1")


class Truth(Enum):
    """What an address is, whether or not anybody outside can find it out."""

    EXISTS = "exists"
    ABSENT = "does not exist"  # or is disabled for good
    CATCH_ALL = "catch-all domain"
    NO_MAIL = "domain without mail"


class Scenario(Struct):
    """Built once, before anything listens."""

    zone: Zone = field(default_factory=Zone)
    hosts: dict[str, MailHost] = field(default_factory=dict)  # by IP address
    addresses: dict[Outcome, list[str]] = field(default_factory=lambda: defaultdict(list))
    groups: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    truth: dict[Truth, list[str]] = field(default_factory=lambda: defaultdict(list))
    hidden: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # by reason
    kinds: dict[str, str] = field(default_factory=dict)  # of hosts by IP address, if counted by it
    doh_requests_max: int | None = None  # questions on one connection before GOAWAY
    mail_from: str = ""  # that a prober is to be configured with
    _next_address: IPv4Address = FIRST_ADDRESS

    def settle(self, exchange: str, host: MailHost) -> None:
        """Give a host an address, and the exchange's name that address."""
        address, self._next_address = str(self._next_address), self._next_address + 1
        self.hosts[address] = host
        self.zone.host(exchange, address)

    def move_in(self, domain: str, *hosts: MailHost) -> None:
        """Give a domain exchanges of its own, by preference, mx1 first."""
        exchanges = [f"mx{place}.{domain}" for place in range(1, len(hosts) + 1)]
        self.zone.mx(domain, *exchanges)
        for exchange, host in zip(exchanges, hosts, strict=True):
            self.settle(exchange, host)

    def expect(self, outcome: Outcome, *addresses: str) -> None:
        self.addresses[outcome].extend(addresses)
