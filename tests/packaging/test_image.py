"""The image's own build steps, in a folder that has only what the builder is sent."""

import fnmatch
import re
import shutil
import sys
from pathlib import Path, PurePath

from tests.deploy.files import ROOT, steps
from tests.packaging.conftest import COMMIT, INSTALL_S, PIP, run
from tests.packaging.test_wheel import members

IGNORED = [
    line for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line[0] != "#"
]


def is_sent(path: PurePath) -> bool:
    """Return whether the builder gets this file: the last pattern that matches it or a folder of it decides.

    https://docs.docker.com/build/concepts/context/#syntax, as much of it as the file uses.
    """
    sent = True
    for line in IGNORED:
        pattern = line.removeprefix("!")
        for each in (path, *path.parents[:-1]):
            name = each.name if pattern.startswith("**/") else str(each)
            if fnmatch.fnmatchcase(name, pattern.removeprefix("**/")):
                sent = line.startswith("!")
    return sent


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(source.readlink())
    elif source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)


def test_the_images_wheel_is_built_of_what_the_builder_is_sent(
    checkout: Path, wheel: Path, tmp_path: Path
) -> None:
    context, source, wheels = (tmp_path / name for name in ("context", "src", "wheels"))
    for path in checkout.rglob("*"):
        at = path.relative_to(checkout)
        if (path.is_file() or path.is_symlink()) and is_sent(at):
            copy(path, context / at)
    assert not (context / "tests").exists()
    for step in steps("COPY"):
        if not step.startswith("--from="):
            *names, target = step.split()
            for name in names:
                copy(context / name, source / target / name if target == "./" else source / target)
    commands = [
        command.split()[1:]
        for step in steps("RUN")
        for command in step.split(" && ")
        if command.startswith("pip wheel ")
    ]
    assert len(commands) == 2
    for words in commands:
        here = [
            re.sub("^/wheels$", str(wheels), word) for word in words if word != "--no-cache-dir"
        ]
        env = {"SOURCE_COMMIT": COMMIT}
        run(sys.executable, *PIP, *here, at=source, timeout_s=INSTALL_S, env=env)
    [built] = wheels.glob("mailprobe-*.whl")
    assert len(list(wheels.iterdir())) > 30
    assert members(built) == members(wheel)
