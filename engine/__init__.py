"""Is this address real? The five layers, from text to verdict, as a stream.

    async with open_engine(EngineSettings()) as engine:
        async with open_answers(engine, ["ann@example.org"], asker="me") as answers:
            async for answer in answers:
                print(answer.place, answer.verdict.status)

The engine knows no HTTP server, no database and no accounts.
"""

from engine.evidence import Evidence
from engine.settings import EngineSettings
from engine.stream import (
    Answer,
    Answers,
    Engine,
    deciding_rules,
    in_order,
    load_rules_and_lists,
    open_answers,
    open_engine,
)
from engine.verdict import Verdict
from engine.watcher import Census, Watcher

__all__ = [
    "Answer",
    "Answers",
    "Census",
    "Engine",
    "EngineSettings",
    "Evidence",
    "Verdict",
    "Watcher",
    "deciding_rules",
    "in_order",
    "load_rules_and_lists",
    "open_answers",
    "open_engine",
]
