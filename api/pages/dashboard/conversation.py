"""The conversation with a mail host as a page shows it: commands, replies, and what they mean. Pure.

A reply belongs to the oldest command that has none (RFC 2920), the first one of a conversation to
none: it is the greeting.
"""

from collections import deque
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from mailprobe.engine.evidence import ConversationLine
from mailprobe.engine.verdict import Reason

Asked = Literal["greeting", "hello", "sender", "mailbox", "made-up", "other", "end"]
VERBS: dict[str, Asked] = {
    "EHLO": "hello", "HELO": "hello", "MAIL": "sender", "RCPT": "mailbox", "QUIT": "end",
}  # fmt: skip
OURS: dict[str, str] = {
    "EHLO": "Hello, this is our name.",
    "HELO": "Hello, this is our name.",
    "NOOP": "To keep in step.",
    "RSET": "Let us begin anew.",
    "QUIT": "Goodbye. No message was sent.",
}
# What a reply means, by what was asked and its first digit.
THEIRS: dict[tuple[Asked, str], str] = {
    ("greeting", "2"): "Good day.",
    ("greeting", "4"): "Not now: come back later.",
    ("greeting", "5"): "No, because of who you are.",
    ("hello", "2"): "Welcome. This is what I can do.",
    ("hello", "5"): "No, not in these words.",
    ("sender", "2"): "Sender noted.",
    ("sender", "4"): "Not now: come back later.",
    ("sender", "5"): "No, because of who you are.",
    ("mailbox", "2"): "Yes.",
    ("mailbox", "4"): "Not now: come back later.",
    ("mailbox", "5"): "No.",
    ("made-up", "2"): "Yes, too.",
    ("made-up", "4"): "Not now: come back later.",
    ("made-up", "5"): "No. So it does not say yes to every name.",
    ("other", "2"): "Agreed.",
    ("end", "2"): "Goodbye.",
}
# Of the reply that decides, where its own words say more.
DECIDES: dict[Reason, str] = {
    "accepted": "Yes. This decides: the mailbox exists.",
    "untested": "Yes. This decides: the mailbox exists.",
    "catch_all": "Yes, too. This decides: it says yes to every name.",
    "no_mailbox": "No: this mailbox does not exist. This decides.",
    "disabled": "No: it is closed. This decides.",
    "full": "No: it is full. This decides.",
    "blocked_us": "No, because of who you are. This decides.",
    "policy": "No, but not about the mailbox. This decides.",
    "unclear": "This says nothing about the mailbox. This decides.",
}
SILENCE = "(silence)"


class ShownTurn(Struct, frozen=True):
    """A command that we sent, or a whole reply of the host, with its meaning in `gloss`."""

    is_ours: bool
    at_ms: float
    lines: tuple[str, ...]
    gloss: str = ""
    asked: Asked = "other"  # of a reply: what it answers
    decides: bool = False

    @property
    def is_folded(self) -> bool:
        """Whether only the first line is shown: a positive reply, such as EHLO's extensions."""
        return not self.is_ours and len(self.lines) > 2 and self.lines[0].startswith("2")

    @property
    def is_silence(self) -> bool:
        return self.lines == (SILENCE,)

    @property
    def goes_on(self) -> bool:
        """Whether another line of the same reply follows (RFC 5321 4.2.1)."""
        return not self.is_ours and self.lines[-1][3:4] == "-"


def turns_of(lines: Sequence[ConversationLine]) -> list[ShownTurn]:
    """The conversation by commands and replies."""
    turns: list[ShownTurn] = []
    for line in lines:
        is_ours = line.who == "client"
        if turns and not is_ours and turns[-1].goes_on:
            turns[-1] = replace(turns[-1], lines=(*turns[-1].lines, line.text))
        else:
            turns.append(ShownTurn(is_ours, line.at_ms, (line.text,)))
    return turns


def explained_turns(
    lines: Sequence[ConversationLine], email: str, reason: Reason | None, ended_ms: float
) -> list[ShownTurn]:
    """The turns, each with what it means, and the one that decides marked.

    A silence is a turn as well: it lasts until the verification has ended.
    """
    local_part = email.rpartition("@")[0].lower()
    waiting: deque[Asked] = deque()
    turns: list[ShownTurn] = []
    for turn in turns_of(lines):
        if turn.is_ours:
            asked, gloss = _command_of(turn.lines[0], local_part)
            waiting.append(asked)
        else:
            asked = _reply_to(turn, waiting)
            gloss = THEIRS.get((asked, turn.lines[0][:1]), "")
        turns.append(replace(turn, gloss=gloss, asked=asked))
    if reason == "timeout" and turns:
        silent_ms = max(0.0, ended_ms - max(0.0, turns[-1].at_ms))
        words = f"Nothing for {silent_ms:,.0f} ms."
        turns.append(ShownTurn(False, ended_ms, (SILENCE,), words, "mailbox"))
    place = _decider(turns, reason)
    if place is not None:
        gloss = (
            DECIDES.get(reason or "unclear", "") or f"{turns[place].gloss} This decides.".strip()
        )
        turns[place] = replace(turns[place], decides=True, gloss=gloss)
    return turns


def _command_of(command: str, local_part: str) -> tuple[Asked, str]:
    """What a command of ours asks, and how to say it."""
    if command.startswith("("):  # no command: the connection is opened
        return "greeting", ""
    verb = command.partition(" ")[0].upper()
    address = command.partition("<")[2].rpartition(">")[0]
    if verb == "MAIL":
        return "sender", f"A mail from {address}." if address else "A mail without a sender."
    if verb == "RCPT":
        name = address.rpartition("@")[0]
        if name.lower() != local_part:
            return "made-up", "And for a name that we made up?"
        return "mailbox", f"Would you take mail for {name}?"
    return VERBS.get(verb, "other"), OURS.get(verb, "")


def _reply_to(turn: ShownTurn, waiting: deque[Asked]) -> Asked:
    is_greeting = turn.lines[0].startswith("220") and (not waiting or waiting[0] == "end")
    if is_greeting or not waiting:
        waiting.clear()
        return "greeting"
    return waiting.popleft()


def _decider(turns: Sequence[ShownTurn], reason: Reason | None) -> int | None:
    """The place of the turn that decides; None where the conversation does not."""
    replies = [place for place, turn in enumerate(turns) if not turn.is_ours]
    wanted: Asked = "made-up" if reason == "catch_all" else "mailbox"
    named = [place for place in replies if turns[place].asked == wanted]
    if reason in ("timeout", "accepted", "untested", "catch_all"):
        return named[-1] if named else None
    return named[-1] if named else replies[-1] if replies else None


def text_of(lines: Sequence[ConversationLine]) -> str:
    """The conversation as text: C is this service, S the mail host (as in RFC 5321)."""
    return "\n".join(f"{'C' if line.who == 'client' else 'S'}: {line.text}" for line in lines)
