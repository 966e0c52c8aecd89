"""Errors that end a command: one line for a person, and an exit code."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from .terminal import plain


class CommandError(click.ClickException):
    """A command cannot continue. The message is one line: the reason and what to do."""

    exit_code = 1

    def show(self, file: object = None) -> None:
        print_error(self.message)


class Misuse(CommandError):
    """The command was used wrongly. Nothing was done and nothing was left behind."""

    exit_code = 2


class Interrupted(CommandError):
    """Ctrl-C or SIGTERM, with a message."""

    exit_code = 130


# What a path of the user's or a disk may be like. A file that is missing or there already is not among
# them: where that matters, a command says what to do.
FILE_ERRORS = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO}
    | {errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP}
)


def is_of_file(error: OSError) -> bool:
    """Whether a file or a folder that the error names cannot be used, which is no bug."""
    return error.filename is not None and error.errno in FILE_ERRORS


def cannot_use(error: OSError) -> str:
    """The file that the error names, and why it cannot be used."""
    return f"{os.fsdecode(error.filename)} cannot be used: {error.strerror}"


@contextmanager
def telling_open_files() -> Iterator[None]:
    """Raise CommandError where no more files may be open."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise CommandError("too many files are open; raise the limit (ulimit -n)") from error
        raise


def print_error(message: str) -> None:
    """Print one line on standard error; unprintable characters are escaped."""
    with suppress(OSError):  # standard error is full or closed
        click.echo(f"mailprobe: {plain(message)}", err=True)
