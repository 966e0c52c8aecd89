"""The command line: one file a command group, imported only when it is called.

`mailprobe verify` must reach its first packet fast, so nothing heavier than
click is imported before the command is known.
"""

from importlib import import_module

import click

COMMANDS = {
    "verify": "api.cli.verify:verify",
    "clean": "api.cli.clean:clean",
    "demo": "api.cli.demo:demo",
    "lab": "api.cli.lab:lab",
    "doctor": "api.cli.doctor:doctor",
    "lists": "api.cli.lists:lists",
    "bench": "api.cli.bench:bench",
}


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mailprobe")
def main() -> None:
    """Verify email addresses: honest about what it knows, gentle with mail servers."""
