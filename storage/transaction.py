"""A store method is a function of its transaction, in the module of its subject.

    def end_pause(db: Database, kind: PauseKind, name: str) -> bool: ...

    class PauseStore(StorePart):
        unpause = write(end_pause)

The method has the function's other arguments, its result, and its docstring, which is the contract. The
function may run again after its transaction was rolled back: so it changes nothing but the database.
"""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from .commands import StoreCommand
from .database import Database

P = ParamSpec("P")
R = TypeVar("R")
Function = Callable[Concatenate[Database, P], R]


class Executor(Protocol):
    """Runs the transactions of a store. Everything raises StoreUnavailable within a second.

    A cancelled caller receives the result of a transaction that has begun.
    """

    async def write(self, function: Function[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function in a transaction of its own; what it raises leaves no change."""
        ...

    async def read(self, function: Function[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function that changes nothing."""
        ...

    async def execute(self, command: StoreCommand[R]) -> R:
        """Run a command, each in one transaction unless its method says otherwise."""
        ...

    def lease_session(self) -> int:
        """See `LeaseStore.lease_session`; always the same if leases end only by themselves."""
        ...


class HasExecutor(Protocol):
    """What has such methods."""

    executor: Executor


Method = Callable[Concatenate[HasExecutor, P], Awaitable[R]]


def write(function: Function[P, R]) -> Method[P, R]:
    """Return a method that runs the function in a transaction of its own."""

    @wraps(function)
    async def method(store: HasExecutor, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await store.executor.write(function, *args, **kwargs)

    return method


def read(function: Function[P, R]) -> Method[P, R]:
    """Return a method that runs the function, which changes nothing."""

    @wraps(function)
    async def method(store: HasExecutor, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await store.executor.read(function, *args, **kwargs)

    return method
