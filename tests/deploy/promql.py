"""A parser of PromQL, as much of it as the dashboard and the alert rules use.

https://prometheus.io/docs/prometheus/latest/querying/basics/. It refuses what it does not
know. Besides the grammar it checks types (a rate is of a range) and follows labels: one may
group only by a label that the inner series have, and vectors match only on equal labels.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Type = Literal["scalar", "vector", "range"]
Labels = frozenset[str]

TARGET_LABELS = frozenset({"job", "instance"})  # Prometheus adds them when it scrapes
# function -> the types of its arguments; those of a range or a vector keep their labels
FUNCTIONS: Mapping[str, tuple[Type, ...]] = {
    "absent": ("vector",),
    "changes": ("range",),
    "clamp_min": ("vector", "scalar"),
    "histogram_quantile": ("scalar", "vector"),
    "increase": ("range",),
    "max_over_time": ("range",),
    "rate": ("range",),
    "scalar": ("vector",),
    "time": (),
}
SCALAR_FUNCTIONS = {"scalar", "time"}
AGGREGATIONS = {"sum", "max", "min", "avg", "count", "topk"}
PRECEDENCE = (
    ("or",), ("and", "unless"), ("==", "!=", ">=", "<=", ">", "<"), ("+", "-"), ("*", "/", "%"),
)  # fmt: skip
SETS = {"or", "and", "unless"}
TOKEN = re.compile(
    r"\s*(?:(?P<duration>\d+(?:ms|[smhdwy]))|(?P<number>\d+(?:\.\d+)?)|(?P<name>[a-zA-Z_:][\w:]*)"
    r"|(?P<string>\"(?:[^\"\\]|\\.)*\")|(?P<sign>=~|!~|!=|==|>=|<=|[-+*/%<>=(){}\[\],]))"
)


class NotPromQL(Exception):
    """The text is not an expression, or one that cannot have a meaning."""


@dataclass(frozen=True)
class Selector:
    """A metric with its matchers: label, `=` or another sign, and the value."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Expression:
    """A parsed expression: its type, its result's labels, and the selectors inside of it."""

    type: Type
    labels: Labels = frozenset()
    selectors: tuple[Selector, ...] = ()
    number: float | None = None
    # (metric, the number) of each `histogram_quantile(…) > number`
    quantiles: tuple[tuple[str, float], ...] = ()
    quantile_of: str | None = None


def parse(text: str, labels_of: Mapping[str, Labels]) -> Expression:
    """Parse an expression; `labels_of` has each metric's own labels. Raises NotPromQL."""
    parser = _Parser(text, labels_of)
    found = parser.expression()
    if parser.kind != "end":
        raise NotPromQL(f"{text!r} goes on with {parser.text!r}")
    return found


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while text[at:].strip():
        found = TOKEN.match(text, at)
        if found is None:
            raise NotPromQL(f"{text!r} has {text[at:]!r}")
        assert found.lastgroup is not None
        yield found.lastgroup, found[found.lastgroup]
        at = found.end()
    yield "end", ""


