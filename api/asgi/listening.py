"""The settings of a process whose listeners are another server's.

Its address is that server's option. `MAILPROBE_BIND` only says it, where public links are made
from it. The tool server and the metrics have listeners of their own, which `mailprobe serve`
opens once before its workers: a setting that asks for one here is refused, not passed over.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..errors import Misuse
from ..setting_values import Bind
from ..settings import Settings, survey

HYPERCORN_BIND = Bind("127.0.0.1", 8000)  # where hypercorn listens without an option


def read_settings(environ: Mapping[str, str], directory: Path | None = None) -> Settings:
    """Read the settings, as `Settings.read()`; without tools and metrics. Raises WrongSetting, Misuse."""
    settings = Settings.read(environ, directory)
    given = {row.variable for row in survey(environ, directory) if row.source != "default"}
    for variable, bind, what in (
        ("MAILPROBE_TOOLS_BIND", settings.tools_bind, "the tool server"),
        ("MAILPROBE_METRICS_BIND", settings.metrics_bind, "metrics"),
    ):
        if variable in given and bind is not None:
            raise Misuse(
                f"{variable} is {str(bind)!r}: only `mailprobe serve` has {what};"
                f" run that, or leave {variable} empty"
            )
    bind = settings.bind if "MAILPROBE_BIND" in given else HYPERCORN_BIND
    return replace(settings, bind=bind, tools_bind=None)
