"""Where the console script begins: a Ctrl-C works from here on (see mailprobe.api.interrupts)."""

from mailprobe.api.interrupts import end_at_interrupts

end_at_interrupts()


def main() -> None:
    from mailprobe.api.cli import main as command

    try:
        command()
    finally:
        end_at_interrupts()  # the interpreter's end is no better a moment
