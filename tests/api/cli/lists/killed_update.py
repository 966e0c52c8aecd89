"""Runs `mailprobe lists update` again and again, and kills it before each of its acts on a folder.

Words: the folder of own lists as it is before, and the package. Each run has a copy of the
folder beside it, `killed-1` and so on; the last run is not killed.
"""

import itertools
import os
import shutil
import signal
import sys
from importlib import import_module
from pathlib import Path

from mailprobe.api.cli import main

# What the command imports is loaded once, before the forks.
for module in (
    *("api.cli.lists", "api.cli.output.standard_streams", "api.downloads.download"),
    *("api.settings", "engine.lists.own_list_files", "engine.lists.package"),
    "engine.lists.updated_lists",
):
    import_module(f"mailprobe.{module}")

ACTS = {"open", "os.chmod", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink"}


def update_killed_at(number: int, folder: Path, source: str) -> None:
    """Never returns."""
    acts = itertools.count(1)

    def hook(event: str, args: tuple[object, ...]) -> None:
        if event in ACTS and f"{folder}/updated" in str(args[:2]) and next(acts) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    os.environ["MAILPROBE_LISTS_DIR"] = str(folder)
    try:
        main(["lists", "update", source])
    finally:
        os._exit(0)


def run_all(before: Path, source: str) -> None:
    for number in itertools.count(1):
        folder = before.with_name(f"killed-{number}")
        shutil.copytree(before, folder, symlinks=True)
        if not (pid := os.fork()):
            update_killed_at(number, folder, source)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            return


if __name__ == "__main__":
    run_all(Path(sys.argv[1]), sys.argv[2])
