"""Visitors of web pages: who one is behind trusted proxies, and how many checks one may ask for.

A publishable key is public, so its units are shared among visitors by their network:

- IPv4: the address (/32). A /24 belongs to up to 256 strangers, and one address is already shared
  by a household or, behind a carrier's NAT, by thousands; a larger block would punish more of
  them and stop few, as a second address in a /24 is not easier to get than one elsewhere.
- IPv6: the /64. It is the smallest network that a host is given (RFC 6177), and the host picks any
  of its 2**64 addresses.

Who has many networks is limited by the key's own rate.
"""

import logging
from collections import OrderedDict
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import trio

log = logging.getLogger("mailprobe.forms")

Networks = Sequence[IPv4Network | IPv6Network]

CHECKS_PER_MIN = 20  # of one visitor with one key: corrections of an address, and an office's NAT
PREFLIGHTS_PER_MIN = 60  # of one visitor; a browser asks once in ten minutes, and it costs a read
VISITORS_MAX = 10_000  # remembered, at some 200 octets each; beyond, the longest idle is forgotten
HOPS_MAX = 10  # proxies in a row; a longer header is a client's invention
MINUTE_S = 60.0


def network_of(address: str) -> str:
    """The network that counts as one visitor; the text itself where it is not an address."""
    parsed = _parsed(address)
    return parsed.exploded[:19] if isinstance(parsed, IPv6Address) else str(parsed or address)


def visitor_address(peer: str, forwarded_for: str, trusted: Networks) -> str:
    """The address of a request's client.

    A proxy adds its client's address at the end of X-Forwarded-For, so the header is read from
    there, as far as trusted proxies wrote it. The rest is whatever the client likes.
    """
    address = _parsed(peer)
    if address is None:
        return peer
    for entry in reversed(forwarded_for.rsplit(",", HOPS_MAX)[-HOPS_MAX:]):
        if not any(address in network for network in trusted):
            break
        before = _parsed(entry.strip())
        if before is None:
            break
        address = before
    return str(address)


def is_in(address: str, networks: Networks) -> bool:
    parsed = _parsed(address)
    return parsed is not None and any(parsed in network for network in networks)


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    """The address of a text; None if it is none.

    An IPv4 client of a socket for both has its IPv4 address. A zone (RFC 4007), which may be any
    text, is left out.
    """
    try:
        parsed = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return mapped or parsed


class VisitorLimit:
    """Counts what each visitor asks for, in one process.

    The limit is a bucket that holds a minute's checks and fills evenly (GCRA): it remembers one
    instant for each visitor, and knows when the next check passes.
    """

    def __init__(self) -> None:
        self._full_at: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._has_warned = False

    def warn_of_proxy(self, peer: str) -> None:
        """Log, once, that a proxy seems to be in front which no setting names."""
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "visitors cannot be told apart behind a proxy: set MAILPROBE_TRUSTED_PROXIES if it"
                " is yours: peer=%s",
                peer,
            )

    def wait_s(self, of: str, address: str, per_minute: int) -> float:
        """Count a check and return 0.0, or return the seconds until one passes.

        `of` is what is limited: a key, whose visitors are counted apart from other keys'.
        """
        now, visitor = trio.current_time(), (of, network_of(address))
        each_s = MINUTE_S / per_minute
        full_at = max(now, self._full_at.get(visitor, now))
        wait_s = full_at + each_s - MINUTE_S - now
        if wait_s > 1e-6:  # sums of fractions of a second are not exact
            return wait_s
        self._full_at[visitor] = full_at + each_s
        self._full_at.move_to_end(visitor)
        if len(self._full_at) > VISITORS_MAX:
            self._full_at.popitem(last=False)
        return 0.0
