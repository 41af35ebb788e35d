"""Names of topics that have a layout: `topic://tenant/namespace/name`, or those of ordinary topics.

A scalable topic has the same name under both domains, `topic://…` and `persistent://…`. Clients
look up its layout by the name that the application gave.
"""

from dataclasses import dataclass
from typing import Self

from magnetar.sdk.wire.errors import TopicNameError
from magnetar.sdk.wire.topic_name import PERSISTENT, TopicName

_SCHEME = "topic://"


def is_scalable_name(name: object) -> bool:
    """Return whether a name is of the form `topic://…`."""
    return isinstance(name, str) and name.startswith(_SCHEME)


@dataclass(frozen=True, slots=True)
class LayoutName:
    """A parsed name. `str()` gives the form that commands carry."""

    given: str
    whole: TopicName
    """The name under the domain `persistent`."""

    @classmethod
    def parse(cls, name: str) -> Self:
        """Parse a `topic://` name, or a full or short name of an ordinary persistent topic.

        Raises:
            TopicNameError: the name has another form, or is of a partition, a segment, or a topic
                that is not stored.
        """
        if is_scalable_name(name):
            try:
                whole = TopicName.parse(f"{PERSISTENT}://{name[len(_SCHEME) :]}")
            except TopicNameError as error:
                raise TopicNameError(
                    f"{name!r} is not of the form topic://tenant/namespace/name: {error}"
                ) from error
            given = f"{_SCHEME}{whole.tenant}/{whole.namespace}/{whole.local_name}"
        else:
            whole = TopicName.parse(name)
            given = str(whole)
        if whole.domain != PERSISTENT or whole.partition_index >= 0:
            raise TopicNameError(
                f"{name!r} has no layout: expected topic://tenant/namespace/name, or a persistent "
                "topic that is not a partition or segment of another"
            )
        return cls(given, whole)

    def __str__(self) -> str:
        return self.given
