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
    from mailprobe.engine.evidence import Evidence
    from mailprobe.engine.observer import EngineStatistics, Observer
    from mailprobe.engine.settings import EngineSettings
    from mailprobe.engine.stream.scheduler import (
        Answer,
        Answers,
        Engine,
        KnownAnswers,
        deciding_rules,
        in_order,
        known_answers,
        load_rules_and_lists,
        open_answers,
        open_engine,
    )
    from mailprobe.engine.verdict import Verdict
else:
    _HOMES = {
        "Evidence": "mailprobe.engine.evidence",
        "EngineSettings": "mailprobe.engine.settings",
        "Verdict": "mailprobe.engine.verdict",
        "EngineStatistics": "mailprobe.engine.observer",
        "Observer": "mailprobe.engine.observer",
    }

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOMES.get(name, "mailprobe.engine.stream.scheduler")), name)
        globals()[name] = value
        return value


__all__ = [
    "Answer",
    "Answers",
    "Engine",
    "EngineSettings",
    "EngineStatistics",
    "Evidence",
    "KnownAnswers",
    "Observer",
    "Verdict",
    "deciding_rules",
    "in_order",
    "known_answers",
    "load_rules_and_lists",
    "open_answers",
    "open_engine",
]
