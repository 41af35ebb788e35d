"""Handshake of a connection to a bookie: both sides prove the cluster's shared secret. Pure.

    client                                       bookie
    AUTH  nonce c (32 bytes)          ──>
                                      <──  OK    nonce b (32 bytes)
    AUTH  HMAC(secret, "client" c b)  ──>
                                      <──  OK    HMAC(secret, "bookie" c b), or UNAUTHORIZED and
                                                 the end

Both sides prove that they know the secret, and neither sends it. The HMAC uses SHA-256. The words
"client" and "bookie" keep a proof of one side from being replayed as the other's. Later frames on
the connection cost nothing more; only TLS, if it is used, protects them. Layout:
docs/formats/bookie-frame.md.
"""

import hmac
import random
from collections.abc import Sequence

from magnetar.ledger.errors import BookieProtocolError, SecretRefusedError, SharedSecretConfigError
from magnetar.ledger.wire import RESPONSE, Frame, Op, Status, encode_frame

NONCE_BYTES = 32
PROOF_BYTES = 32
SECRET_BYTES_MIN = 32
"""An eavesdropper can try secrets offline: they must be too long to find that way."""
_OP_AT = 7
"""Offset of the operation in a frame's header."""
_CLIENT = b"magnetar client"
_BOOKIE = b"magnetar bookie"


_ADVICE = (
    "Put the secret of the other servers into it; for a standalone server remove the file, and it "
    "creates another"
)


def parse_secrets(data: bytes, *, where: str) -> tuple[bytes, ...]:
    """Parse the secrets of a file, one per line: this process proves the first, and accepts all.

    Raises:
        SharedSecretConfigError: there is none, or one is too short.
    """
    secrets = tuple(line.strip() for line in data.splitlines() if line.strip())
    if not secrets:
        raise SharedSecretConfigError(
            f"{where} holds no shared secret: expected one per line. {_ADVICE}"
        )
    if min(map(len, secrets)) < SECRET_BYTES_MIN:
        raise SharedSecretConfigError(
            f"a shared secret in {where} is shorter than {SECRET_BYTES_MIN} bytes. {_ADVICE}"
        )
    return secrets


def is_auth(head: bytes) -> bool:
    """Return whether a frame with this header belongs to a handshake."""
    return head[_OP_AT] == Op.AUTH


class ClientHandshake:
    """The handshake of the connecting side."""

    def __init__(self, secret: bytes, source: random.Random, *, is_optional: bool = False) -> None:
        """`is_optional`: accept a bookie that has no secret."""
        self._secret = secret
        self._is_optional = is_optional
        self._nonce = source.randbytes(NONCE_BYTES)
        self._expected: bytes | None = None

    def begin(self) -> bytes:
        """Return the first frame."""
        return encode_frame(Op.AUTH, request_id=0, ledger_id=0, body=self._nonce)

    def on_frame(self, frame: Frame) -> bytes | None:
        """Return the next frame to send. None if the handshake is done: the bookie has proven
        itself, or has no secret and needs none.

        Raises:
            SecretRefusedError: the bookie refuses this client, or does not know the secret.
        """
        if frame.op != Op.AUTH or not frame.is_response:
            raise SecretRefusedError("the bookie did not answer with a handshake")
        if frame.status == Status.BAD_REQUEST and self._is_optional and self._expected is None:
            return None  # The bookie has no secret, and takes requests on this connection.
        if frame.status != Status.OK:
            raise SecretRefusedError(frame.body.decode("utf-8", "replace"))
        if self._expected is None:
            if len(frame.body) != NONCE_BYTES:
                raise SecretRefusedError(f"a nonce of {len(frame.body)} bytes came")
            self._expected = _proof(self._secret, _BOOKIE, self._nonce, frame.body)
            body = _proof(self._secret, _CLIENT, self._nonce, frame.body)
            return encode_frame(Op.AUTH, request_id=1, ledger_id=0, body=body)
        if not hmac.compare_digest(frame.body, self._expected):
            raise SecretRefusedError("the bookie does not know the shared secret")
        return None


class BookieHandshake:
    """The handshake of the accepting side. `is_done` is set after the last answer."""

    def __init__(self, secrets: Sequence[bytes], source: random.Random) -> None:
        self._secrets = secrets
        self._nonce = source.randbytes(NONCE_BYTES)
        self._client_nonce: bytes | None = None
        self.is_done = False
        self.is_refused = False
        """Whether the connection must be closed after the answer."""

    def on_frame(self, frame: Frame) -> bytes:
        """Return the answer to a frame.

        Raises:
            BookieProtocolError: the frame is a response, or has a nonce of another length.
        """
        if frame.is_response:
            raise BookieProtocolError(f"a response (operation {frame.op}) was sent to a bookie")
        if frame.op != Op.AUTH:
            return self._refuse(
                frame,
                "this bookie requires proof of the shared secret: set shared_secret_file of "
                "[ledger] (MAGNETAR_LEDGER_SHARED_SECRET_FILE). A standalone or cluster keeps it "
                "as shared-secret in its data directory",
            )
        if self._client_nonce is None:
            if len(frame.body) != NONCE_BYTES:
                raise BookieProtocolError(f"a nonce of {len(frame.body)} bytes")
            self._client_nonce = frame.body
            return _answer(frame, Status.OK, self._nonce)
        matching = None
        for secret in self._secrets:
            proof = _proof(secret, _CLIENT, self._client_nonce, self._nonce)
            if hmac.compare_digest(proof, frame.body):
                matching = secret
        if matching is None:
            return self._refuse(frame, "the shared secret is not the one of this bookie")
        self.is_done = True
        body = _proof(matching, _BOOKIE, self._client_nonce, self._nonce)
        return _answer(frame, Status.OK, body)

    def _refuse(self, frame: Frame, text: str) -> bytes:
        self.is_refused = True
        return _answer(frame, Status.UNAUTHORIZED, text.encode())


def _answer(frame: Frame, status: Status, body: bytes) -> bytes:
    """Encode an answer. Its operation is AUTH, even to a request of another operation."""
    return encode_frame(
        Op.AUTH | RESPONSE,
        status=status,
        request_id=frame.request_id,
        ledger_id=frame.ledger_id,
        entry_id=frame.entry_id,
        body=body,
    )


def _proof(secret: bytes, side: bytes, client_nonce: bytes, bookie_nonce: bytes) -> bytes:
    return hmac.digest(secret, side + client_nonce + bookie_nonce, "sha256")
