"""Termination of a topic: it takes no more messages, and what it holds stays readable."""

import structlog

from magnetar.broker.base.errors import BrokerMetadataError, ServiceNotReadyError
from magnetar.broker.topic import Topic
from magnetar.ledger.errors import LedgerError, LogClosedError, LogFencedError
from magnetar.ledger.position import Position

_log = structlog.get_logger()


async def terminate(topic: Topic) -> Position:
    """Terminate the topic and return the position of its last message. Repeated calls return the
    same.

    Pending publishes are stored and answered first. Producers are told to connect again, and then
    learn of the termination; those that connect too early wait for it. A SEND that arrives too late
    is answered only by the end of its producer. A client that learned of the termination by
    SEND_ERROR would take its producer for closed, and leave its pending messages to a timeout.
    `Topic.log_ended` notifies consumers that have everything.

    Raises:
        ServiceNotReadyError: the topic was closed meanwhile; ask its owner.
        BrokerMetadataError: it is unknown whether the topic is terminated; call again.
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
