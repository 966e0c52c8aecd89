"""Self-hosted, streaming-first email verification on trio.

    from mailprobe import verify, averify, Verifier  # docs/library.md
    from mailprobe import EngineSettings, open_answers, open_engine  # on trio, nearer to the engine
    from mailprobe import Settings  # the service's and the command line's, from the environment

The library's other names are the engine's. They are imported when they are first used:
`mailprobe --help` needs none of them.
"""

# `typing` is not imported: until `api/start.py` runs, a Ctrl-C ends in a traceback.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from mailprobe.api.settings import Settings as Settings
    from mailprobe.engine import *  # noqa: F403
    from mailprobe.engine import __all__ as __all__

    __version__: str
else:

    def __getattr__(name):
        if name == "__version__":
            from mailprobe.release import version

            return version()
        from importlib import import_module

        if name == "Settings":
            return import_module("mailprobe.api.settings").Settings
        if name == "__all__" or not name.startswith("_"):
            engine = import_module("mailprobe.engine")
            if name == "__all__" or name in engine.__all__:
                return getattr(engine, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
