"""Errors that end a command: one line for a person, and an exit code."""

from contextlib import suppress

import click

from mailprobe.api.cli.output.terminal import plain


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


def print_error(message: str) -> None:
    """Print one line on standard error; unprintable characters are escaped."""
    with suppress(OSError):  # standard error is full or closed
        click.echo(f"mailprobe: {plain(message)}", err=True)
