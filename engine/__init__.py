"""Verifies email addresses in five layers, from text to verdict, as a stream.

    async with open_engine(EngineSettings()) as engine:
        async with open_answers(engine, ["ann@example.org"], account="me") as answers:
            async for answer in answers:
                print(answer.position, answer.verdict.status)

The engine depends on no HTTP server, database or accounts. The names below are
imported on first use: a command that only reads the settings needs none of the layers.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine_calls import VerifierClosedError
    from .evidence import Evidence
    from .library import (
        FullVerdict,
        HeloNameWarning,
        Verifier,
        averify,
        verify,
    )
    from .lists.own_list_files import WrongList, read_own_lists
    from .observer import EngineStatistics, Observer
    from .own_lists import OwnLists
    from .settings import EngineSettings
    from .stream.answers import Answer, Answers, in_order
    from .stream.engine import (
        Engine,
        deciding_rules,
        load_rules_and_lists,
        open_engine,
    )
    from .stream.pipeline import KnownAnswers, known_answers, paused_among
    from .stream.scheduler import open_answers
    from .verdict import Verdict
else:
    _MODULES = {
        "mailprobe.engine.engine_calls": ("VerifierClosedError",),
        "mailprobe.engine.evidence": ("Evidence",),
        "mailprobe.engine.library": (
            *("FullVerdict", "HeloNameWarning", "Verifier", "averify", "verify"),
        ),
        "mailprobe.engine.observer": ("EngineStatistics", "Observer"),
        "mailprobe.engine.lists.own_list_files": ("WrongList", "read_own_lists"),
        "mailprobe.engine.own_lists": ("OwnLists",),
        "mailprobe.engine.settings": ("EngineSettings",),
        "mailprobe.engine.stream.answers": ("Answer", "Answers", "in_order"),
        "mailprobe.engine.stream.engine": (
            *("Engine", "deciding_rules", "load_rules_and_lists", "open_engine"),
        ),
        "mailprobe.engine.stream.pipeline": ("KnownAnswers", "known_answers", "paused_among"),
        "mailprobe.engine.stream.scheduler": ("open_answers",),
        "mailprobe.engine.verdict": ("Verdict",),
    }
    _MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

    def __getattr__(name):
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        return value


__all__ = [
    "Answer",
    "Answers",
    "Engine",
    "EngineSettings",
    "EngineStatistics",
    "Evidence",
    "FullVerdict",
    "HeloNameWarning",
    "KnownAnswers",
    "Observer",
    "OwnLists",
    "Verdict",
    "Verifier",
    "VerifierClosedError",
    "WrongList",
    "averify",
    "deciding_rules",
    "in_order",
    "known_answers",
    "load_rules_and_lists",
    "open_answers",
    "open_engine",
    "paused_among",
    "read_own_lists",
    "verify",
]
