"""Shares one connection budget among egresses: a host has permits for each of them."""

from msgspec import Struct

from ..connection_budget import ConnectionBudget, PermitHolder


class EgressBudgets:
    """The holder of a budget that is kept by egress and address."""

    def __init__(self, budget: ConnectionBudget) -> None:
        self._budget = budget
        self._holders: dict[str, PermitHolder] = {}
        budget.open_for(self)

    def of(self, egress: str) -> ConnectionBudget:
        """The budget of this egress."""
        return _EgressBudget(f"{egress} ", egress, self._budget, self._holders)

    def permits_changed(self, key: str) -> None:
        """See PermitHolder."""
        holder, address = self._find(key)
        holder.permits_changed(address)

    def is_wanted(self, key: str) -> bool:
        """See PermitHolder."""
        holder, address = self._find(key)
        return holder.is_wanted(address)

    def permits_revoked(self, key: str) -> None:
        """See PermitHolder."""
        holder, address = self._find(key)
        holder.permits_revoked(address)

    def _find(self, key: str) -> tuple[PermitHolder, str]:
        egress, _, address = key.rpartition(" ")
        return self._holders[egress], address


class _EgressBudget(Struct, eq=False):
    """One egress' part: the shared budget's addresses with the egress' name before them."""

    _prefix: str
    _egress: str
    _budget: ConnectionBudget
    _holders: dict[str, PermitHolder]

    def open_for(self, permit_holder: PermitHolder) -> None:
        self._holders[self._egress] = permit_holder

    def at(self, address: str) -> int:
        return self._budget.at(self._prefix + address)

    def short(self, address: str) -> bool:
        return self._budget.short(self._prefix + address)

    def request(self, address: str) -> None:
        self._budget.request(self._prefix + address)

    def used(self, address: str, count: int) -> None:
        self._budget.used(self._prefix + address, count)
