"""The task of one session: its waits, and what is awaited between two batches."""

from mailprobe.engine.smtp import wire
from mailprobe.engine.smtp.connection import ConnectionLost, Overdue
from mailprobe.engine.smtp.host_policy import start_tls
from mailprobe.engine.smtp.replies.rules import Step
from mailprobe.engine.smtp.session.batch import PendingProbe, RecipientBatch
from mailprobe.engine.smtp.session.causes import CONNECTION_ERRORS, cause_of, refused_command
from mailprobe.engine.smtp.session.session import SmtpSession


class SessionTask:
    """Waits for one session, and writes what does not go out at once."""

    def __init__(self, session: SmtpSession) -> None:
        self._session = session
        self._exchange = session.exchange
        self._connection = session.connection

    async def serve(self) -> None:
        """Send waiting probes until the session is idle for too long or spent.

        The caller still has to `quit` and `close` the connection afterwards.
        """
        session = self._session
        try:
            while self._exchange.may_continue():
                if session.wants_tls():
                    if await self._prove():
                        await self._continue_in_tls()
                elif (asked := session.pick()) is None:
                    await self._prove()
                elif asked:
                    await self._send_batch(asked)
                elif session.is_done or not await self._idle():
                    break
            await self._prove()
            while tests := session.pick_last_tests():
                await self._send_batch(tests)
                await self._prove()
            if control := session.pick_last_control():
                await self._send_batch(control)
                await self._prove()
            session.check_unasked()
        finally:
            session.end()

    async def _idle(self) -> bool:
        """Wait until woken; False if the time is up or the server spoke or closed."""
        session = self._session
        until = session.begin_idle()
        try:
            await self._connection.receive_until(session.while_idle, until)
        finally:
            session.end_idle()
        return session.goes_on()

    async def _send_batch(self, asked: list[PendingProbe]) -> None:
        """Send a batch, and then further batches in the same transaction while all goes well."""
        exchange, connection = self._exchange, self._connection
        batch = exchange.begin(asked)
        try:
            opening = exchange.open(asked)
            if batch.pipelined:
                await connection.send(*opening, *batch.recipients)
            if not await self._open_transaction(opening, batch):
                return
            if not batch.pipelined:
                await connection.send(*batch.recipients)
                batch.written(connection.sent_at)
            await connection.follow(exchange.resume, exchange.receive_until())
            while connection.unsent:
                await connection.flush()
                await connection.follow(exchange.resume, exchange.receive_until())
            if exchange.error is not None:
                raise exchange.error
        except CONNECTION_ERRORS as error:
            exchange.connection_failed(error)

    async def _open_transaction(self, opening: list[wire.Command], batch: RecipientBatch) -> bool:
        """Receive the replies to RSET and MAIL; False if the batch ends with them."""
        exchange, connection = self._exchange, self._connection
        for command in opening:
            if not batch.pipelined:
                await connection.send(command)
            before = connection.conversation.opening_reply
            turn = await connection.receive_reply(until=batch.until)
            exchange.opening_replied(turn, before, batch)
            if batch.refusal is not None and (turn.reply.code == 421 or not batch.pipelined):
                exchange.refused()
                return False
        if batch.refusal is None:
            batch.opened()
        return True

    async def _prove(self) -> bool:
        """Prove the held verdicts by a silence before the next command; False if that fails."""
        exchange, connection = self._exchange, self._connection
        if self._session.must_prove:
            try:
                until = exchange.begin_quiet()
                if until is None:
                    await connection.flush()
                    until = connection.deadline(float("inf"))
                await connection.receive_until(exchange.while_silent, until)
                if exchange.error is not None:
                    raise exchange.error
            except CONNECTION_ERRORS as error:
                exchange.connection_failed(error)
                return False
        return True

    async def _continue_in_tls(self) -> None:
        """Start TLS, as the host demands. If that fails, the recipients that wait for it fail."""
        session, connection, recorder = self._session, self._connection, self._session.recorder
        batch = session.begin_tls()
        cause, said_before = None, len(recorder.preamble)
        try:
            refusal = await start_tls(
                connection, session.host.helo_name, recorder.preamble, until=batch.until
            )
        except Overdue:
            session.expire_tls()
            return
        except CONNECTION_ERRORS as error:
            cause = cause_of(error, Step.STARTTLS)
            if isinstance(error, ConnectionLost) and len(recorder.preamble) == said_before:
                # It hung up right after its demand: others are asked on a fresh connection.
                batch.began_anew()
        else:
            if refusal is not None:
                reading = session.host.read(Step.STARTTLS, refusal.reply)
                cause = refused_command(refusal, reading)
        session.end_tls(cause)
