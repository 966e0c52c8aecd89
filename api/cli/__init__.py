"""The command line: one module per command, imported only when the command runs.

`mailprobe verify` must send its first packet fast, so nothing heavier than
click is imported before the command is known. `--help` reads the table below
and imports no command.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..interrupts import raise_interrupts
from .shell.examples import add_examples

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class CommandEntry(NamedTuple):  # a dataclass would add a tenth to the time of --help
    """The module and name of a command, and one line for `--help`."""

    module: str
    name: str
    summary: str


PAUSES = "mailprobe.api.cli.fleet.pauses"
# The groups of `--help`: who verifies addresses, who keeps a service's accounts, who runs its machines.
GROUPS: dict[str, dict[str, CommandEntry]] = {
    "Use": {
        "verify": CommandEntry("mailprobe.api.cli.verify", "verify", "Verify a few addresses."),
        "clean": CommandEntry(
            "mailprobe.api.cli.clean", "clean", "Verify every address of a list."
        ),
        "score": CommandEntry(
            "mailprobe.api.cli.score", "score", "Show how right a cleaned list was, by its bounces."
        ),
        "mcp": CommandEntry("mailprobe.api.cli.mcp", "mcp", "Offer verification as tools (MCP)."),
        "listen": CommandEntry(
            "mailprobe.api.cli.listen",
            "listen",
            "Receive callbacks, and pass them to a program here.",
        ),
        "demo": CommandEntry(
            "mailprobe.bench.cli.demo",
            "demo",
            "Clean an example list against mail hosts on this machine.",
        ),
        "lab": CommandEntry(
            "mailprobe.bench.cli.lab", "lab", "Run test mail servers and a test resolver."
        ),
        "completion": CommandEntry(
            "mailprobe.api.cli.shell.completion", "completion", "Print the completion for a shell."
        ),
        "help": CommandEntry(
            "mailprobe.api.cli.shell.help", "help_", "Show the help of a command."
        ),
    },
    "Service": {
        "serve": CommandEntry("mailprobe.api.cli.serve", "serve", "Run the service."),
        "account": CommandEntry(
            "mailprobe.api.cli.account", "account", "Create, show, change and delete accounts."
        ),
        "key": CommandEntry("mailprobe.api.cli.key", "key", "Create, list and revoke API keys."),
        "job": CommandEntry(
            "mailprobe.api.cli.job",
            "job",
            "List asynchronous jobs, show their callbacks, and resend one.",
        ),
        "list": CommandEntry(
            "mailprobe.api.cli.all_lists",
            "list_",
            "List, count, pause, resume and cancel the lists of all accounts.",
        ),
        "bounces": CommandEntry(
            "mailprobe.api.cli.bounces", "bounces", "Feed back which addresses bounced."
        ),
    },
    "Operate": {
        "doctor": CommandEntry(
            "mailprobe.api.cli.doctor", "doctor", "Check that this machine can verify addresses."
        ),
        "config": CommandEntry(
            "mailprobe.api.cli.config", "config", "Show and check the settings."
        ),
        "lists": CommandEntry(
            "mailprobe.api.cli.lists", "lists", "Update the lists of disposable and free domains."
        ),
        "egress": CommandEntry(
            "mailprobe.api.cli.egress.commands",
            "egress",
            "Show, pause and resume the ways by which probes leave.",
        ),
        "pause": CommandEntry(PAUSES, "pause", "Pause a domain, an operator or an account."),
        "unpause": CommandEntry(PAUSES, "unpause", "End a pause."),
        "pauses": CommandEntry(PAUSES, "pauses", "List what is paused."),
        "drain": CommandEntry(PAUSES, "drain", "Stop a machine from taking lists."),
        "undrain": CommandEntry(PAUSES, "undrain", "Let a machine take lists again."),
        "machines": CommandEntry(PAUSES, "machines", "List the machines of the database."),
        "backup": CommandEntry(
            "mailprobe.api.cli.backup", "backup", "Back up the SQLite database while it is served."
        ),
        "restore": CommandEntry(
            "mailprobe.api.cli.backup", "restore", "Put a backup in the database's place."
        ),
        "migrate": CommandEntry(
            "mailprobe.api.cli.migrate", "migrate", "Move an SQLite database to PostgreSQL."
        ),
        "bench": CommandEntry("mailprobe.bench.cli.bench", "bench", "Measure speed and accuracy."),
    },
}
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}


# Raised for `mailprobe` without a command; shows the help. An older click shows it itself.
NO_COMMAND: type[Exception] = getattr(click.exceptions, "NoArgsIsHelpError", click.Abort)


class LazyGroup(click.Group):
    """A click group that imports a command on use and turns exceptions into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        entry = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(entry.module), entry.name)
        if command.epilog is None:
            add_examples(command, cmd_name)
        raise_interrupts()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest name of the table for one that is not in it."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            import os
            import shlex
            from difflib import get_close_matches

            if near := get_close_matches(name.lower(), COMMANDS, n=1):
                raise click.UsageError(f"No such command {name!r}. Did you mean {near[0]!r}?", ctx)
            meant = "verify" if "@" in name else "clean" if os.path.isfile(name) else None
            if meant is not None:
                line = shlex.join(["mailprobe", meant, name])
                raise click.UsageError(f"No such command {name!r}. Did you mean: {line}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Complete the names of commands from the table: click would import every command."""
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=entry.summary)
            for name, entry in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        name_columns = max(map(len, COMMANDS))  # the summaries of all groups begin in one column
        for title, group in GROUPS.items():
            rows = [(name.ljust(name_columns), entry.summary) for name, entry in group.items()]
            with formatter.section(title):
                formatter.write_dl(rows)

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run a command and exit: 0 done, 1 with failures, 2 wrong usage, 130 interrupted.

        Click handles a closed standard output (`| head`): no message, exit code 1.
        """
        from .output.standard_streams import (
            cannot_write,
            is_of_stream,
            open_standard_streams,
            release_output,
        )

        extra["standalone_mode"] = False
        open_standard_streams()
        try:
            code = super().main(args, *rest, **extra)
        except click.ClickException as error:
            show(error)
            code = error.exit_code
        except click.Abort:  # Ctrl-C in a command that has no more to say about it, by way of click
            from ..errors import Interrupted

            show(Interrupted("interrupted"))
            code = Interrupted.exit_code
        except ValueError as error:
            from ..settings import WrongSetting

            if not isinstance(error, WrongSetting):
                raise
            click.echo(f"mailprobe: {error}", err=True)
            code = 2
        except OSError as error:
            from ..errors import cannot_use, is_of_file, print_error

            if is_of_file(error):
                print_error(cannot_use(error))
                code = 1
            elif is_of_stream(error):
                code = cannot_write(error)
            else:
                raise
        try:
            if not sys.stdout.closed:  # it is closed after a reported error
                sys.stdout.flush()
        except OSError as error:
            if code:
                release_output()  # the error was reported before
            else:
                code = cannot_write(error)
        sys.exit(code if isinstance(code, int) else 0)


def show(error: click.ClickException) -> None:
    """Print an error as one line; for wrong usage, name the help page."""
    from ..errors import CommandError, print_error

    if isinstance(error, CommandError | NO_COMMAND):
        error.show()
    elif isinstance(error, click.UsageError):
        words = " ".join(error.format_message().split()).removesuffix(".")
        words = words[:1].lower() + words[1:]
        print_error(f"{words} (see {error.ctx.command_path} --help)" if error.ctx else words)
    else:
        print_error(error.format_message())


def print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """The callback of --version: prints version and commit, and ends the program."""
    if not wanted or context.resilient_parsing:
        return
    from mailprobe.release import commit_on_file, version

    click.echo(f"mailprobe, version {version()} (commit {commit_on_file()})")
    context.exit()


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=print_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Verify email addresses without sending mail."""


add_examples(main, "")
