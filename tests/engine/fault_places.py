"""Functions of the product, each made to fail once: found by running them, not named.

A function that is added, renamed or removed needs no change of a test.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import pytest


class Fault(Exception):
    """A bug of ours."""


class Place(NamedTuple):
    """A function, by the class or module that has it."""

    owner: Any
    name: str

    def __str__(self) -> str:
        return f"{self.owner.__name__}.{self.name}"


Condition = Callable[[], bool]  # of the call that is made


def always() -> bool:
    return True


@contextmanager
def failing(
    owner: Any, name: str, error: BaseException | None = None, *, when: Condition = always
) -> Iterator[Callable[[], bool]]:
    """Let the next call of this (of those in which `when` is true) fail; gives whether it has."""
    original = getattr(owner, name)
    failed: list[bool] = []

    def fail_once(*arguments: Any, **named: Any) -> Any:
        if not failed and when():
            failed.append(True)
            raise error or Fault(name)
        return original(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, fail_once)
        yield lambda: bool(failed)


def places_of(owner: Any) -> list[Place]:
    """Each function that a class or module defines; of a class none that Python calls by itself."""
    module = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    return [
        Place(owner, name)
        for name, function in vars(owner).items()
        if isinstance(function, FunctionType) and function.__module__ == module
        if not name.startswith("__")
    ]


@contextmanager
def _watched(
    place: Place, owned: tuple[type, ...], when: Condition, reached: dict[str, Place]
) -> Iterator[None]:
    original = getattr(*place)

    def watched(*arguments: Any, **named: Any) -> Any:
        if when() and not any(isinstance(each, owned) for each in arguments):
            reached[str(place)] = place
        return original(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*place, watched)
        yield


async def places_reached(
    owners: Sequence[Any],
    act: Callable[[], Awaitable[object]],
    *,
    owned: tuple[type, ...] = (),
    when: Condition = always,
) -> dict[str, Place]:
    """Run it; return the functions of these owners that it has called, by name.

    Left out is one that is given an object of `owned`: it closes that from its first line on, so
    a fault in its place would leave it open.
    """
    reached: dict[str, Place] = {}
    with ExitStack() as stack:
        for place in [place for owner in owners for place in places_of(owner)]:
            stack.enter_context(_watched(place, owned, when, reached))
        await act()
    return dict(sorted(reached.items()))
