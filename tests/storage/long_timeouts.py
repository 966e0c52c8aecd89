"""Timeouts of a store on a busy machine."""

from collections.abc import Callable
from typing import Any

from mailprobe.storage.base import call_queue
from mailprobe.storage.postgres.driver import server as driver_server

PATIENCE_S = 30.0


def use_long_timeouts(change: Callable[[Any, str, Any], None] = setattr) -> None:
    """On a busy machine an answer takes its time; what was promised of it tests/peers/ holds it to."""
    change(call_queue, "ANSWER_S", PATIENCE_S)
    text = f"statement_timeout = {driver_server.STATEMENT_MS}"
    deferred_start = f"statement_timeout = {1000 * PATIENCE_S:.0f}"
    change(driver_server, "SETTINGS", driver_server.SETTINGS.replace(text, deferred_start))
