"""What the policies of a topic may ask of each message beyond its checksum."""

from typing import TYPE_CHECKING

from magnetar.broker.base.errors import BrokerMetadataError, NotAllowedError
from magnetar.sdk.wire import MessageMetadata, Send, split_payload

if TYPE_CHECKING:
    from magnetar.broker.topic.publish_batch import PublishBatch


class EncryptionCheck:
    """Messages must be encrypted: of a topic that requires it, or of a producer that encrypts."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def __call__(
        self,
        batch: "PublishBatch",
        send: Send,
        metadata: MessageMetadata,
        payload: bytes,
    ) -> None:
        if not metadata.encryption_keys:
            raise BrokerMetadataError(
                f"{self._topic} requires encryption: the message of producer "
                f"{batch.producer_name} with sequence id {send.sequence_id} has no encryption keys"
            )


class SizeCheck:
    """Messages of a topic may not be larger than its policy says. Chunks are taken as they are."""

    def __init__(self, topic: str, bytes_max: int) -> None:
        self._topic = topic
        self._bytes_max = bytes_max

    def __call__(
        self,
        batch: "PublishBatch",
        send: Send,
        metadata: MessageMetadata,
        payload: bytes,
    ) -> None:
        if len(payload) <= self._bytes_max or metadata.num_chunks_from_msg > 1:
            return
        _, body_at = split_payload(payload)
        size = len(payload) - body_at
        if size > self._bytes_max:
            raise NotAllowedError(
                f"{self._topic}: the message has {size} bytes; the topic's limit is "
                f"{self._bytes_max}"
            )
