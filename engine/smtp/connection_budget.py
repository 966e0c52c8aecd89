"""Limits how many connections may be open to one IP address, possibly shared by processes.

By default all permits belong to this process. If several processes share one limit, each
holds the permits granted to it. Their number may grow or shrink (connections close after
their batch), and they may be revoked at once.
"""

from typing import Protocol

from msgspec import Struct


class PermitHolder(Protocol):
    """Receives the changes of the budget; see `permits.Permits`."""

    def permits_changed(self, address: str) -> None:
        """More or fewer connections may be open here; fewer once their batches are done."""
        ...

    def is_wanted(self, address: str) -> bool:
        """Does a host that has no connection wait for a permit of this address?"""
        ...

    def permits_revoked(self, address: str) -> None:
        """No connection may be open here any more: close all of them at once."""
        ...


class ConnectionBudget(Protocol):
    """The permits of one process. Synchronous; never notifies from within a call."""

    def open_for(self, permit_holder: PermitHolder) -> None:
        """Notify this holder from now on."""
        ...

    def at(self, address: str) -> int:
        """How many connections may be open here at the moment."""
        ...

    def short(self, address: str) -> bool:
        """Do the processes that share the limit want more than there is?"""
        ...

    def request(self, address: str) -> None:
        """Ask for one more permit, which is of use if it comes within a probe's deadline.

        The request is renewed while the permit holder wants one.
        """
        ...

    def used(self, address: str, count: int) -> None:
        """`count` connections are open here, or being opened."""
        ...


class OwnBudget(Struct, eq=False):
    """All permits belong to this process."""

    _limit: int

    def open_for(self, permit_holder: PermitHolder) -> None:
        pass

    def at(self, address: str) -> int:
        return self._limit

    def short(self, address: str) -> bool:
        return False

    def request(self, address: str) -> None:
        pass

    def used(self, address: str, count: int) -> None:
        pass
