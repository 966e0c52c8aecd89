"""How many connections may be open to one IP address, where others may hold some of them.

A prober asks for seats and is told how many it has. By default all of them are its
own. Where several processes keep one limit between them, each holds what it has been
granted: later there may be more of them, or fewer (after the rounds under way), or
none from one moment to the next.
"""

from typing import Protocol


class PermitHolder(Protocol):
    """Who is told what becomes of its seats; see probe.Prober."""

    def permits_changed(self, address: str) -> None:
        """More connections may be held here than before, or fewer: after the rounds under way."""
        ...

    def permits_revoked(self, address: str) -> None:
        """No connection may be held here any more: close those that there are at once."""
        ...


class ConnectionBudget(Protocol):
    """The seats of one process. Synchronous; its sitter is never told from within a call."""

    def open_for(self, permit_holder: PermitHolder) -> None:
        """Tell this one from now on."""
        ...

    def at(self, address: str) -> int:
        """How many connections may be held here just now."""
        ...

    def short(self, address: str) -> bool:
        """Are more wanted here, over all who share them, than there are?"""
        ...

    def request(self, address: str) -> None:
        """One more than there are would be taken, if it came within a question's clock."""
        ...

    def used(self, address: str, count: int) -> None:
        """So many connections are open here, or being opened, from now on."""
        ...


class OwnBudget:
    """All seats are this process's own, and nobody else wants them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

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
