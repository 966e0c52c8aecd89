"""Connects to IP addresses, directly or through SOCKS5 proxies, for probes and callbacks.

The dialer itself refuses addresses that are not public: it checks the very address
that it then connects to, so nothing that resolves, caches or redirects can get round
the check. It does not accept names, so the system's resolver is never used.
"""

from collections.abc import Sequence
from typing import Protocol

import trio
from msgspec import Struct, field

from .public_addresses import is_public, parse_ip
from .socks5 import (
    Proxy,
    ProxyFailed,
    UnclearFailure,
    check_proxy_url,
    connect_through,
)
from .tcp import CannotConnect, EgressFailed, connect


class NotPublic(CannotConnect):
    """The address may not be connected to. Nothing was sent to it."""


class Dial(Protocol):
    """Connects to an address. Raises OSError. The caller sets the time limit."""

    async def __call__(self, address: str, port: int) -> trio.abc.Stream: ...


class ProxyBackoff(Struct, frozen=True):
    """How long a failed proxy is not used: 5 s at first, doubled each time up to 5 minutes."""

    until: float = float("-inf")
    length_s: float = 2.5

    def after_failure(self, now: float) -> "ProxyBackoff":
        length_s = min(self.length_s * 2, 300.0)
        return ProxyBackoff(now + length_s, length_s)


NO_BACKOFF = ProxyBackoff()
SILENCE_S = 0.6  # a dial that is cancelled sooner does not count against the proxy
PROXIES_TRIED_MAX = 2  # a target that two proxies fail to reach is not tried by a third
REFUTED_MAX = 3  # targets in a row that another proxy then reached; then back-off
# Targets in a row without an answer while another proxy works; some hosts are silent.
SILENT_MAX = 8


class _ProxyRecord(Struct):
    """A proxy's results. `refuted` and `silent` hold targets in a row, up to their limits."""

    backoff: ProxyBackoff = NO_BACKOFF
    worked_at: float = float("-inf")
    refuted: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    silent_since: float = float("-inf")

    def worked(self, now: float) -> None:
        """It connected, or replied clearly why it cannot connect to the target."""
        self.backoff = NO_BACKOFF
        self.worked_at = now
        self.refuted.clear()
        self.silent.clear()

    def refute(self, target: str) -> bool:
        """Another proxy reached this target. Return whether this one needs a back-off now.

        One target is enough for a proxy that has not worked since its last back-off.
        """
        self.refuted.add(target)
        return len(self.refuted) >= (REFUTED_MAX if self.backoff is NO_BACKOFF else 1)

    def note_silence(self, target: str, now: float) -> bool:
        """It sent no answer for this target. Return whether it was silent for too many."""
        if not self.silent:
            self.silent_since = now
        if len(self.silent) < SILENT_MAX:
            self.silent.add(target)
        return len(self.silent) >= SILENT_MAX

    def back_off(self, now: float) -> None:
        self.backoff = self.backoff.after_failure(now)
        self.refuted.clear()
        self.silent.clear()


class Dialer:
    """The `Dial` of real sockets: public IP addresses only, through the proxies if there are any.

    Proxies are used in turn. A proxy that itself fails (it refuses the connection, the
    user or the command, or does not speak SOCKS) gets a back-off, and the next is tried;
    the last available proxy never gets one. If a proxy reports that the target refuses
    or is unreachable, the target has failed. A failure that may be of either (a general
    failure, a close or silence after the request) counts against the proxy only when
    others succeed meanwhile.
    """

    def __init__(
        self,
        proxies: Sequence[str] = (),
        *,
        source: str | None = None,
        is_egress: bool = False,
        allow_private: bool = False,
    ) -> None:
        """`source`: the address of this machine to connect from, where there is no proxy.

        `is_egress`: another egress may be used, so a failure of the proxies is not the target's.
        """
        self._source = source
        self._is_egress = is_egress
        self._proxies = [check_proxy_url(url) for url in proxies]
        self._records = {proxy: _ProxyRecord() for proxy in self._proxies}
        self._allow_private = allow_private

    async def __call__(self, address: str, port: int) -> trio.abc.Stream:
        """Connect. Raises NotPublic before anything is sent, or CannotConnect.

        EgressFailed if it is not a fault of the address.
        """
        self._check_address(address)
        if not self._proxies:
            return await connect(address, port, self._source)
        failed: ProxyFailed | None = None
        doubted: list[Proxy] = []
        for proxy in self._by_preference():
            if len(doubted) == PROXIES_TRIED_MAX or (doubted and not self._is_available(proxy)):
                break
            try:
                stream = await self._through(proxy, address, port)
            except UnclearFailure as error:
                failed = error
                doubted.append(proxy)
            except ProxyFailed as error:
                failed = error
                if error.backoff:
                    self._back_off(proxy)
            else:
                for other in doubted:
                    if self._records[other].refute(address):
                        self._back_off(other)
                return stream
        is_ours = self._is_egress and failed is not None and failed.backoff and not doubted
        failure = EgressFailed if is_ours else CannotConnect
        raise failure(f"no proxy could be used: {failed}") from failed

    async def _through(self, proxy: Proxy, address: str, port: int) -> trio.abc.Stream:
        """Connect through this proxy and record how it did."""
        record, began = self._records[proxy], trio.current_time()
        try:
            stream = await connect_through(proxy, address, port)
        except CannotConnect:
            record.worked(trio.current_time())
            raise
        except trio.Cancelled:
            now = trio.current_time()
            if now - began >= SILENCE_S and record.note_silence(address, now):
                self._back_off_if_others_worked(proxy, since=record.silent_since)
            raise
        record.worked(trio.current_time())
        return stream

    def _back_off_if_others_worked(self, proxy: Proxy, *, since: float) -> None:
        others = (record for other, record in self._records.items() if other != proxy)
        if any(record.worked_at >= since for record in others):
            self._back_off(proxy)

    def _back_off(self, proxy: Proxy) -> None:
        """Do not use it for a while, unless no other proxy is available."""
        if any(self._is_available(other) for other in self._proxies if other != proxy):
            self._records[proxy].back_off(trio.current_time())

    def _is_available(self, proxy: Proxy) -> bool:
        return self._records[proxy].backoff.until <= trio.current_time()

    def _check_address(self, address: str) -> None:
        try:
            parse_ip(address)
        except ValueError:
            raise NotPublic(f"not an IP address: {address[:80]!r}") from None
        if not self._allow_private and not is_public(address):
            raise NotPublic("not a public address")

    def _by_preference(self) -> list[Proxy]:
        """The proxies to try for this connection; the next call starts with another one.

        After the available proxies comes the one whose back-off ends first, as a last resort.
        """
        self._proxies.append(self._proxies.pop(0))
        available = [proxy for proxy in self._proxies if self._is_available(proxy)]
        backing_off = (proxy for proxy in self._proxies if not self._is_available(proxy))
        by_end = sorted(backing_off, key=lambda proxy: self._records[proxy].backoff.until)
        return available + by_end[:1]
