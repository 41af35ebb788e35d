"""Base of objects that are closed at the end of an `async with` block."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """A reader, consumer or the like that holds resources of a broker until it is closed."""

    @abstractmethod
    async def close(self) -> None:
        """Release the broker's resources."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
