"""Errors that end a command: one line for a person, and an exit code."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from mailprobe.api.terminal import plain


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
