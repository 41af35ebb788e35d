"""The entries of a slice through a broker: for networks where executors cannot reach bookies.

Each slice has a blocking connection: lookup, a non-durable subscription from the slice's first
entry on, and messages within permits until the slice's last entry has come. The broker sends
entries as they are stored, so all further steps are the same as with bookies. Brokers leave out
entries that are not messages of a producer, so entries may be missing in between. They also leave
out entries that expire (TTL) during the read; a new consumer gets these.

A task waits for brokers that restart, and for topics that move, as the driver does: up to
`PATIENCE_S` since the last entry came. An error that waiting cannot mend ends the task at once.
"""

import logging
import random
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from magnetar.arrow.stored.errors import (
    CorruptDataError,
    DataLossError,
    SilentBrokerError,
    UnreachableError,
)
from magnetar.arrow.stored.patience import PATIENCE_S, Patience
from magnetar.arrow.stored.slices import LedgerPart
from magnetar.sdk.connection import CLIENT_VERSION, PROTOCOL_VERSION
from magnetar.sdk.message_id import signed
from magnetar.sdk.ports import Clock, SystemClock
from magnetar.sdk.service_url import Address, ServiceUrl
from magnetar.sdk.settings import ClientSettings
from magnetar.sdk.tls import tls_context
from magnetar.sdk.wire.errors import MalformedPayloadError, SdkError, service_error
from magnetar.sdk.wire.frames import (
    FRAME_BYTES_MAX,
    FrameDecoder,
    check_checksum,
    encode_command,
    messages_in,
)
from magnetar.sdk.wire.pulsar_pb2 import (
    BaseCommand,
    CommandConnect,
    CommandFlow,
    CommandGetLastMessageId,
    CommandGetLastMessageIdResponse,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandPong,
    CommandSubscribe,
    MessageIdData,
    ServerError,
)

_log = logging.getLogger(__name__)

_PERMITS = 4_000
"""Messages that the broker may send ahead."""

_HOPS_MAX = 5
_READ_BYTES = 1 << 20
_IDLE_S = 2.0
"""Silence, in seconds, after which the broker is asked whether any message is left."""

_SILENT_ROUNDS_MAX = 30
"""Most silent rounds in a row while the broker says that there is more: a minute."""

_REREADS_MAX = 3
"""Most times that missing entries are requested again at one position, because they may have just
expired. If they still do not come, they are not messages."""

_MASK_64 = (1 << 64) - 1

_GONE = (ServerError.TopicNotFound, ServerError.SubscriptionNotFound)


