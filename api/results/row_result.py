"""A verdict with its cause, as the command line shows and keeps it."""

from typing import TYPE_CHECKING

import msgspec

from mailprobe.engine.verdict import PASSING, Blame, Reason, Verdict

from ..cells.unwrapping import doubtful_address

if TYPE_CHECKING:
    from mailprobe.engine.stream.answers import Answer


class RowResult(Verdict, frozen=True, gc=False):
    """A verdict with its cause, and how often the address was asked about."""

    reason: Reason
    blame: Blame | None
    attempts: int = 1
    answered_at: float = 0.0  # Unix time, for the second pass; no column
    retry_at: float = 0.0  # Unix time: its mail host takes more then; no column
    takes: int = 0  # refusals that the host takes in ten minutes, where that is why; no column
    waits: int = 0  # of the attempts: after so many it waited for its mail host; no column

    @property
    def host(self) -> str:
        """The mail host; the domain if no host is known."""
        return self.mx_host or domain_of(self.email)

    @property
    def is_passing(self) -> bool:
        """Whether time may give a better answer."""
        return self.retry_at > 0 or self.reason in PASSING


def row_result(answer: "Answer", attempts: int = 1, answered_at: float = 0.0) -> RowResult:
    """The row's result of an answer; a text that only may be an address gets the one it means."""
    reason, blame = answer.cause
    verdict = answer.verdict
    if verdict.failed_check == "syntax" and (meant := doubtful_address(verdict.email)) is not None:
        verdict = msgspec.structs.replace(verdict, suggestion=meant)
    fields = msgspec.structs.astuple(verdict)
    retry_at = 0.0 if answer.retry_s is None else answered_at + answer.retry_s
    rest = (reason, blame, attempts, answered_at, retry_at, answer.takes)
    return RowResult(*fields, *rest)  # type: ignore[call-arg]


def suggested(result: RowResult) -> str | None:
    """The address with the corrected domain, or the one that is meant; None without a suggestion."""
    if result.suggestion is None or "@" in result.suggestion:
        return result.suggestion
    return f"{result.email.rpartition('@')[0]}@{result.suggestion}"


def domain_of(address: str) -> str:
    """The domain of a text, if it has one: only texts alike need to have it alike."""
    return address.rpartition("@")[2].lower()
