"""Decides which IP addresses belong to hosts on the public Internet.

Uses the special-purpose address registries of RFC 6890, as of 2025. Not
ipaddress.is_global: it accepts NAT64, multicast, 3fff::/20 and more, and its
result changes with Python's version.
"""

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

NOT_PUBLIC_4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local, and clouds' metadata
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # IETF protocols
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and the broadcast
    )
)
PUBLIC_KEPT = 4096  # addresses: a list comes back to a host's several times within seconds
# All that IANA allocates; the rest embeds IPv4 addresses or is local.
PUBLIC_6 = IPv6Network("2000::/3")
NOT_PUBLIC_6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # IETF protocols, Teredo (which embeds IPv4)
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which embeds IPv4
        "3fff::/20",  # documentation
    )
)


@lru_cache(maxsize=PUBLIC_KEPT)
def is_public(ip: str) -> bool:
    """Whether this is the address of a host on the public Internet. False for other text."""
    try:
        address = parse_ip(ip)
    except ValueError:
        return False
    if address.version == 4:
        return not any(address in network for network in NOT_PUBLIC_4)
    return address in PUBLIC_6 and not any(address in network for network in NOT_PUBLIC_6)


def parse_ip(ip: str) -> IPv4Address | IPv6Address:
    """Parse an IPv4 or IPv6 address. Raises ValueError for other text, and for an IPv6 zone."""
    if "%" in ip:
        raise ValueError("an address with a zone")
    return ip_address(ip)


def numeric(host: str) -> IPv4Address | IPv6Address:
    """Parse the host of a URL as an address. `localhost` is 127.0.0.1; other names raise ValueError."""
    return parse_ip("127.0.0.1" if host == "localhost" else host)
