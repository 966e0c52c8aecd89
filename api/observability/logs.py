"""The log: one line of JSON per event on standard error.

No line holds an API key, a webhook's secret or a whole email address, whether it comes from
a message, a field, an exception or a traceback. Code that logs an address shortens it
(`shortened`); `covered` is the last resort, applied to every line.
"""

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache, partial
from itertools import islice
from typing import Any

import msgspec

from mailprobe.release import commit, version

from ..keys import KINDS, SHOWN_CHARACTERS
from .request_context import present

log = logging.getLogger("mailprobe.serve")

Event = MutableMapping[str, object]

DEPTH_MAX = 6  # of nested values; deeper ones are logged by their repr
CUT = "…"
HIDDEN = "***"

# -- redaction ------------------------------------------------------------------------------

_PREFIX = "|".join(map(re.escape, KINDS))
_PREFIX_CHARACTERS = len(next(iter(KINDS)))
# With the underscore, so that the second of two adjacent keys is covered too.
_KEY = re.compile(
    rf"((?:{_PREFIX})[0-9A-Za-z]{{{SHOWN_CHARACTERS - _PREFIX_CHARACTERS}}})[0-9A-Za-z_]+"
)
_SECRET = re.compile(
    r"""((?:secret|authorization)(?:["']?\s*[:=]\s*|["']\s*,\s*)(?:b(?=["']))?)"""
    r"""("[^"]*"|'[^']*'|(?:(?:bearer|basic)\s+)?[^\s,;)\]}]+)""",
    re.IGNORECASE,
)
_SECRET_NAMES = ("secret", "authorization", "password")
_SUSPICIOUS = ("@", "%40", "＠", "﹫", "secret", "authorization", "password")
_AT = re.compile("((?:%40|[@＠﹫])*)(%40|[@＠﹫])")  # the last of several; the others are local
_RUN = re.compile(r"[^\s<>()\[\],;:]+")  # for a reversed text
_WORD = re.compile(r"\S+")  # where a comment stands before the @
_WRAPPED = re.compile(r"""(?:\w+=|[bru]{1,2})?["'`]+(?=.)""")  # email='ann@…, b'ann@…


def shortened(address: str) -> str:
    """Return an address in the form that may be logged: `a…@example.org`."""
    local, at, domain = address.rpartition("@")
    return f"{(local or domain)[:1]}{CUT}{at}{domain if at else ''}"


def covered(text: str) -> str:
    """Return the text without keys and secrets, and with all that looks like an address shortened.

    The first SHOWN_CHARACTERS of a key stay. Takes linear time for any text.
    """
    if not _is_suspect(text):
        return text
    text = _KEY.sub(rf"\1{CUT}", text)
    text = _SECRET.sub(rf"\1{HIDDEN}", text)
    return _without_addresses(text)


def _is_suspect(text: str) -> bool:
    """Might the text need covering? Most do not; this takes 1 us, one regular expression 26."""
    folded = text.casefold()  # so that `ſ` equals s, as in case-insensitive regular expressions
    return any(word in folded for word in _SUSPICIOUS) or _KEY.search(text) is not None


def _without_addresses(text: str) -> str:
    pieces = _AT.split(text)  # text, others, at, text, others, at, …, text
    for place in range(0, len(pieces) - 3, 3):
        before, others, _, behind = pieces[place : place + 4]
        if behind and not behind[0].isspace():
            pieces[place : place + 2] = [_without_local_part(before + others), ""]
    return "".join(pieces)


def _without_local_part(text: str) -> str:
    """Cut the local part at the text's end to its first character."""
    begins = _quoted_from(text)
    if begins is None:
        backwards = text[::-1]
        found = _RUN.match(backwards) or _WORD.match(backwards)
        begins = len(text) - (found.end() if found else 0)
        wrapped = _WRAPPED.match(text, begins)
        begins = wrapped.end() if wrapped else begins
    if begins == len(text):
        return text
    return f"{text[: begins + 1]}{CUT}"


