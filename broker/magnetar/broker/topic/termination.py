"""The end of a topic for good: it takes no more messages, and what it holds is read as before."""

import structlog

from magnetar.broker.base.errors import BrokerMetadataError, ServiceNotReadyError
from magnetar.broker.topic import Topic
from magnetar.ledger.errors import LedgerError, LogClosedError, LogFencedError
from magnetar.ledger.position import Position

_log = structlog.get_logger()


async def terminate(topic: Topic) -> Position:
    """End the topic behind its last message, whose position this returns; again: the same.

    Publishes under way are stored and answered first. Producers are told to come again, and learn
    it then; those that come too early wait for that. A SEND that comes too late is answered by that
    alone. A client that heard of the end by SEND_ERROR would take its producer for closed, and
    leave what it has pending to a timeout.
    Consumers that have everything are told by `Topic.log_ended`.

    Raises:
        ServiceNotReadyError: the topic went away meanwhile; ask its owner.
        BrokerMetadataError: nobody knows whether it is terminated; call again.
    """
    topic.line.is_terminating = True
    try:
        with topic.line.deciding_end():
            last = await topic.log.terminate()
    except (LogFencedError, LogClosedError) as error:
        raise ServiceNotReadyError(f"{topic.name} is not terminated: {error}") from error
    except LedgerError as error:
        raise BrokerMetadataError(
            f"{topic.name} may be terminated or not: {error}; terminate it again"
        ) from error
    _log.info("topic_terminated", topic=str(topic.name), last=str(last))
    for producer in list(topic.producers.values()):
        producer.close_by_broker()
    topic.log_ended()
    return last
