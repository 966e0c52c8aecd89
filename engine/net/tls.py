"""TLS over a byte channel, without checking the certificate.

The engine uses TLS only because a host demands it. It sends no secrets, and no verdict
depends on the host's certificate. So no name is checked, and old versions and weak keys
are accepted. Only finite-field Diffie-Hellman is refused: the server chooses the group,
and a group of 8192 bits would block the event loop for half a second.

OpenSSL works on two memory buffers. The octets go through the channel underneath, with
its deadlines. So nothing changes for connections in plain text.
"""

import ssl
from functools import cache

import trio

from .reactor import ByteChannel, OnOctets

OP_LEGACY_SERVER_CONNECT = 0x4  # for servers before RFC 5746; in ssl since Python 3.12
READ_OCTETS = 16 * 1024  # the largest TLS record
# Received without plain text. OpenSSL accepts 100 KB of certificates, and endless session tickets.
SILENT_OCTETS_MAX = 128 * 1024


@cache
def client_context() -> ssl.SSLContext:
    """Return the TLS context for hosts that demand TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.set_ciphers("DEFAULT:!kDHE:@SECLEVEL=0")
    context.options |= ssl.OP_NO_RENEGOTIATION | OP_LEGACY_SERVER_CONNECT
    return context


class TlsChannel:
    """A byte channel that encrypts over another channel, which it owns."""

    def __init__(self, line: ByteChannel) -> None:
        self._channel = line
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        # No server name is sent: the engine connects to addresses, and most mail clients
        # send none.
        self._tls = client_context().wrap_bio(self._incoming, self._outgoing)
        self._early = b""  # plain text that came with the end of the handshake
        self._ended = False  # the server sent close_notify
        self._silent_octets = 0  # received since the last plain text

    def follow(self, on_octets: OnOctets | None) -> None:
        self._channel.follow(on_octets)

    @property
    def arrived_at(self) -> float:
        return self._channel.arrived_at

    def silent_s(self) -> float:
        return 0.0 if self._early or self._incoming.pending else self._channel.silent_s()

    @property
    def version(self) -> str:
        """The protocol version, such as "TLS 1.3"."""
        return (self._tls.version() or "TLS").replace("TLSv", "TLS ")

    async def handshake(self, until: float) -> None:
        """Complete the TLS handshake before `until` (trio's clock).

        Raises trio.TooSlowError, ssl.SSLError if the handshake fails, or one of GONE.
        """
        while not self._shake():
            await self._send_out(until - trio.current_time())
            await self._channel.wait(until)
            octets = self._channel.receive()
            if octets is None:
                if trio.current_time() >= until:
                    raise trio.TooSlowError
            elif not octets:
                raise trio.BrokenResourceError("closed by the server")
            else:
                self._receive(octets)
        await self._send_out(until - trio.current_time())
        self._early = self._decrypted()

    def _shake(self) -> bool:
        """Continue the handshake with what has come; return whether it is complete."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def send_now(self, octets: bytes) -> int:
        return 0  # a TLS record must be sent whole

    async def send(self, octets: bytes, within_s: float) -> None:
        self._tls.write(octets)
        await self._send_out(within_s)

    async def _send_out(self, within_s: float) -> None:
        octets = self._outgoing.read()
        if octets and (sent := self._channel.send_now(octets)) < len(octets):
            await self._channel.send(octets[sent:], max(within_s, 0.0))

    async def wait(self, until: float) -> bool:
        return False if self._early or self._ended else await self._channel.wait(until)

    def receive(self) -> bytes | None:
        if self._early:
            early, self._early = self._early, b""
            return early
        if self._ended:
            return b""
        octets = self._channel.receive()
        if not octets:
            return octets
        self._receive(octets)
        decrypted = self._decrypted()
        return decrypted or (b"" if self._ended else None)

    def _receive(self, octets: bytes) -> None:
        self._silent_octets += len(octets)
        if self._silent_octets > SILENT_OCTETS_MAX:
            raise ssl.SSLError(
                f"more than {SILENT_OCTETS_MAX} octets of TLS without a word in them"
            )
        self._incoming.write(octets)

    def _decrypted(self) -> bytes:
        """Decrypt all complete records that have come."""
        pieces = []
        try:
            while piece := self._tls.read(READ_OCTETS):
                pieces.append(piece)
                self._silent_octets = 0
            self._ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._ended = True
        return b"".join(pieces)

    def interrupt(self) -> None:
        self._channel.interrupt()

    async def hang_up(self, within_s: float) -> bool:
        return await self._channel.hang_up(within_s)

    async def close(self) -> None:
        await self._channel.close()
