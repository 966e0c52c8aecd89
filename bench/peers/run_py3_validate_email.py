"""py3-validate-email, as its documentation says: one call for each address, with our own name.

It has neither a batch nor an asynchronous form. The updater of its list, which
would fetch it anew in the background, is told to rest (PY3VE_IGNORE_UPDATER):
the list that came with the package is used.
"""

from validate_email import validate_email  # type: ignore[import-not-found]  # it lives elsewhere

from .runner import (
    HELO,
    SENDER,
    UNSURE,
    RunnerClock,
    read_addresses,
    report,
    word,
)


def main() -> None:
    addresses = read_addresses()
    reported: dict[str, str] = {}
    raised = 0
    with RunnerClock() as clock:
        for address in addresses:
            try:
                answer = validate_email(
                    address, smtp_helo_host=HELO, smtp_from_address=SENDER, smtp_timeout=10
                )
            except Exception:  # whatever it is: this address has no answer, the next may have
                reported[address], raised = UNSURE, raised + 1
            else:
                reported[address] = word(answer)
    report(reported, clock, raised)


if __name__ == "__main__":
    main()
