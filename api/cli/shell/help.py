"""`mailprobe help`: the page that `--help` shows, for those who look for it as a command."""

from collections.abc import Sequence

import click


def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The commands after those that are given, for the shell."""
    group = context.find_root().command
    for word in context.params.get("words") or ():
        inner = group.get_command(context, word) if isinstance(group, click.Group) else None
        if inner is None:
            return []
        group = inner
    names = group.list_commands(context) if isinstance(group, click.Group) else []
    return [name for name in names if name.startswith(incomplete)]


@click.command("help")
@click.argument("words", metavar="[COMMAND]...", nargs=-1, shell_complete=complete)
@click.pass_context
def help_(context: click.Context, words: Sequence[str]) -> None:
    """Show the help of a COMMAND, or without one the list of all commands.

    It is the page that --help shows.
    """
    shown = context.find_root()
    for word in words:
        group = shown.command
        if not isinstance(group, click.Group):
            raise click.UsageError(
                f"{shown.command_path!r} has no commands of its own, such as {word!r}", context
            )
        name, command, _ = group.resolve_command(shown, [word])
        assert command is not None  # resolve_command raises UsageError for an unknown one
        shown = click.Context(command, info_name=name, parent=shown)
    click.echo(shown.get_help(), color=shown.color)
