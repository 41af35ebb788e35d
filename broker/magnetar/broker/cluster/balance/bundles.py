"""Bundles: the hash ranges into which a namespace is divided; the unit of ownership. Pure.

The hash of a topic is the CRC32 (zlib's) of its full name in UTF-8, an unsigned 32-bit number. A
layout is the list of boundaries of one namespace: it begins with 0x00000000, ends with 0xffffffff,
and grows strictly. Bundle i reaches from boundary i, inclusive, to boundary i + 1, exclusive; the
last one includes its upper boundary. So each hash is in exactly one bundle, whatever the layout.

A layout changes only by splitting one bundle in two. Bundles are never merged, and a boundary never
disappears. So an old layout is recognisable: each of its bundles is either in the new one or
covered exactly by bundles of the new one.

Source: managed-ledger sheet, section 11; HTTP sheet, section 8.1.
"""

import re
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Self

from magnetar.sdk.wire import TopicName

HASH_MIN = 0x00000000
HASH_MAX = 0xFFFFFFFF

LEASES_ROOT = "/namespace"

_NAME = re.compile(r"0x([0-9a-f]{8})_0x([0-9a-f]{8})")


class BundleError(ValueError):
    """A boundary list or a name is invalid, or a bundle cannot be split."""


def hash_of(topic: TopicName | str) -> int:
    """Return the position of a topic on the ring: 0 to 0xffffffff."""
    return zlib.crc32(str(topic).encode())


@dataclass(frozen=True, slots=True, order=True)
class Bundle:
    """A range of hashes from `lower`, inclusive, to `upper`, exclusive; the last one includes
    `upper`."""

    lower: int
    upper: int

    def __post_init__(self) -> None:
        if not HASH_MIN <= self.lower < self.upper <= HASH_MAX:
            raise BundleError(
                f"a bundle must range from a lower to a higher hash, got {self.lower:#x} to "
                f"{self.upper:#x}"
            )

    @classmethod
    def parse(cls, name: str) -> Self:
        """Parse `0x00000000_0x40000000`.

        Raises:
            BundleError: another shape.
        """
        match = _NAME.fullmatch(name)
        if match is None:
            raise BundleError(
                f"{name!r} is not a bundle: expected a hash range, as 0x00000000_0x40000000"
            )
        return cls(int(match[1], 16), int(match[2], 16))

    @property
    def name(self) -> str:
        """Name in paths and on the wire: `0x00000000_0x40000000`."""
        return f"{self.lower:#010x}_{self.upper:#010x}"

    def __str__(self) -> str:
        return self.name

    def __contains__(self, hashed: int) -> bool:
        return self.lower <= hashed < self.upper or hashed == self.upper == HASH_MAX


@dataclass(frozen=True, slots=True, order=True)
class BundleId:
    """One bundle of one namespace; `str()` gives `tenant/namespace/0x00000000_0x40000000`."""

    namespace: str
    """`tenant/namespace`."""
    bundle: Bundle

    @classmethod
    def parse(cls, name: str) -> Self:
        """Parse what `str()` gave.

        Raises:
            BundleError: another shape.
        """
        namespace, separator, bundle = name.rpartition("/")
        if not separator or namespace.count("/") != 1:
            raise BundleError(f"{name!r} is not of the form tenant/namespace/bundle")
        return cls(namespace, Bundle.parse(bundle))

    @property
    def lease_path(self) -> str:
        """Path of the lease of the bundle's owner."""
        return f"{LEASES_ROOT}/{self.namespace}/{self.bundle.name}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.bundle.name}"

    def holds(self, topic: TopicName) -> bool:
        """Whether the topic is in this bundle."""
        return topic.namespace_name == self.namespace and hash_of(topic) in self.bundle