def _quoted_from(text: str) -> int | None:
    """Where a quoted local part begins, if one ends here."""
    if not text.endswith('"'):
        return None
    at = text.rfind('"', 0, -1)
    while at > 0 and text[at - 1] == "\\":
        at = text.rfind('"', 0, at)
    return at if at >= 0 else None


def cover(_: object, __: str, event: Event) -> Event:
    """The last log processor: covers all fields."""
    return _cover_fields(event, 0)


def _cover_fields(fields: Mapping[Any, object], depth: int) -> dict[str, object]:
    covered_fields = {}
    for name, value in fields.items():
        reported, secret = _name(name if isinstance(name, str) else _described(name))
        covered_fields[reported] = HIDDEN if secret else _cover(value, depth)
    return covered_fields


@lru_cache(256)  # field names repeat
def _name(name: str) -> tuple[str, bool]:
    """Return the field's covered name, and whether its value is secret."""
    return covered(name), any(each in name.lower() for each in _SECRET_NAMES)


def _cover(value: object, depth: int) -> object:
    if isinstance(value, str):
        return covered(value)
    if value is None or type(value) in (int, float, bool):
        return value
    if isinstance(value, Mapping) and depth < DEPTH_MAX:
        return _cover_fields(value, depth + 1)
    if isinstance(value, list | tuple | set | frozenset) and depth < DEPTH_MAX:
        return [_cover(each, depth + 1) for each in value]
    return covered(_described(value))


def _described(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # a repr may raise anything
        return f"<a {type(value).__name__} whose repr fails>"


# -- fields of every line -------------------------------------------------------------------


def belong(_: object, __: str, event: Event) -> Event:
    """Log processor: adds the present request's id and operation."""
    request_context = present()
    if request_context is not None:
        event.setdefault("request", request_context.request_id)
        event.setdefault("operation", request_context.operation)
        if request_context.trace:
            event.setdefault("trace", request_context.trace_id)
    return event


def log_age(version: str, started: float, _: object, __: str, event: Event) -> Event:
    """Log processor: adds version, commit and uptime to the access line of a health check."""
    if event.get("operation") == "health" and event.get("event") == "access":
        event["version"] = version
        event["commit"] = commit()
        event["uptime_s"] = round(time.monotonic() - started)
    return event


# The attributes of every record; others came with `extra`.
_RECORD_ATTRIBUTES = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
_BEFORE_EXTRA = len(vars(logging.makeLogRecord({})))  # these come first in every record
_PLAIN = {str, int, float, bool, type(None)}

_encode = msgspec.json.Encoder().encode


class JsonFormatter(logging.Formatter):
    """Formats a record as a line of JSON, by `belong`, `log_age` and `cover`.

    Every request logs a line, so it is fast: a third of the cost of structlog's ten
    processors. The line is encoded first and checked once; only a suspect line is covered
    field by field.
    """

    def __init__(self, version: str, started: float) -> None:
        super().__init__()
        self._version = version
        self._started = started

    def format(self, record: logging.LogRecord) -> str:
        event = self._event(record)
        if all(type(value) in _PLAIN for value in event.values()):
            try:
                line = _encode(event).decode()
            except (UnicodeEncodeError, OverflowError):  # a lone surrogate, a very large integer
                pass
            else:
                if not _is_suspect(line):
                    return line
        return json.dumps(cover(None, "", event), ensure_ascii=False)

    def _event(self, record: logging.LogRecord) -> Event:
        event: Event = {
            "event": record.getMessage(),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        for name, value in islice(vars(record).items(), _BEFORE_EXTRA, None):
            if name not in _RECORD_ATTRIBUTES:
                event[name] = value
        at = datetime.fromtimestamp(record.created, UTC)
        event["timestamp"] = at.isoformat(timespec="microseconds")[:-6] + "Z"  # not "+00:00"
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            event["stack_info"] = record.stack_info
        return log_age(self._version, self._started, None, "", belong(None, "", event))


def formatter(*, terminal: bool = False) -> logging.Formatter:
    """Return a formatter for lines of JSON, or for readable lines on a terminal."""
    if not terminal:
        return JsonFormatter(version(), time.monotonic())
    return TerminalFormatter(_for_people())


def _for_people() -> logging.Formatter:
    import structlog

    # Not structlog's own tracebacks, which show the values of all variables.
    show = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            belong,
            partial(log_age, version(), time.monotonic()),
            cover,
            show,
        ],
    )


