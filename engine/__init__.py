"""Is this address real? The five layers, from text to verdict, as a stream.

    async with open_engine(EngineSettings()) as engine:
        async with open_answers(engine, ["ann@example.org"], asker="me") as answers:
            async for answer in answers:
                print(answer.place, answer.verdict.status)

The engine knows no HTTP server, no database and no accounts. What is named here is
imported when it is first asked for: a command that only reads the settings needs
none of the layers.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.evidence import Evidence
    from engine.settings import EngineSettings
    from engine.stream import (
        Answer,
        Answers,
        Engine,
        Known,
        deciding_rules,
        in_order,
        known_answers,
        load_rules_and_lists,
        open_answers,
        open_engine,
    )
    from engine.verdict import Verdict
    from engine.watcher import Census, Watcher
else:
    _HOMES = {
        "Evidence": "engine.evidence",
        "EngineSettings": "engine.settings",
        "Verdict": "engine.verdict",
        "Census": "engine.watcher",
        "Watcher": "engine.watcher",
    }

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOMES.get(name, "engine.stream")), name)
        globals()[name] = value
        return value


__all__ = [
    "Answer",
    "Answers",
    "Census",
    "Engine",
    "EngineSettings",
    "Evidence",
    "Known",
    "Verdict",
    "Watcher",
    "deciding_rules",
    "in_order",
    "known_answers",
    "load_rules_and_lists",
    "open_answers",
    "open_engine",
]
