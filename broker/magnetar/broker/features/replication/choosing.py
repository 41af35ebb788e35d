"""The choice of entries of a topic that go to another cluster. Pure.

Source: geo-replication sheet, section 6.
"""

from magnetar.sdk.wire import MessageMetadata


def goes_to(remote: str, metadata: MessageMetadata) -> bool:
    """Whether an entry with this metadata goes to a cluster.

    Copies never travel on, whatever lists say: there are no loops. Markers are the broker's own.
    """
    if metadata.HasField("replicated_from") or metadata.HasField("marker_type"):
        return False
    return not metadata.replicate_to or remote in metadata.replicate_to
