"""Lookup: finds the broker that serves a topic."""

from magnetar.sdk.connection import Connection, ConnectionPool
from magnetar.sdk.errors import BrokerUnavailableError, SdkError, service_error
from magnetar.sdk.service_url import Address, ServiceUrl
from magnetar.sdk.wire.pulsar_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
)

HOPS_MAX = 20
"""Redirects to follow before the client assumes that brokers redirect it in a circle."""


class Lookup:
    """Asks the brokers of the service URL; turns to the next one when one is not reachable."""

    def __init__(self, url: ServiceUrl, pool: ConnectionPool, *, listener_name: str) -> None:
        self._addresses = url.addresses
        self._is_tls = url.is_tls
        self._pool = pool
        self._listener_name = listener_name
        self._next = 0

    async def connection_for(self, topic: str) -> Connection:
        """Return a connection to the broker that owns the topic.

        Raises:
            ServiceError: the broker refused.
            BrokerUnavailableError: no broker is reachable, or they redirect in a circle.
        """
        service_address, connection = await self._service_connection()
        try:
            return await self._follow(topic, service_address, connection)
        except SdkError as error:
            if error.retryable:
                self._turn_from(service_address)
            raise

    async def _follow(
        self, topic: str, service_address: Address, connection: Connection
    ) -> Connection:
        """Ask for the owner, and follow the redirects in the answers."""
        authoritative = False
        for _ in range(HOPS_MAX):
            answer = await self._ask(connection, topic, authoritative)
            if answer.response == CommandLookupTopicResponse.Failed:
                raise service_error(answer.error, str(answer.message))
            address = self._address_in(topic, answer)
            if answer.response == CommandLookupTopicResponse.Connect:
                if answer.proxy_through_service_url:
                    if address == service_address:
                        return connection
                    return await self._pool.get(service_address, proxy_to=str(address))
                return await self._pool.get(address)
            authoritative = answer.authoritative
            connection = await self._pool.get(address)
        raise BrokerUnavailableError(
            f"{topic}: redirected {HOPS_MAX} times without finding a broker"
        )

    def _address_in(self, topic: str, answer: CommandLookupTopicResponse) -> Address:
        """Return the address in an answer. A client that uses TLS never continues without it."""
        url = answer.brokerServiceUrlTls if self._is_tls else answer.brokerServiceUrl
        if not url:
            how = "for" if self._is_tls else "without"
            raise BrokerUnavailableError(f"{topic}: its broker advertises no address {how} TLS")
        return ServiceUrl.parse(url).addresses[0]

    async def connection_to(self, url: str, url_tls: str, *, otherwise: Connection) -> Connection:
        """Return a connection to a broker that an answer names by its URLs; `otherwise` if it names
        none.

        Raises:
            ServiceError: the broker refused the client.
            BrokerUnavailableError: not reachable.
            InvalidUrlError: the URL cannot be used.
        """
        chosen = url_tls if self._is_tls else url
        if not chosen:
            return otherwise
        return await self._pool.get(ServiceUrl.parse(chosen).addresses[0])

    async def service_connection(self) -> Connection:
        """Return a connection to any broker, for requests that every broker can answer.

        Raises:
            ServiceError, BrokerUnavailableError
        """
        return (await self._service_connection())[1]

    async def partitions(self, topic: str, *, may_create: bool = True) -> int:
        """Return the number of partitions of a topic; 0 if it is not partitioned.

        Args:
            may_create: whether the broker may create the topic, if its namespace allows that.

        Raises:
            ServiceError, BrokerUnavailableError
        """
        service_address, connection = await self._service_connection()
        request_id = connection.next_request_id()
        try:
            command = await connection.request(
                request_id,
                BaseCommand(
                    type=BaseCommand.PARTITIONED_METADATA,
                    partitionMetadata=CommandPartitionedTopicMetadata(
                        topic=topic,
                        request_id=request_id,
                        metadata_auto_creation_enabled=may_create,
                    ),
                ),
            )
            answer = command.partitionMetadataResponse
            if answer.response == CommandPartitionedTopicMetadataResponse.Failed:
                raise service_error(answer.error, str(answer.message))
        except SdkError as error:
            if error.retryable:
                self._turn_from(service_address)
            raise
        return answer.partitions

    async def topics(self, namespace: str) -> list[str]:
        """Return the topics of a namespace (`tenant/namespace`) of both domains, with each
        partition.

        Raises:
            ServiceError, BrokerUnavailableError, OperationTimeoutError
        """
        service_address, connection = await self._service_connection()
        request_id = connection.next_request_id()
        try:
            command = await connection.request(
                request_id,
                BaseCommand(
                    type=BaseCommand.GET_TOPICS_OF_NAMESPACE,
                    getTopicsOfNamespace=CommandGetTopicsOfNamespace(
                        request_id=request_id,
                        namespace=namespace,
                        mode=CommandGetTopicsOfNamespace.ALL,
                    ),
                ),
            )
        except SdkError as error:
            if error.retryable:
                self._turn_from(service_address)
            raise
        return list(command.getTopicsOfNamespaceResponse.topics)

    async def _ask(
        self, connection: Connection, topic: str, authoritative: bool
    ) -> CommandLookupTopicResponse:
        request_id = connection.next_request_id()
        command = await connection.request(
            request_id,
            BaseCommand(
                type=BaseCommand.LOOKUP,
                lookupTopic=CommandLookupTopic(
                    topic=topic,
                    request_id=request_id,
                    authoritative=authoritative,
                    advertised_listener_name=self._listener_name or None,
                ),
            ),
        )
        return command.lookupTopicResponse

    def _turn_from(self, address: Address) -> None:
        """Ask another broker next time: this one is unreachable, or has no answer.

        A broker that has lost the metadata store may stay in that state for long. Another call may
        have turned from it already.
        """
        if self._addresses[self._next % len(self._addresses)] == address:
            self._next += 1

    async def _service_connection(self) -> tuple[Address, Connection]:
        failure: SdkError | None = None
        for _ in self._addresses:
            address = self._addresses[self._next % len(self._addresses)]
            try:
                return address, await self._pool.get(address)
            except SdkError as error:
                if not error.retryable:
                    raise
                failure = error
                self._turn_from(address)
        assert failure is not None
        raise failure
