"""The tools of a tool server by name, the effect of a call, and notes for each result."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

CALLS_MAX = 100  # under way at a time: a model makes a few

Report = Callable[[float, float, str], Awaitable[None]]
"""Reports how much is done, of how much, in words. Waits while the client does not read."""


class OfferedTool(Struct, frozen=True):
    """A tool: its definition, the type of its arguments, and what a call does.

    `perform` takes the arguments, decoded and as sent, and returns an object in JSON on one line.
    It raises RpcFault or CommandError for what a model should read.
    """

    definition: Mapping[str, object]
    takes: type[Struct]
    perform: Callable[[Any, bytes, Report], Awaitable[bytes]]


class Toolbox(Struct, frozen=True):
    """The tools of a session by name.

    `elsewhere`: what to say of tools that it does not have. `notes` are said with each result.
    """

    tools: Mapping[str, OfferedTool]
    instructions: str
    docs_url: str
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