@dataclass(frozen=True)
class Layout:
    """The boundaries of a namespace's bundles."""

    boundaries: tuple[int, ...]

    def __post_init__(self) -> None:
        bounds = self.boundaries
        if len(bounds) < 2 or bounds[0] != HASH_MIN or bounds[-1] != HASH_MAX:
            raise BundleError(
                "boundaries must begin with 0x00000000 and end with 0xffffffff, got "
                f"{[hex(each) for each in bounds[:8]]}"
            )
        for lower, upper in pairwise(bounds):
            if lower >= upper:
                raise BundleError(
                    f"boundaries must grow strictly, got {upper:#010x} after {lower:#010x}"
                )

    @classmethod
    def even(cls, bundles: int) -> Self:
        """Return a layout of `bundles` bundles of (nearly) the same width."""
        if bundles < 1:
            raise BundleError(f"a namespace must have at least one bundle, got {bundles}")
        return cls((*((i << 32) // bundles for i in range(bundles)), HASH_MAX))

    @cached_property
    def bundles(self) -> tuple[Bundle, ...]:
        """All bundles, in the order of their hashes."""
        return tuple(Bundle(lower, upper) for lower, upper in pairwise(self.boundaries))

    def __len__(self) -> int:
        return len(self.boundaries) - 1

    def __contains__(self, bundle: object) -> bool:
        return bundle in self._known

    @cached_property
    def _known(self) -> frozenset[Bundle]:
        return frozenset(self.bundles)

    def bundle_at(self, hashed: int) -> Bundle:
        """Return the bundle that contains a hash."""
        return self.bundles[min(bisect_right(self.boundaries, hashed), len(self)) - 1]

    def bundle_of(self, topic: TopicName) -> Bundle:
        """Return the bundle that contains a topic."""
        return self.bundle_at(hash_of(topic))

    def covering(self, bundle: Bundle) -> tuple[Bundle, ...]:
        """Return the bundles of this layout that cover `bundle`, which is of an older one."""
        return tuple(
            each for each in self.bundles if each.lower < bundle.upper and bundle.lower < each.upper
        )

    def split(self, bundle: Bundle, at: int) -> "Layout":
        """Split one bundle in two, below `at` and from `at` on; return the new layout.

        Raises:
            BundleError: no such bundle here, or `at` is not inside it.
        """
        if bundle not in self:
            raise BundleError(f"there is no bundle {bundle} in this layout")
        if not bundle.lower < at < bundle.upper:
            raise BundleError(f"{at:#010x} is not inside of {bundle}")
        return Layout(tuple(sorted((*self.boundaries, at))))


def halves(bundle: Bundle, at: int) -> tuple[Bundle, Bundle]:
    """Return the two bundles that a split at `at` makes.

    Raises:
        BundleError: `at` is not inside.
    """
    return Bundle(bundle.lower, at), Bundle(at, bundle.upper)


def middle_of_range(bundle: Bundle) -> int:
    """Return the hash at which a split gives two halves of the same width.

    Raises:
        BundleError: it is too narrow to be split.
    """
    at = bundle.lower + (bundle.upper - bundle.lower) // 2
    if at == bundle.lower:
        raise BundleError(f"{bundle} is too narrow to be split")
    return at


def middle_of_weights(bundle: Bundle, weights: Sequence[tuple[int, float]]) -> int:
    """Return the hash at which a split gives two halves of weights as equal as possible.

    `weights`: hash and weight, not negative, of each item in the bundle. Topics with weight 1 give
    halves with as many topics. Topics with their rates give halves with as much load.

    Raises:
        BundleError: everything has the same hash, so that no split separates it.
    """
    summed: dict[int, float] = {}
    for hashed, weight in weights:
        if hashed not in bundle:
            raise BundleError(f"the hash {hashed:#010x} is not in {bundle}")
        summed[hashed] = summed.get(hashed, 0.0) + weight
    hashes = sorted(summed)
    total = sum(summed.values())
    best: tuple[float, int] | None = None
    below = 0.0
    for previous, hashed in pairwise(hashes):
        below += summed[previous]
        if not bundle.lower < hashed < bundle.upper:
            continue
        difference = abs(total - 2 * below)
        if best is None or difference < best[0]:
            best = (difference, hashed)
    if best is None:
        raise BundleError(f"the topics of {bundle} cannot be divided by a split")
    return best[1]
