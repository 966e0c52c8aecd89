"""Finds the pool of a mail host, by the addresses of an exchange or by its name.

Exchanges with the same addresses share one pool. A pool follows its exchange when the
addresses rotate, so what it learned about the host survives.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, ValuesView

from ..host_memory import HostMemory
from .pool import Pool

POOLS_MAX = 10_000  # hosts remembered; idle ones are removed first
POOLS_SCANNED = 64  # pools visited at most, to find one to remove
NAMES_MAX = 100_000  # exchanges whose host is remembered, whatever addresses they have now


def pool_key(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Exchanges with the same addresses are one mail host, whatever their names."""
    return tuple(sorted(addresses))


class Pools:
    """All pools. Bounded; the longest unused is removed first."""

    __slots__ = (
        "_by_addresses",
        "_by_name",
        "_found_at",
        "_memory",
        "_new_pool",
        "_now",
        "at_address",
    )

    def __init__(
        self,
        memory: HostMemory,
        new_pool: Callable[[tuple[str, ...], str, str], Pool],
        now: Callable[[], float],
        at_address: defaultdict[str, set[Pool]] | None = None,
    ) -> None:
        """`new_pool` makes a pool of addresses, exchange name and domain key (see `Pool.host`).

        `at_address` is that of other pools of the same hosts.
        """
        self._memory = memory
        self._new_pool = new_pool
        self._now = now
        self._by_addresses: OrderedDict[tuple[str, ...], Pool] = OrderedDict()
        self._by_name: OrderedDict[str, Pool] = OrderedDict()
        # The addresses of each, and older ones that are still in use.
        self._found_at: defaultdict[Pool, set[str]] = defaultdict(set)
        # By IP address.
        self.at_address = defaultdict(set) if at_address is None else at_address

    def __len__(self) -> int:
        return len(self._by_addresses)

    def peek(self, addresses: tuple[str, ...]) -> Pool | None:
        """The pool of these addresses, if there is one."""
        return self._by_addresses.get(pool_key(addresses))

    def named(self, name: str) -> Pool | None:
        """The pool that the exchange of this name had last."""
        return self._by_name.get(name)

    def values(self) -> ValuesView[Pool]:
        return self._by_addresses.values()

    def find(self, addresses: tuple[str, ...], name: str) -> Pool:
        """The pool of these addresses, which the exchange of this name has at the moment."""
        key = pool_key(addresses)
        known = self._by_name.get(name)
        pool = self._by_addresses.get(key)
        if pool is not None:
            self._by_addresses.move_to_end(key)
        elif known is not None and known.names == {name}:
            pool = self._move(known, key)  # its addresses rotate; what was learned stays
        else:
            pool = self._open_pool(key, name, known)
        if known is not pool:
            self._name(pool, name, known)
            pool.identity.named(name, pool.terms, pool.staffing.connections)
        if len(self._by_addresses) > POOLS_MAX:
            self._drop_one()
        return pool

    def _open_pool(self, key: tuple[str, ...], name: str, known: Pool | None) -> Pool:
        """A new pool. It shares the domain records of a pool of this name or of an address.

        Only domain records are shared by address: the owner of a domain chooses its
        exchanges, so back-off caused by one must not affect others at the address.
        """
        sharing = known or next(
            (next(iter(self.at_address[each])) for each in key if self.at_address.get(each)), None
        )
        pool = self._by_addresses[key] = self._new_pool(
            key, name, sharing.host if sharing else name
        )
        if known is not None:
            pool.follow(known)
        self._find_at(pool, key)
        return pool

    def _move(self, pool: Pool, key: tuple[str, ...]) -> Pool:
        del self._by_addresses[pool.addresses]
        self._by_addresses[key] = pool
        in_use = {session.address for session in pool.staffing.sessions.open}
        for address in self._found_at[pool] - set(key) - in_use:
            self._remove_address(pool, address)
        self._find_at(pool, key)
        pool.move_to(key)
        return pool

    def _find_at(self, pool: Pool, addresses: Iterable[str]) -> None:
        for address in addresses:
            self._found_at[pool].add(address)
            self.at_address[address].add(pool)

    def _remove_address(self, pool: Pool, address: str) -> None:
        self._found_at[pool].discard(address)
        self.at_address[address].discard(pool)
        if not self.at_address[address]:
            del self.at_address[address]

    def _name(self, pool: Pool, name: str, known: Pool | None) -> None:
        """Map the exchange name to this pool."""
        if known is not None:
            known.names.discard(name)
        pool.names.add(name)
        self._by_name[name] = pool
        if len(self._by_name) > NAMES_MAX:
            oldest, its_pool = self._by_name.popitem(last=False)
            its_pool.names.discard(oldest)
        pool.rest.name_rests(self._memory.name_backoff_until(name))

    def _drop_one(self) -> None:
        """Forget the oldest pool that is idle and not backing off; visits at most POOLS_SCANNED."""
        now = self._now()
        for _ in range(POOLS_SCANNED):
            key, pool = next(iter(self._by_addresses.items()))
            busy = pool.staffing.connections.now or pool.present or pool.waiting.any()
            rests = pool.rest.backoff.active(now) and len(self._by_addresses) <= 2 * POOLS_MAX
            if busy or rests:
                self._by_addresses.move_to_end(key)
                continue
            del self._by_addresses[key]
            for address in list(self._found_at[pool]):
                self._remove_address(pool, address)
            del self._found_at[pool]
            for name in pool.names:
                self._by_name.pop(name, None)
            return