PATH_SHOWN_MAX = 80
_GREEN, _YELLOW, _RED, _PLAIN_TEXT = "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[0m"


class TerminalFormatter(logging.Formatter):
    """Formats a request's line as people read it: `14:02:11 POST /v1/email/verify 200 25 ms`.

    Other lines are left to another formatter. The path comes from the client: what cannot be
    printed is escaped, and keys and addresses are covered.
    """

    def __init__(self, others: logging.Formatter) -> None:
        super().__init__()
        self._others = others

    def format(self, record: logging.LogRecord) -> str:
        request_context = present()
        if record.name != "mailprobe.access" or request_context is None:
            return self._others.format(record)
        status = request_context.status
        path = covered(request_context.path)
        if len(path) > PATH_SHOWN_MAX:
            path = f"{path[:PATH_SHOWN_MAX]}{CUT}"
        words = [
            time.strftime("%H:%M:%S", time.localtime(record.created)),
            request_context.method,
            path.encode("unicode_escape").decode() if not path.isprintable() else path,
            f"{_colour_of(status)}{status or 'no answer'}{_PLAIN_TEXT}",
            f"{getattr(record, 'duration_ms', 0):.0f} ms",
        ]
        if request_context.addresses > 1:
            words.append(f"{request_context.addresses} addresses")
        if request_context.code is not None:
            words.append(request_context.code)
        if request_context.cut:
            words.append("the client did not get the whole answer")
        return " ".join(words)


def _colour_of(status: int | None) -> str:
    return _RED if status is None or status >= 500 else _YELLOW if status >= 400 else _GREEN


class Handler(logging.StreamHandler[Any]):
    """Standard error. A line that cannot be formatted is reported without its contents."""

    def emit(self, record: logging.LogRecord) -> None:  # like logging's own, which locks twice
        try:
            self.stream.write(f"{self.format(record)}\n")
            self.stream.flush()
        except RecursionError:
            raise
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # logging's own prints the contents
        kind = sys.exc_info()[0]
        with suppress(Exception):
            self.stream.write(
                '{"event": "log line not written", "level": "error", '
                f'"error": "{kind.__name__ if kind else ""}", "logger": "{record.name}"}}\n'
            )
            self.flush()


def log_to_standard_error(level: str) -> None:
    """Log everything from this process to standard error: warnings and crashes too."""
    handler = Handler()
    handler.setFormatter(formatter(terminal=sys.stderr.isatty()))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # no line has these, and collecting them takes time (Logging HOWTO, "Optimization")
    logging.logThreads = logging.logMultiprocessing = logging.logProcesses = False
    logging._srcfile = None  # nor the calling function
    logging.captureWarnings(True)
    for name in ("httpx", "httpcore", "hpack"):  # they log each request with its URL
        logging.getLogger(name).setLevel(logging.WARNING)
    sys.excepthook = _crash
    threading.excepthook = lambda crash: _crash(
        crash.exc_type, crash.exc_value, crash.exc_traceback
    )
    sys.unraisablehook = lambda crash: _crash(crash.exc_type, crash.exc_value, crash.exc_traceback)


def _crash(kind: Any, error: Any, traceback: Any) -> None:
    log.critical("crashed", exc_info=(kind, error or kind(), traceback))