class BrokerReads:
    """Reads of one topic or partition."""

    def __init__(
        self,
        topic: str,
        service_url: str,
        settings: ClientSettings,
        *,
        clock: Clock | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._topic = topic
        self._url = ServiceUrl.parse(service_url)
        self._settings = settings
        self._link: _Link | None = None
        self._patience = Patience(clock or SystemClock(), pause)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def entries(self, part: LedgerPart) -> Iterator[tuple[int, list[bytes]]]:
        """Yield runs of payloads in order, each with the id of its first entry.

        Raises:
            DataLossError: the topic does not exist, or begins after the slice.
            CorruptDataError: a checksum does not match.
            UnreachableError: no broker serves the topic, and none did within `PATIENCE_S`.
            SilentBrokerError: the broker does not send an entry that it says exists.
        """
        rereads = 0
        self._patience.begin(PATIENCE_S)
        try:
            while True:
                before = part.first
                try:
                    for entry_id, payload in self._received(part, rereads):
                        part = replace(part, first=entry_id + 1)
                        rereads = 0
                        yield entry_id, [payload]
                    self.close()  # closing the connection drops the consumer and its messages
                    return
                except _PassedError:
                    self.close()
                    rereads += 1
                except (OSError, _AwayError, SilentBrokerError, _RefusalError) as error:
                    # The topic may have moved, or its broker is restarting. Brokers also end
                    # connections that do not answer their pings: this process does not answer while
                    # Spark's sink is busy.
                    self.close()
                    if part.first > part.last:
                        return
                    if part.first > before:
                        self._patience.begin(PATIENCE_S)
                    elif not self._waited(error):
                        raise
        except _RefusalError as refusal:
            self.close()
            where = f"{self._topic}: {refusal.error}"
            if refusal.code in _GONE:
                raise DataLossError(where) from refusal
            raise UnreachableError(where) from refusal
        except (OSError, SdkError) as error:
            self.close()
            if isinstance(error, (DataLossError, CorruptDataError, UnreachableError)):
                raise
            raise UnreachableError(f"{self._topic}: {error or type(error).__name__}") from error
        except GeneratorExit:
            self.close()
            raise

    def _waited(self, error: Exception) -> bool:
        """Wait after an error. Return False if waiting does not help, or the time is up."""
        # For a silent broker, this task has waited already.
        if isinstance(error, SilentBrokerError) or not _may_pass(error):
            return False
        if not self._patience.has_waited:
            _log.warning("%s: waiting up to %d s: %s", self._topic, PATIENCE_S, error)
        return self._patience.wait()

    def first_held(self, part: LedgerPart) -> int:
        """Return the first entry of the part: brokers do not say which entries they hold."""
        return part.first

    def _received(self, part: LedgerPart, rereads: int) -> Iterator[tuple[int, bytes]]:
        """Yield ids and payloads of the entries that the broker sends.

        Args:
            rereads: how often the first entry has not come before.

        Raises:
            _PassedError: messages may have expired; the rest is to be read again.
        """
        link = self._opened()
        link.subscribe(self._topic, part.ledger_id, part.first)
        wanted = (part.ledger_id, part.last)
        seen = (part.ledger_id, part.first - 1)
        silent_rounds = 0
        while True:
            arrived = link.entries()
            silent_rounds = silent_rounds + 1 if link.is_idle else 0
            if not arrived and link.is_idle:
                # A slow broker is silent, too. The read may stop before the end of the slice only
                # if it has all messages of the topic: then the rest of the slice is not messages.
                last = link.last_message()
                if last < wanted and last <= seen:
                    self._check_there(link, part)
                    return
                self._check_not_passed(link, part, seen, rereads)
                if silent_rounds >= _SILENT_ROUNDS_MAX:
                    raise SilentBrokerError(
                        f"{self._topic}: the broker says that message {last[0]}:{last[1]} is "
                        f"there, and sends nothing behind {seen[0]}:{seen[1]}"
                    )
            has_asked = False
            for ledger_id, entry_id, payload in arrived:
                at = (ledger_id, entry_id)
                if at < (part.ledger_id, part.first):
                    continue
                if at != (seen[0], seen[1] + 1) and not has_asked:
                    # Once for all that have arrived: the consumer's position only moves forward.
                    has_asked = self._check_not_passed(link, part, seen, rereads)
                if at > wanted:
                    self._check_there(link, part)
                    return
                if not check_checksum(payload):
                    raise CorruptDataError(
                        f"{self._topic}: message {ledger_id}:{entry_id}: the checksum does not "
                        f"match"
                    )
                seen = at
                yield entry_id, payload
                if at == wanted:
                    return

    def _check_not_passed(
        self, link: "_Link", part: LedgerPart, seen: tuple[int, int], rereads: int
    ) -> bool:
        """Check that the broker did not move the consumer over the entries after `seen`.

        Entries that were not sent are not messages, or they expired. If they expired, the broker
        moved the consumer although it acknowledges nothing, and a consumer that begins there gets
        them. Brokers also move a consumer that begins with entries that are not messages: hence the
        limit.

        Returns whether the broker was asked.

        Raises:
            _PassedError: the broker has moved the consumer.
        """
        missing = (seen[0], seen[1] + 1)
        if missing == (part.ledger_id, part.first) and rereads >= _REREADS_MAX:
            return False
        if link.mark_delete() >= missing:
            raise _PassedError
        return True

    def _check_there(self, link: "_Link", part: LedgerPart) -> None:
        """Check that the ledger still exists.

        Entries that were not sent are not messages, or they were deleted with their ledger, which
        readers do not retain.

        Raises:
            DataLossError: the ledger is gone.
        """
        if not link.has(self._topic, part.ledger_id, part.last):
            raise DataLossError(f"{self._topic}: ledger {part.ledger_id} is gone")

    def _opened(self) -> "_Link":
        if self._link is None:
            self._link = self._found()
        return self._link

    def _found(self) -> "_Link":
        """Connect to the broker that serves the topic."""
        tls = tls_context(self._settings) if self._url.is_tls else None
        problems: list[Exception] = []
        for service in self._url.addresses:
            try:
                return self._follow(service, tls)
            except (OSError, SdkError) as error:
                problems.append(error)
        said = "; ".join(
            f"{service}: {error or type(error).__name__}"
            for service, error in zip(self._url.addresses, problems, strict=True)
        )
        kind = _AwayError if any(map(_may_pass, problems)) else UnreachableError
        raise kind(f"{self._topic}: no broker: {said}")

    def _follow(self, service: Address, tls: ssl.SSLContext | None) -> "_Link":
        address, proxy_to, is_sure = service, "", False
        for _ in range(_HOPS_MAX):
            link = _Link(address, tls, self._settings, proxy_to)
            try:
                answer = link.lookup(self._topic, is_sure)
                url = answer.brokerServiceUrlTls if tls else answer.brokerServiceUrl
                target = ServiceUrl.parse(url).addresses[0]
                if answer.response == CommandLookupTopicResponse.Connect:
                    if target == address:
                        return link
                    if answer.proxy_through_service_url:
                        link.close()
                        return _Link(service, tls, self._settings, str(target))
                    link.close()
                    return _Link(target, tls, self._settings, "")
                is_sure = answer.authoritative
                address = target
            except BaseException:
                link.close()
                raise
            link.close()
        raise UnreachableError(f"{self._topic}: redirected {_HOPS_MAX} times")


class _RefusalError(Exception):
    """An error that the broker answered with."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.error = service_error(code, text)


class _AwayError(UnreachableError):
    """No broker answers now, but one may answer later."""


def _may_pass(error: Exception) -> bool:
    """Return whether a retry may succeed.

    An untrusted certificate, a port of another service, or a role without the right to read will
    not change.
    """
    if isinstance(error, _RefusalError):
        return error.error.retryable
    if isinstance(error, SdkError):
        return error.retryable
    return not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError)


class _PassedError(Exception):
    """The broker has moved the consumer on."""


class _Link:
    """One connection: requests, and the messages of one consumer at a time."""

    def __init__(
        self, address: Address, tls: ssl.SSLContext | None, settings: ClientSettings, proxy_to: str
    ) -> None:
        timeout_s = settings.connect_timeout_ms / 1000
        self._operation_timeout_s = settings.operation_timeout_ms / 1000
        made = socket.create_connection((address.host, address.port), timeout=timeout_s)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = made if tls is None else tls.wrap_socket(made, server_hostname=address.host)
        self._decoder = FrameDecoder(FRAME_BYTES_MAX)
        self._arrived: list[tuple[BaseCommand, bytes]] = []
        self._listener_name = settings.listener_name
        self.is_idle = False
        """Whether nothing arrived in the last wait."""
        self._next_id = 0
        self._consumer_id = 0
        self._used = 0
        """Permits that the broker has used since the last grant."""
        try:
            self._greet(settings, proxy_to)
        except BaseException:
            self.close()
            raise

    def _greet(self, settings: ClientSettings, proxy_to: str) -> None:
        self._send(
            BaseCommand(
                type=BaseCommand.CONNECT,
                connect=CommandConnect(
                    client_version=CLIENT_VERSION,
                    auth_method_name=settings.auth_method_name,
                    auth_data=settings.credentials or None,
                    protocol_version=PROTOCOL_VERSION,
                    proxy_to_broker_url=proxy_to or None,
                ),
            )
        )
        self._wait(BaseCommand.CONNECTED)

    def close(self) -> None:
        self._socket.close()

    def lookup(self, topic: str, is_sure: bool) -> CommandLookupTopicResponse:
        self._next_id += 1
        self._send(
            BaseCommand(
                type=BaseCommand.LOOKUP,
                lookupTopic=CommandLookupTopic(
                    topic=topic,
                    request_id=self._next_id,
                    authoritative=is_sure,
                    advertised_listener_name=self._listener_name or None,
                ),
            )
        )
        answer = self._wait(BaseCommand.LOOKUP_RESPONSE).lookupTopicResponse
        if answer.response == CommandLookupTopicResponse.Failed:
            raise _RefusalError(answer.error, str(answer.message))
        return answer

    def subscribe(self, topic: str, ledger_id: int, first: int) -> None:
        """Subscribe at an entry, and grant permits.

        Brokers may begin with the given position, or after it. So this requests the entry before,
        which the caller leaves out.
        """
        self._begin(topic, ledger_id, first - 1)
        self._used = 0
        self._permit(_PERMITS)

    def has(self, topic: str, ledger_id: int, entry_id: int) -> bool:
        """Return whether an entry still exists.

        A reader that begins with the entry is positioned right before it; if the entry's ledger is
        gone, before the first remaining ledger. The connection delivers no more messages after
        this.
        """
        self._begin(topic, ledger_id, entry_id)
        # A missing message of this ledger is no second sign: a ledger of markers and aborted
        # transactions looks the same. A broker that keeps the given position whether its ledger
        # exists or not cannot be told apart from one that has the ledger. Without any ledger there
        # is no position.
        return 0 <= self.mark_delete()[0] <= ledger_id

    def _begin(self, topic: str, ledger_id: int, entry_id: int) -> None:
        """Subscribe, without any permits."""
        self._next_id += 1
        self._consumer_id += 1
        start = MessageIdData(ledgerId=ledger_id, entryId=entry_id & _MASK_64)
        self._send(
            BaseCommand(
                type=BaseCommand.SUBSCRIBE,
                subscribe=CommandSubscribe(
                    topic=topic,
                    subscription=f"spark-reader-{random.SystemRandom().getrandbits(48):012x}",
                    subType=CommandSubscribe.Exclusive,
                    consumer_id=self._consumer_id,
                    request_id=self._next_id,
                    durable=False,
                    start_message_id=start,
                    force_topic_creation=False,
                ),
            )
        )
        self._wait(BaseCommand.SUCCESS)

    def entries(self) -> list[tuple[int, int, bytes]]:
        """Return the entries that have arrived; wait a little for them."""
        found = []
        taken = self._take(_IDLE_S)
        self.is_idle = not taken
        for command, payload in taken:
            if command.type == BaseCommand.MESSAGE:
                message = command.message
                if message.consumer_id != self._consumer_id:
                    continue
                place = message.message_id
                found.append((signed(place.ledgerId), signed(place.entryId), payload))
                try:
                    self._used += messages_in(payload)
                except MalformedPayloadError:
                    self._used += 1  # the reader of the payload reports the error
            elif command.type == BaseCommand.CLOSE_CONSUMER:
                raise ConnectionError("the broker has closed the consumer: the topic is moving")
        if self._used >= _PERMITS // 2:
            self._permit(self._used)
            self._used = 0
        return found

    def last_message(self) -> tuple[int, int]:
        """Return the last message of the topic. Only called while nothing arrives."""
        place = self._last_message().last_message_id
        return signed(place.ledgerId), signed(place.entryId)

    def mark_delete(self) -> tuple[int, int]:
        """Return the position up to which everything counts as acknowledged; (-1, -1) if
        unknown."""
        answer = self._last_message()
        if not answer.HasField("consumer_mark_delete_position"):
            return -1, -1
        place = answer.consumer_mark_delete_position
        return signed(place.ledgerId), signed(place.entryId)

    def _last_message(self) -> CommandGetLastMessageIdResponse:
        self._next_id += 1
        self._send(
            BaseCommand(
                type=BaseCommand.GET_LAST_MESSAGE_ID,
                getLastMessageId=CommandGetLastMessageId(
                    consumer_id=self._consumer_id, request_id=self._next_id
                ),
            )
        )
        answer = self._wait(BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
        return answer.getLastMessageIdResponse

    def _permit(self, messages: int) -> None:
        self._send(
            BaseCommand(
                type=BaseCommand.FLOW,
                flow=CommandFlow(consumer_id=self._consumer_id, messagePermits=messages),
            )
        )

    def _send(self, command: BaseCommand) -> None:
        self._socket.sendall(encode_command(command))

    def _take(self, timeout_s: float) -> list[tuple[BaseCommand, bytes]]:
        """Return what has arrived except answers; empty when the time is up."""
        if not self._arrived:
            self._receive(timeout_s)
        taken, self._arrived = self._arrived, []
        return taken

    def _wait(self, kind: int) -> BaseCommand:
        """Return the answer to the one outstanding request; keep messages for later."""
        while True:
            for at, (command, _) in enumerate(self._arrived):
                if command.type == kind:
                    del self._arrived[at]
                    return command
                if command.type == BaseCommand.ERROR:
                    del self._arrived[at]
                    raise _RefusalError(command.error.error, str(command.error.message))
            if not self._receive(self._operation_timeout_s):
                raise TimeoutError(f"no answer within {self._operation_timeout_s} s")

    def _receive(self, timeout_s: float) -> bool:
        """Wait for bytes; return False when the time is up."""
        self._socket.settimeout(timeout_s)
        try:
            data = self._socket.recv(_READ_BYTES)
        except TimeoutError:
            return False
        finally:
            self._socket.settimeout(self._operation_timeout_s)
        if not data:
            raise ConnectionError("the broker has closed the connection")
        for command, payload in self._decoder.feed(data):
            if command.type == BaseCommand.PING:
                self._send(BaseCommand(type=BaseCommand.PONG, pong=CommandPong()))
            else:
                self._arrived.append((command, payload))
        return True
