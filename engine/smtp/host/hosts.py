"""Finds a mail host by the addresses of an exchange or by its name.

Exchanges with the same addresses share one host. A host follows its exchange when the
addresses rotate, so what it learned about the host survives.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, ValuesView
from functools import partial

from msgspec import Struct, field

from ..host_memory import HostMemory
from .host import Host

HOSTS_MAX = 10_000  # hosts remembered; idle ones are removed first
HOSTS_SCANNED = 64  # hosts visited at most, to find one to remove
NAMES_MAX = 100_000  # exchanges whose host is remembered, whatever addresses they have now


def addresses_key(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Exchanges with the same addresses are one mail host, whatever their names."""
    return tuple(sorted(addresses))


class Hosts(Struct, eq=False):
    """All hosts of one kind, ordinary or patient. Bounded; the longest unused is removed first."""

    _memory: HostMemory
    _new_host: Callable[[tuple[str, ...], str, str], Host]  # addresses, exchange's name, its key
    _now: Callable[[], float]
    # By IP address: of both kinds, if the other's is given.
    at_address: defaultdict[str, set[Host]] = field(default_factory=partial(defaultdict, set))
    _by_addresses: OrderedDict[tuple[str, ...], Host] = field(default_factory=OrderedDict)
    _by_name: OrderedDict[str, Host] = field(default_factory=OrderedDict)
    # The addresses of each, and older ones that are still in use.
    _found_at: defaultdict[Host, set[str]] = field(default_factory=partial(defaultdict, set))

    def __len__(self) -> int:
        return len(self._by_addresses)

    def peek(self, addresses: tuple[str, ...]) -> Host | None:
        """The host of these addresses, if there is one."""
        return self._by_addresses.get(addresses_key(addresses))

    def named(self, name: str) -> Host | None:
        """The host that the exchange of this name had last."""
        return self._by_name.get(name)

    def values(self) -> ValuesView[Host]:
        return self._by_addresses.values()

    def find(self, addresses: tuple[str, ...], name: str) -> Host:
        """The host of these addresses, which the exchange of this name has at the moment."""
        key = addresses_key(addresses)
        known = self._by_name.get(name)
        host = self._by_addresses.get(key)
        if host is not None:
            self._by_addresses.move_to_end(key)
        elif known is not None and known.identity.names == {name}:
            host = self._move(known, key)  # its addresses rotate; what was learned stays
        else:
            host = self._add_host(key, name, known)
        if known is not host:
            self._name(host, name, known)
            host.identity.named(name, host.terms, host.staffing.connections)
        if len(self._by_addresses) > HOSTS_MAX:
            self._drop_one()
        return host

    def _add_host(self, key: tuple[str, ...], name: str, known: Host | None) -> Host:
        """A new host. It shares the domain records of a host of this name or of an address.

        Only domain records are shared by address: the owner of a domain chooses its
        exchanges, so back-off caused by one must not affect others at the address.
        """
        sharing = known or next(
            (next(iter(self.at_address[each])) for each in key if self.at_address.get(each)), None
        )
        host = self._by_addresses[key] = self._new_host(
            key, name, sharing.identity.key if sharing else name
        )
        if known is not None:
            host.follow(known)
        self._find_at(host, key)
        return host

    def _move(self, host: Host, key: tuple[str, ...]) -> Host:
        del self._by_addresses[host.identity.addresses]
        self._by_addresses[key] = host
        in_use = {session.address for session in host.staffing.sessions.open}
        for address in self._found_at[host] - set(key) - in_use:
            self._remove_address(host, address)
        self._find_at(host, key)
        host.identity.move_to(key)
        return host

    def _find_at(self, host: Host, addresses: Iterable[str]) -> None:
        for address in addresses:
            self._found_at[host].add(address)
            self.at_address[address].add(host)

    def _remove_address(self, host: Host, address: str) -> None:
        self._found_at[host].discard(address)
        self.at_address[address].discard(host)
        if not self.at_address[address]:
            del self.at_address[address]

    def _name(self, host: Host, name: str, known: Host | None) -> None:
        """Map the exchange name to this host."""
        if known is not None:
            known.identity.names.discard(name)
        host.identity.names.add(name)
        self._by_name[name] = host
        if len(self._by_name) > NAMES_MAX:
            oldest, its_host = self._by_name.popitem(last=False)
            its_host.identity.names.discard(oldest)
        host.rest.name_rests(self._memory.name_backoff_until(name))

    def _drop_one(self) -> None:
        """Forget the oldest host that is idle and not backing off; visits at most HOSTS_SCANNED."""
        now = self._now()
        for _ in range(HOSTS_SCANNED):
            key, host = next(iter(self._by_addresses.items()))
            busy = host.staffing.connections.now or host.load.present or host.waiting.any()
            rests = host.rest.backoff.active(now) and len(self._by_addresses) <= 2 * HOSTS_MAX
            if busy or rests:
                self._by_addresses.move_to_end(key)
                continue
            del self._by_addresses[key]
            for address in list(self._found_at[host]):
                self._remove_address(host, address)
            del self._found_at[host]
            for name in host.identity.names:
                self._by_name.pop(name, None)
            return
