"""The end of each command's help: examples, and its exit codes.

A test runs over all commands: each has an entry here, and no line is wider than 80 columns.
"""

from collections.abc import Mapping, Sequence

import click

USUAL = "0 done, 1 done with failures, 2 wrong usage, 130 interrupted."
DATABASE = "0 done, 1 refused or the database is not available, 2 wrong usage."

# the words of a command -> its examples; a second line belongs to the one before
EXAMPLES: Mapping[str, Sequence[str]] = {
    "": (
        "mailprobe verify ann@example.org",
        "mailprobe clean list.csv",
        "mailprobe serve",
    ),
    "serve": (
        "mailprobe serve",
        "mailprobe serve --port 8090",
        "mailprobe serve --bind 0.0.0.0:8080 --workers 4",
        "MAILPROBE_DATABASE=postgresql://... mailprobe serve",
    ),
    "verify": (
        "mailprobe verify ann@example.org 'Bob <bob@example.org>'",
        "mailprobe verify --explain ann@example.org",
        "mailprobe verify --json - < addresses.txt > results.ndjson",
        "mailprobe verify --server https://mailprobe.example ann@example.org",
    ),
    "clean": (
        "mailprobe clean list.csv",
        "mailprobe clean customers.xlsx --column Email -o cleaned.xlsx",
        "mailprobe clean list.csv --only green --dedupe",
        "mailprobe clean list.csv --resume",
        "MAILPROBE_KEY=sk_live_... mailprobe clean list.csv --server https://...",
    ),
    "mcp": (
        "mailprobe mcp",
        "MAILPROBE_KEY=sk_live_... mailprobe mcp --server https://mailprobe.example",
    ),
    "score": (
        "mailprobe score list.verified.csv bounces.mbox",
        "mailprobe score list.verified.csv bounces.csv --sent green",
    ),
    "bounces": (
        "mailprobe bounces bounces.mbox",
        "mailprobe bounces suppressed.csv --account ID",
    ),
    "account": ("mailprobe account create --email ann@example.org",),
    "account create": ("mailprobe account create --email ann@example.org --tier builder",),
    "account list": ("mailprobe account list",),
    "account show": ("mailprobe account show 0b8f4c1e-6f0a-4f7e-9a53-1d2c7f9e4b60",),
    "account audit": ("mailprobe account audit 0b8f4c1e-6f0a-4f7e-9a53-1d2c7f9e4b60",),
    "account set": (
        "mailprobe account set ID --tier scale --hard-cap 25",
        "mailprobe account set ID --soft-cap none --alerts off",
    ),
    "account delete": ("mailprobe account delete 0b8f4c1e-6f0a-4f7e-9a53-1d2c7f9e4b60",),
    "key": ("mailprobe key create ACCOUNT_ID --label checkout",),
    "key create": (
        "mailprobe key create ACCOUNT_ID --label checkout",
        "mailprobe key create ACCOUNT_ID --test",
    ),
    "key list": ("mailprobe key list", "mailprobe key list ACCOUNT_ID"),
    "key revoke": ("mailprobe key revoke 0b8f4c1e-6f0a-4f7e-9a53-1d2c7f9e4b60",),
    "job": ("mailprobe job list --state failed",),
    "job list": ("mailprobe job list --state failed --limit 20",),
    "job show": ("mailprobe job show 0b8f4c1e-6f0a-4f7e-9a53-1d2c7f9e4b60",),
    "list": ("mailprobe list ls", "mailprobe list pause --account ID"),
    "list ls": ("mailprobe list ls --state running",),
    "list summary": ("mailprobe list summary 5d3c07ab-2f0e-4c63-9f6a-0d1b7d1f3c55",),
    "list pause": ("mailprobe list pause --account 0b8f4c1e-6f0a-4f7e-9a53-1d2c7f9e4b60",),
    "list resume": ("mailprobe list resume 0b8f4c1e-6f0a-4f7e-9a53-1d2c7f9e4b60",),
    "list cancel": ("mailprobe list cancel 0b8f4c1e-6f0a-4f7e-9a53-1d2c7f9e4b60",),
    "egress": ("mailprobe egress list", "mailprobe egress pause fra-1"),
    "egress list": ("mailprobe egress list", "mailprobe egress list --json"),
    "egress show": ("mailprobe egress show fra-1",),
    "egress pause": ("mailprobe egress pause fra-1",),
    "egress resume": ("mailprobe egress resume fra-1 fra-2",),
    "pause": (
        "mailprobe pause domain example.org --for 2h --why 'they asked us to'",
        "mailprobe pause operator yahoo",
        "mailprobe pause account 0b8f4c1e-6f0a-4f7e-9a53-1d2c7f9e4b60",
    ),
    "unpause": ("mailprobe unpause domain example.org",),
    "pauses": ("mailprobe pauses",),
    "drain": ("mailprobe drain $(hostname)",),
    "undrain": ("mailprobe undrain $(hostname)",),
    "machines": ("mailprobe machines",),
    "job resend": ("mailprobe job resend 0b8f4c1e-6f0a-4f7e-9a53-1d2c7f9e4b60",),
    "backup": ("mailprobe backup backup/mailprobe-$(date +%F).db",),
    "restore": (
        "mailprobe restore backup/mailprobe-2026-03-14.db",
        "mailprobe restore --force backup/mailprobe-2026-03-14.db",
    ),
    "listen": (
        "mailprobe listen --forward http://127.0.0.1:3000/hook",
        "MAILPROBE_WEBHOOK_SECRET=whsec_... mailprobe listen --bind 127.0.0.1:8090",
    ),
    "migrate": (
        "mailprobe migrate --from data/mailprobe.db \\",
        "  --to postgresql://mailprobe:password@db/mailprobe",
    ),
    "demo": ("mailprobe demo",),
    "lab": (
        "mailprobe lab",
        "mailprobe lab --scenario hostile --seed 7",
        "mailprobe lab -- mailprobe verify clara.nowak@harbour-books.test",
    ),
    "config": ("mailprobe config check", "mailprobe config show"),
    "config check": ("mailprobe config check",),
    "config show": ("mailprobe config show",),
    "doctor": ("mailprobe doctor", "mailprobe doctor --egress fra-1", "mailprobe doctor --json"),
    "completion": (
        'eval "$(mailprobe completion bash)"    # in ~/.bashrc',
        'eval "$(mailprobe completion zsh)"     # in ~/.zshrc, after compinit',
        "mailprobe completion fish > ~/.config/fish/completions/mailprobe.fish",
    ),
    "help": ("mailprobe help clean", "mailprobe help key create"),
    "lists": ("mailprobe lists update",),
    "lists update": (
        "mailprobe lists update https://mailprobe.example/mailprobe-lists.tar.gz",
        "mailprobe lists update --dry-run mailprobe-lists.tar.gz",
    ),
    "bench": ("mailprobe bench", "mailprobe bench engine service", "mailprobe bench --list"),
    "bench tune": ("mailprobe bench tune",),
    "bench soak": ("mailprobe bench soak --minutes 10",),
}
EXIT_CODES: Mapping[str, str] = {
    "serve": "0 stopped by a signal, 1 a crash or no database, 2 wrong usage.",
    "mcp": "0 the client has closed the input, 1 it went away, 2 wrong usage, 130\n  interrupted.",
    "doctor": "0 all is well, 1 a check failed, 2 wrong usage.",
    "completion": "0 printed, 2 wrong usage. bash needs version 4.4 or newer.",
    **dict.fromkeys(
        (
            *(
                "account",
                "account create",
                "account list",
                "account show",
                "account audit",
                "account set",
                "account delete",
            ),
            *("key", "key create", "key list", "key revoke"),
            *("job", "job list", "job show", "job resend"),
            *("list", "list ls", "list pause", "list resume", "list cancel"),
            *("egress", "egress list", "egress show", "egress pause", "egress resume"),
            *("pause", "unpause", "pauses", "drain", "undrain", "machines"),
            *("backup", "restore"),
        ),
        DATABASE,
    ),
}


def exit_codes_of(words: str) -> str:
    return EXIT_CODES.get(words, USUAL)


def add_examples(command: click.Command, words: str) -> None:
    """Set the end of the help of a command and of those within it."""
    examples = "\n".join(f"  {line}" for line in EXAMPLES[words])
    # click keeps the lines of a paragraph that begins with \b
    command.epilog = f"\b\nExamples:\n{examples}\n\n\b\nExit codes:\n  {exit_codes_of(words)}"
    if isinstance(command, click.Group) and words:
        for name, inner in command.commands.items():
            add_examples(inner, f"{words} {name}")