class _Parser:
    def __init__(self, text: str, labels_of: Mapping[str, Labels]) -> None:
        self._whole = text
        self._labels_of = labels_of
        self._tokens = list(_tokens(text))
        self._at = 0

    @property
    def kind(self) -> str:
        return self._tokens[self._at][0]

    @property
    def text(self) -> str:
        return self._tokens[self._at][1]

    def _next(self, kind: str) -> str:
        if self.kind != kind:
            raise self._wrong(f"{self.text!r} is no {kind}")
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _take(self, *texts: str) -> str | None:
        if self.kind in ("string", "end") or self.text not in texts:
            return None
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _expect(self, text: str) -> None:
        if self._take(text) is None:
            raise self._wrong(f"{self.text!r} stands where {text!r} is expected")

    def _wrong(self, why: str) -> NotPromQL:
        return NotPromQL(f"{self._whole!r}: {why}")

    # -- operators

    def expression(self, level: int = 0) -> Expression:
        if level == len(PRECEDENCE):
            return self._unary()
        left = self.expression(level + 1)
        while sign := self._take(*PRECEDENCE[level]):
            on = self._names() if self._take("on") else None
            left = self._joined(sign, left, self.expression(level + 1), on)
        return left

    def _joined(
        self, sign: str, left: Expression, right: Expression, on: Labels | None
    ) -> Expression:
        if "range" in (left.type, right.type):
            raise self._wrong(f"{sign} takes no range")
        vectors = [each for each in (left, right) if each.type == "vector"]
        if sign in SETS and len(vectors) < 2:
            raise self._wrong(f"{sign} takes two vectors")
        labels = vectors[0].labels if vectors else frozenset()
        if len(vectors) == 2:
            if on is not None and not all(on <= each.labels for each in vectors):
                raise self._wrong(f"not both sides of {sign} have {sorted(on)}")
            if sign == "or":
                labels |= right.labels
            elif on is None and left.labels != right.labels:
                raise self._wrong(f"the sides of {sign} differ in their labels and never match")
            elif on is not None and sign not in SETS:
                labels = on
        quantiles = left.quantiles + right.quantiles
        if sign in (">", ">=") and left.quantile_of and right.number is not None:
            quantiles += ((left.quantile_of, right.number),)
        return Expression(
            "vector" if vectors else "scalar",
            labels,
            left.selectors + right.selectors,
            quantiles=quantiles,
        )

    # -- operands

    def _unary(self) -> Expression:
        if self._take("-"):
            return self._unary()
        if self._take("("):
            inside = self.expression()
            self._expect(")")
            return inside
        if self.kind == "number":
            return Expression("scalar", number=float(self._next("number")))
        name = self._next("name")
        if name in AGGREGATIONS:
            return self._aggregation(name)
        if name in FUNCTIONS:
            return self._call(name)
        return self._selector(name)

    def _names(self) -> Labels:
        self._expect("(")
        names = set()
        while self._take(")") is None:
            names.add(self._next("name"))
            self._take(",")
        return frozenset(names)

    def _arguments(self) -> list[Expression]:
        self._expect("(")
        arguments: list[Expression] = []
        while self._take(")") is None:
            if arguments:
                self._expect(",")
            arguments.append(self.expression())
        return arguments

    def _aggregation(self, name: str) -> Expression:
        by = self._names() if self._take("by") else None
        arguments = self._arguments()
        types = ["scalar", "vector"] if name == "topk" else ["vector"]
        if [each.type for each in arguments] != types:
            raise self._wrong(f"{name} takes {types}")
        inner = arguments[-1]
        if by is None:
            labels = inner.labels if name == "topk" else frozenset()
        elif by <= inner.labels:
            labels = by
        else:
            raise self._wrong(f"{name} by {sorted(by - inner.labels)}, which is in no series")
        return Expression("vector", labels, inner.selectors)

    def _call(self, name: str) -> Expression:
        arguments = self._arguments()
        if tuple(each.type for each in arguments) != FUNCTIONS[name]:
            raise self._wrong(f"{name} takes {FUNCTIONS[name]}")
        selectors = tuple(each for argument in arguments for each in argument.selectors)
        if name in SCALAR_FUNCTIONS:
            return Expression("scalar", selectors=selectors)
        labels = next(each for each in arguments if each.type != "scalar").labels
        if name == "absent":  # it has the labels that the matchers fix
            fixed = {label for label, sign, _ in selectors[0].matchers if sign == "="}
            return Expression("vector", frozenset(fixed), selectors)
        if name == "histogram_quantile":
            if "le" not in labels:
                raise self._wrong("a quantile needs the label le")
            metric = selectors[0].metric.removesuffix("_bucket")
            return Expression("vector", labels - {"le"}, selectors, quantile_of=metric)
        return Expression("vector", labels, selectors)

    def _selector(self, name: str) -> Expression:
        if name not in self._labels_of:
            raise self._wrong(f"{name} is neither a metric nor a function that is known here")
        labels = self._labels_of[name] | TARGET_LABELS
        matchers = []
        if self._take("{"):
            while self._take("}") is None:
                label = self._next("name")
                if label not in labels:
                    raise self._wrong(f"{name} has no label {label}")
                sign = self._take("=", "!=", "=~", "!~")
                if sign is None:
                    raise self._wrong(f"{label} is followed by {self.text!r}")
                value = self._next("string")[1:-1]
                matchers.append((label, sign, value.replace("\\\\", "\\")))
                self._take(",")
        ranged = self._take("[")
        if ranged:
            self._next("duration")
            self._expect("]")
        if self._take("offset"):
            self._next("duration")
        return Expression(
            "range" if ranged else "vector", labels, (Selector(name, tuple(matchers)),)
        )
