"""The backlog of a list: its addresses until their mail host, and layer 4, have room for them."""

from collections import deque
from collections.abc import Callable, Iterable

import trio

from ..smtp.egress.choice import EgressChoice
from ..smtp.host.host import Host
from ..smtp.probe import Probe
from .engine import Engine
from .pipeline import DomainSnapshot, StreamDomains, StreamOptions, Verification, is_paused

KNOWN_S = 60.0  # after this time in the backlog, a host's addresses are looked up again

NewProbe = Callable[[Verification, int], Probe]  # with how many of its backlog follow


class Backlog:
    """Verifications by the host that they wait for: the first of theirs that can be asked now.

    Probes that it submits may be settled at once; the caller runs the turn.
    """

    def __init__(
        self, engine: Engine, options: StreamOptions, domains: StreamDomains, new_probe: NewProbe
    ) -> None:
        relief = engine.probing.relief
        self.held = 0  # verifications in it
        self._choice = None if relief is None else relief.choice
        self._probing = engine.probing
        self._pauses = engine.pauses
        self._options = options
        self._domains = domains
        self._new_probe = new_probe
        self._now = trio.lowlevel.current_clock().current_time
        self._by_pool: dict[Host, deque[Verification]] = {}
        self._due: dict[Host, None] = {}  # pools that it has grown for since the last release
        self._waits_for_place = False  # a host had room, and there was no place

    @property
    def is_empty(self) -> bool:
        return not self._by_pool

    def clear(self) -> None:
        self._by_pool.clear()

    def add(self, verification: Verification, snapshot: DomainSnapshot, now: float) -> None:
        """Let it wait for its first exchange that can be probed now."""
        pools, exchanges = snapshot.pools, snapshot.exchanges
        pool = pools[0]
        if pool is None or (pool.rest.worth_waiting_for(now)):
            first = next(
                (
                    n
                    for n, each in enumerate(pools)
                    if each and not each.rest.worth_waiting_for(now)
                ),
                0,
            )
            pool = pools[first]
            # Exchanges that can't be reached just now are tried last.
            exchanges = [*exchanges[first:], *exchanges[:first]]
        verification.exchanges = exchanges
        if pool is None:  # its addresses are unknown or not allowed: answered without a probe
            self._probing.submit(self._new_probe(verification, 0))
            return
        if verification.deferred_since is None:
            verification.deferred_since = now
        self._by_pool.setdefault(pool, deque()).append(verification)
        self.held += 1
        self._due[pool] = None

    def _add_again(self, verifications: Iterable[Verification]) -> None:
        """Let them wait for the host, and the egress, that can be probed now."""
        now, snapshots = self._now(), dict[str, DomainSnapshot]()
        for verification in verifications:
            assert verification.route is not None
            domain = verification.route.domain
            if domain not in snapshots:
                snapshots[domain] = self._domains.snapshot(verification.route)
            self.add(verification, snapshots[domain], now)
        self.release_due()

    # -- releasing ----

    def release_due(self) -> None:
        """Submit what is due since the last call, host by host, so that it shares writes."""
        while self._due:
            self._release(self._due.popitem()[0])

    def on_capacity(self, pool: Host | None) -> None:
        """Capacity was freed for `pool`; None: a place. Called in a turn."""
        if pool is not None:
            self._release(pool)
            return
        if not self._waits_for_place:
            return
        self._waits_for_place = False
        for other in list(self._by_pool):
            self._release(other)
            if self._waits_for_place:
                break

    def check_backoffs(self) -> None:
        """Release verifications whose host's back-off has ended; look elsewhere for the others."""
        for pool in list(self._by_pool):
            if pool.rest.worth_waiting_for(self._now()):
                waiting = self._by_pool.pop(pool, deque())
                self.held -= len(waiting)
                self._add_again(waiting)
            else:
                self._release(pool)

    def try_last_hosts(self) -> None:
        """If only hosts that failed a moment ago are left, try them once more, at once, and end.

        Waiting for them is worth its time only while there is something else to do.
        """
        now = self._now()
        if not all(pool.rest.worth_waiting_for(now) for pool in self._by_pool):
            return
        for pool in list(self._by_pool):
            pool.rest.retry_at_once(now)
            self._release(pool, at_end=True)

    def _release(self, pool: Host, *, at_end: bool = False) -> None:
        """Submit as many as the host and the places have room for."""
        waiting = self._by_pool.get(pool)
        if waiting is None or (room := self._room_at(pool, waiting, at_end=at_end)) <= 0:
            return
        withdrawn = self._release_some(pool, waiting, room, at_end=at_end)
        if not waiting:
            self._by_pool.pop(pool, None)
        if withdrawn:
            self._add_again(withdrawn)

    def _release_some(
        self, pool: Host, waiting: deque[Verification], room: int, *, at_end: bool
    ) -> list[Verification]:
        """Submit what there is room for; return those that another egress asks."""
        probing, choice, options = self._probing, self._choice, self._options
        withdrawn: list[Verification] = []
        elsewhere: dict[str, bool] = {}  # by domain: does another egress ask for it by now?
        while waiting:
            places = probing.turn.room_for(options.account, room, patient=options.patient)
            if places < room:
                self._waits_for_place = True
                room = places
            if room <= 0:
                break
            now, present, is_begun = self._now(), pool.load.present, False
            released: list[Probe] = []
            for _ in range(min(room, len(waiting))):
                verification = waiting.popleft()
                self.held -= 1
                if choice is not None:
                    domain = verification.domain
                    if domain not in elsewhere:
                        elsewhere[domain] = self._is_elsewhere(choice, pool, verification)
                    if elsewhere[domain]:
                        withdrawn.append(verification)
                        continue
                assert verification.deferred_since is not None
                waited_s = now - verification.deferred_since
                verification.began += waited_s
                probe, is_begun = self._new_probe(verification, len(waiting)), True
                if waited_s < KNOWN_S:
                    released.append(probe)
                else:
                    probing.submit(probe)  # looks the exchange up again
                    break
            probing.submit_to(pool, released)
            if not waiting or pool.load.present == present + room:
                break  # the pool is full; only probes that were settled at once leave room
            if (
                choice is not None
                and is_begun
                and choice.awaits_addresses(choice.by_name[pool.egress.name])
            ):
                break  # those that began wait before its queue
            room = self._room_at(pool, waiting, at_end=at_end)
        return withdrawn

    def _room_at(self, pool: Host, waiting: deque[Verification], *, at_end: bool) -> int:
        patience_s = self._options.patience_left_s(self._now())
        return pool.load.room(len(waiting), self._options.account, patience_s, at_end=at_end)

    def _is_elsewhere(self, choice: EgressChoice, pool: Host, verification: Verification) -> bool:
        """Does another egress than the pool's ask about the domain by now?"""
        if not choice.is_withdrawn(pool, verification.domain):
            return False
        assert verification.route is not None
        return pool not in self._domains.snapshot(verification.route).pools

    # -- pauses ----

    def remove_paused(self) -> list[Verification]:
        """Remove and return those that are paused by now."""
        taken: list[Verification] = []
        for pool, waiting in list(self._by_pool.items()):
            paused = [each for each in waiting if is_paused(each, self._pauses)]
            if not paused:
                continue
            taken += paused
            gone = set(map(id, paused))
            kept = deque(each for each in waiting if id(each) not in gone)
            self._by_pool[pool] = kept
            if not kept:
                del self._by_pool[pool]
        self.held -= len(taken)
        return taken
