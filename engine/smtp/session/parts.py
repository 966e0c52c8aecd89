"""The parts of one session; each owns its state."""

from dataclasses import dataclass

from mailprobe.engine.smtp.connection import SmtpConnection
from mailprobe.engine.smtp.session.agenda import Agenda
from mailprobe.engine.smtp.session.answers import RecipientReplies
from mailprobe.engine.smtp.session.confirmation import Confirmation
from mailprobe.engine.smtp.session.failures import Failures
from mailprobe.engine.smtp.session.host import SessionHost
from mailprobe.engine.smtp.session.limited import SessionLimits
from mailprobe.engine.smtp.session.proof import Proof
from mailprobe.engine.smtp.session.recorder import SessionRecorder
from mailprobe.engine.smtp.session.tenure import Tenure
from mailprobe.engine.smtp.session.transaction import Transaction


@dataclass(frozen=True, slots=True)
class SessionParts:
    """What a session is made of."""

    host: SessionHost
    connection: SmtpConnection
    address: str
    recorder: SessionRecorder
    limits: SessionLimits
    transaction: Transaction
    proof: Proof
    confirmation: Confirmation
    agenda: Agenda
    answers: RecipientReplies
    tenure: Tenure
    failures: Failures


def make_parts(
    host: SessionHost,
    connection: SmtpConnection,
    address: str,
    preamble: list[tuple[float, bool, str]],
) -> SessionParts:
    conversation = connection.conversation
    recorder = SessionRecorder(connection, preamble)
    limits = SessionLimits(host)
    transaction = Transaction(conversation, host, limits)
    proof = Proof(host, connection, transaction, recorder)
    confirmation = Confirmation(host)
    agenda = Agenda(host, conversation, limits, transaction, proof, confirmation)
    answers = RecipientReplies(
        host, connection, limits, transaction, agenda, confirmation, recorder
    )
    tenure = Tenure(host, connection, address, limits, agenda)
    failures = Failures(host, connection, limits, transaction, proof, agenda, answers, tenure)
    return SessionParts(
        host, connection, address, recorder, limits, transaction, proof, confirmation, agenda,
        answers, tenure, failures,
    )  # fmt: skip
