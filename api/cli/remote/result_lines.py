"""The results of a service, as its lines of JSON have them."""

import msgspec

from mailprobe.engine.evidence import Evidence
from mailprobe.engine.reasons import VerdictCause
from mailprobe.engine.stream.answers import Answer
from mailprobe.engine.verdict import Blame, Reason, Verdict

# A service does not say when a mail host takes more. What it took of refusals no longer counts after
# so long, and each answer is paid: it is not asked again sooner.
HOST_BUDGET_S = 600.0


class _Evidence(msgspec.Struct):
    """Of a result's evidence, what a list needs. A service of an earlier version has neither."""

    reason: Reason | None = None
    blame: Blame | None = None


def verdict_of(line: Verdict) -> Verdict:
    """The verdict of a line that has more."""
    return Verdict(*(getattr(line, name) for name in Verdict.__struct_fields__))


class ResultLine(Verdict, frozen=True):
    """A result as a service sends it."""

    evidence: _Evidence | None = None

    @property
    def cause(self) -> VerdictCause | None:
        if self.evidence is None or self.evidence.reason is None:
            return None
        return VerdictCause(self.evidence.reason, self.evidence.blame)

    def answer(self, position: int, evidence: Evidence | None = None) -> Answer:
        """As the answer to the text at this position; what its host did not take may be repeated."""
        cause = self.cause
        retry_s = HOST_BUDGET_S if cause is not None and cause.reason == "host_budget" else None
        return Answer(position, verdict_of(self), evidence, cause, retry_s)


class ExplainedLine(ResultLine, frozen=True):
    """A result as a service sends it, with the whole of its evidence."""

    evidence: Evidence | None = None  # type: ignore[assignment]  # has what _Evidence has
