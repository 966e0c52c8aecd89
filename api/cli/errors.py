"""What ends a command with one line for a person, and the exit code that says the same."""

from contextlib import suppress

import click

from mailprobe.api.cli.output.terminal import plain


class CommandError(click.ClickException):
    """A command cannot go on; the message is one line that says why and what to do."""

    exit_code = 1

    def show(self, file: object = None) -> None:
        print_error(self.message)


class Misuse(CommandError):
    """What was asked for cannot be done as asked; nothing was done or left behind."""

    exit_code = 2


class Interrupted(CommandError):
    """Ctrl-C or SIGTERM, where there is more to say than that."""

    exit_code = 130


def print_error(message: str) -> None:
    """One line for a person, on standard error, whatever characters it holds."""
    with suppress(OSError):  # standard error is full or closed: nobody is there to be told
        click.echo(f"mailprobe: {plain(message)}", err=True)
