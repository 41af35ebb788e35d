"""What the searches for the beginnings of chunked messages have seen of the entries before. Pure.

A search goes backwards from the end of a message, through a great many entries if need be. Most are
read for nothing: producers that lost a connection leave ends without a beginning, and a topic may
have thousands. So a search leaves a note of what it has passed, and a later one for another message
goes on below that, or is not begun.

Ids and names are kept as hashes. If two of them collide, a search is longer, or a message without
a beginning is reported as if it had ended before.
"""

from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata

Place = tuple[int, int]
"""Ledger and entry id."""


class SearchedEntries:
    """The entries that searches have passed, and all after them up to the current one."""

    def __init__(self) -> None:
        self.floor: Place | None = None
        """The first of the entries; None before the first search."""
        self.is_all = False
        """Whether a search went through all entries before some entry of the slice, in vain."""
        self._begun: set[int] = set()
        """Messages whose chunks were passed, and not their end first; and dropped ones."""
        self._ended: set[int] = set()
        """Messages whose end was passed, after all their other chunks."""
        self._lowest: dict[int, int] = {}
        """Lowest sequence id of each producer."""

    def start(self, last: MessageMetadata, at: Place) -> Place | None:
        """Return where to search from for the beginning of a message, given its last chunk.

        Return None if there is none to be found: the message ended before, and this chunk was
        stored again; or its producer has stored an earlier message since.
        """
        name = hash(last.uuid)
        if name in self._begun:
            return at
        lowest = self._lowest.get(hash(last.producer_name), last.sequence_id)
        if name in self._ended or lowest < last.sequence_id:
            return None
        return self.floor or at

    def may_be_begun(self, uuid: str) -> bool:
        """Return whether chunks of a message were passed, or dropped."""
        return hash(uuid) in self._begun

    def begin(self, at: Place) -> None:
        """Note that a search begins before an entry of the slice."""
        if self.floor is None:
            self.floor = at

    def passed(self, at: Place, metadata: MessageMetadata) -> None:
        """Note an entry that a search has read."""
        if self.floor is not None and at >= self.floor:
            return
        self.floor = at
        self._note_producer(metadata)
        name = hash(metadata.uuid)
        if metadata.uuid and name not in self._ended:
            is_end = metadata.chunk_id == metadata.num_chunks_from_msg - 1
            (self._ended if is_end and name not in self._begun else self._begun).add(name)

    def read(self, metadata: MessageMetadata) -> None:
        """Note an entry of the slice, which follows those that were searched."""
        if self.floor is not None:
            self._note_producer(metadata)

    def dropped(self, uuid: str) -> None:
        """Note a message whose chunks in the slice were dropped: a search finds them."""
        self._begun.add(hash(uuid))

    def ended(self, uuid: str) -> None:
        """Note the end of a message in the slice."""
        if self.floor is not None:
            self._begun.discard(hash(uuid))
            self._ended.add(hash(uuid))

    def _note_producer(self, metadata: MessageMetadata) -> None:
        name, number = hash(metadata.producer_name), metadata.sequence_id
        self._lowest[name] = min(number, self._lowest.get(name, number))
