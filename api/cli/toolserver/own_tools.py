"""The tools of an engine in this process: no service, no account, no key, no counting."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec
import trio
from msgspec import Struct

from mailprobe.engine import Answer
from mailprobe.engine.evidence import EvidenceBudget

from ...error_table import Links
from ...mcp.tools import NEEDS_HEADER, READING, define, wide_tools
from ...operations.operation import ToolText
from ...operations.parameter_texts import NO_SMTP, WITHOUT_PORT, when
from ...operations.verify import (
    EMAILS_MAX,
    BatchArguments,
    BatchVerifyResponse,
    result_of,
)
from ..cleaning.passes import PATIENCE_S
from ..source import AnswerSource, OpenSource
from .file_cleaning import FileCleaner
from .toolbox import OfferedTool, Report, Toolbox

# Takes the account by which mail hosts are shared fairly, and whether hosts are asked at all.
SourceOf = Callable[[str, bool], AnswerSource]

CALLS = "tool calls"
FILES = "files"  # another account: a call waits for no file

INSTRUCTIONS = (
    f"Addresses are verified by this machine; nothing is billed. {READING} Verify up to "
    f"{EMAILS_MAX} addresses with verify_batch, a file with clean_file. A call that fails says "
    "why and what to do."
)
TEXTS: dict[str, ToolText] = {
    "verify_email": ToolText(
        "Verify an email address",
        "Find out whether an email address takes mail, without sending any. Takes some 3 seconds "
        "at most. With evidence the answer says why: the mail hosts that were tried, the "
        "conversation with them, and the rule that decided.",
        reaches_out=True,
    ),
    "verify_batch": ToolText(
        f"Verify up to {EMAILS_MAX} addresses",
        f"Find out which of up to {EMAILS_MAX} email addresses take mail, without sending any. The "
        "results are in the order of the addresses.",
        reaches_out=True,
    ),
}  # fmt: skip
NEEDS_SERVICE = (
    "The tool {name} needs a service, and this server verifies by itself. Use {instead}, or ask the "
    "person to start it as: mailprobe mcp --server URL, with MAILPROBE_KEY set."
)


class OwnVerifyArguments(Struct, frozen=True):
    """One address."""

    email: str
    smtp: bool = True
    evidence: bool = False
    advice: bool = False


def own_toolbox(
    source_of: SourceOf,
    links: Links,
    notes: Sequence[str] = (),
    patience_s: float = PATIENCE_S,
) -> Toolbox:
    """The tools of an engine. `notes` are said with each result; `patience_s` is of a file."""

    def open_source(smtp: bool) -> OpenSource:
        return lambda: nullcontext(source_of(FILES, smtp))

    verifier = _Verifier(source_of)
    cleaner = FileCleaner(open_source, patience_s, is_local=True)
    wide = wide_tools(NEEDS_HEADER)
    tools = {
        "verify_email": OfferedTool(
            _definition("verify_email", OwnVerifyArguments, wide["verify_email"].definition),
            OwnVerifyArguments,
            verifier.verify,
        ),
        "verify_batch": OfferedTool(
            _definition("verify_batch", BatchArguments, wide["verify_batch"].definition),
            BatchArguments,
            verifier.verify_batch,
        ),
        "clean_file": cleaner.tool(),
    }
    instead = ", ".join(tools)
    elsewhere = {
        name: NEEDS_SERVICE.format(name=name, instead=instead) for name in wide if name not in tools
    }
    return Toolbox(tools, INSTRUCTIONS, links.docs_url, elsewhere, notes)


def _definition(name: str, takes: type[Struct], service: Mapping[str, Any]) -> dict[str, Any]:
    """The definition of a service's tool with these arguments alone."""
    schema, output = service["inputSchema"], service["outputSchema"]
    properties = {each: schema["properties"][each] for each in takes.__struct_fields__}
    properties["smtp"] = {
        "type": "boolean", "description": f"{when('false', NO_SMTP)} {WITHOUT_PORT}",
    }  # fmt: skip
    return define(
        name, TEXTS[name],
        {"type": "object", "properties": properties, "required": schema["required"]},
        output["anyOf"][0] if "anyOf" in output else output,  # never the promise of a job
    )  # fmt: skip


class _Verifier(Struct, frozen=True):
    source_of: SourceOf

    async def verify(self, taken: OwnVerifyArguments, octets: bytes, report: Report) -> bytes:
        (answer,) = await self._answers([taken.email], taken.smtp, taken.evidence)
        return msgspec.json.encode(result_of(answer, EvidenceBudget(), advises=taken.advice))

    async def verify_batch(self, taken: BatchArguments, octets: bytes, report: Report) -> bytes:
        began = trio.current_time()
        answers = await self._answers(taken.emails, taken.smtp, taken.evidence)
        budget = EvidenceBudget()
        results = [result_of(answer, budget, advises=taken.advice) for answer in answers]
        took_ms = round((trio.current_time() - began) * 1000)
        return msgspec.json.encode(BatchVerifyResponse(results, len(results), took_ms))

    async def _answers(self, texts: list[str], smtp: bool, explain: bool) -> list[Answer]:
        """The answers in the order of the texts."""
        source = self.source_of(CALLS, smtp)
        async with source.open_answers(texts, explain=explain) as answers:
            found = [answer async for answer in answers]
        return sorted(found, key=lambda answer: answer.position)
