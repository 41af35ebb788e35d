"""Cursors: the acknowledgements of a subscription, in memory and durable."""

from magnetar.cursors.ack_state import (
    BATCH_SIZE_MAX,
    WORDS_MAX,
    AckRange,
    AckSnapshot,
    AckState,
    BatchAck,
    LogShape,
    bits_from_words,
    words_from_bits,
)
from magnetar.cursors.cursor import Cursor, CursorStatistics
from magnetar.cursors.errors import (
    CorruptCursorRecordError,
    CursorClosedError,
    CursorError,
    CursorFencedError,
    CursorRecordError,
    CursorStateTooLargeError,
    CursorUnavailableError,
    InvalidCursorNameError,
    InvalidCursorNodeError,
    NoSuchCursorError,
    UnsupportedCursorRecordError,
)
from magnetar.cursors.node import (
    StoredCursor,
    copy_cursor,
    cursor_path,
    delete_unopened,
    list_cursors,
    read_stored,
)
from magnetar.cursors.save_pace import SavePace
from magnetar.cursors.saver import CursorLedgers, CursorLog
from magnetar.cursors.settings import CursorSettings
from magnetar.cursors.subscription_cursor import NonDurableCursor, SubscriptionCursor

__all__ = [
    "BATCH_SIZE_MAX",
    "WORDS_MAX",
    "AckRange",
    "AckSnapshot",
    "AckState",
    "BatchAck",
    "CorruptCursorRecordError",
    "Cursor",
    "CursorClosedError",
    "CursorError",
    "CursorFencedError",
    "CursorLedgers",
    "CursorLog",
    "CursorRecordError",
    "CursorSettings",
    "CursorStateTooLargeError",
    "CursorStatistics",
    "CursorUnavailableError",
    "InvalidCursorNameError",
    "InvalidCursorNodeError",
    "LogShape",
    "NoSuchCursorError",
    "NonDurableCursor",
    "SavePace",
    "StoredCursor",
    "SubscriptionCursor",
    "UnsupportedCursorRecordError",
    "bits_from_words",
    "copy_cursor",
    "cursor_path",
    "delete_unopened",
    "list_cursors",
    "read_stored",
    "words_from_bits",
]
