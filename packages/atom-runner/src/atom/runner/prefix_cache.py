"""Which full blocks hold which tokens, so that a later prompt with the same beginning need not compute it
again.

A block is known by the digest of its own tokens and of everything before them: a chain, so that equal tokens
at different places never meet.
"""

from __future__ import annotations

import hashlib
from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Digest = bytes

ROOT: Digest = b""
"""What the first block of a sequence follows."""


def block_digest(parent: Digest, token_ids: Sequence[int]) -> Digest:
    """Digest of a full block that follows `parent`. 128 bits: equal digests mean equal tokens."""
    return hashlib.blake2b(array("q", token_ids).tobytes(), digest_size=16, key=parent).digest()


class PrefixCache:
    """Digest to block and back. A block stays known until it is forgotten or given to other tokens."""

    def __init__(self) -> None:
        self._block_of: dict[Digest, int] = {}
        self._digest_of: dict[int, Digest] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def __contains__(self, block: int) -> bool:
        return block in self._digest_of

    def find(self, digest: Digest) -> int | None:
        """The block with these tokens, if one is known."""
        return self._block_of.get(digest)

    def remember(self, digest: Digest, block: int) -> None:
        """Make `block` findable. A second block with the same tokens stays unknown: the first one serves."""
        if digest not in self._block_of:
            self._block_of[digest] = block
            self._digest_of[block] = digest

    def forget(self, block: int) -> None:
        """`block` is about to hold other tokens."""
        digest = self._digest_of.pop(block, None)
        if digest is not None:
            del self._block_of[digest]

    def clear(self) -> None:
        """Forget everything."""
        self._block_of.clear()
        self._digest_of.clear()
