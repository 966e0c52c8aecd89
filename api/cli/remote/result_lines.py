"""The results of a service, as its lines of JSON have them."""

import msgspec

from mailprobe.engine.evidence import Evidence
from mailprobe.engine.reasons import VerdictCause
from mailprobe.engine.verdict import Blame, Reason, Verdict


class _Evidence(msgspec.Struct):
    """Of a result's evidence, what a list needs. A service of an earlier version has neither."""

    reason: Reason | None = None
    blame: Blame | None = None


class ResultLine(Verdict, frozen=True):
    """A result as a service sends it."""

    evidence: _Evidence | None = None

    @property
    def verdict(self) -> Verdict:
        """The result alone."""
        return Verdict(*(getattr(self, name) for name in Verdict.__struct_fields__))

    @property
    def cause(self) -> VerdictCause | None:
        if self.evidence is None or self.evidence.reason is None:
            return None
        return VerdictCause(self.evidence.reason, self.evidence.blame)


class ExplainedLine(ResultLine, frozen=True):
    """A result as a service sends it, with the whole of its evidence."""

    evidence: Evidence | None = None  # type: ignore[assignment]  # has what _Evidence has
