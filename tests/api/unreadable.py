"""Paths that settings may name and that cannot be read."""

import os
from pathlib import Path


def unreadable_files(folder: Path) -> dict[str, Path]:
    """Return paths of every kind that cannot be read as a setting's file, by error text."""
    files = {
        "No such file": folder / "none.toml",
        "Is a directory": folder / "directory",
        "not a regular file": folder / "fifo",
        "UTF-8": folder / "latin.toml",
        "not TOML": folder / "broken.toml",
        "nested too deeply": folder / "deep.toml",
        "more than 4 MiB": folder / "huge.toml",
        "Not a directory": folder / "broken.toml" / "below",
        "symbolic links": folder / "loop",
        "File name too long": folder / ("x" * 300),
    }
    files["Is a directory"].mkdir()
    os.mkfifo(files["not a regular file"])
    files["UTF-8"].write_bytes(b'x = "\xe9"')
    files["not TOML"].write_text("x = \n")
    files["nested too deeply"].write_text("x = " + "[" * 5000)
    files["more than 4 MiB"].write_bytes(bytes(5 * 1024 * 1024))
    files["symbolic links"].symlink_to(files["symbolic links"])
    return files
