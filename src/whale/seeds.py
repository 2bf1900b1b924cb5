"""Seeds as pure functions of what a sample is for, so that order, batching and replicas never change a draw."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def derive(*parts: int | str) -> int:
    """A 63-bit seed from any mix of numbers and words. Same parts, same seed, on every machine."""
    text = "\x1f".join(f"{type(part).__name__[0]}{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def shuffled(items: Sequence[T], *parts: int | str) -> list[T]:
    """A copy in an order that depends on the seed parts alone."""
    copy = list(items)
    random.Random(derive(*parts)).shuffle(copy)
    return copy
