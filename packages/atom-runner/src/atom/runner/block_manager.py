"""Pages of the KV cache: who holds which, and which can be taken.

Block 0 takes the writes of padding rows. No request ever owns it, so a padding row cannot touch a real entry.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from atom.runner.errors import KVCacheError
from atom.runner.prefix_cache import ROOT, PrefixCache, block_digest

if TYPE_CHECKING:
    from atom.runner.request import Request

PADDING_BLOCK = 0


class BlockManager:
    """Hands out blocks by reference count and finds those that already hold a prompt's beginning.

    A block nobody holds is free. It keeps what it holds until it is taken for something else, longest unused
    first, so a free block may still be found by its contents.
    """

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        """`num_blocks` blocks, numbered from 1.

        Raises:
            KVCacheError: there would be none.
        """
        if num_blocks < 1:
            raise KVCacheError(f"num_kv_blocks={num_blocks}: must be at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self._prefixes = PrefixCache()
        self._references = [0] * (num_blocks + 1)
        self._free = OrderedDict.fromkeys(range(1, num_blocks + 1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def capacity(self) -> int:
        """Tokens that one request alone can have in the cache."""
        return self.num_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def reuse_prefix(self, request: Request) -> None:
        """Start a request that holds no blocks with those that already hold its beginning.

        At least one token is left to compute, since its logits are wanted.
        """
        request.num_computed = request.num_reused = request.num_registered = 0
        if not self.prefix_caching:
            return
        for index in range((len(request.token_ids) - 1) // self.block_size):
            block = self._prefixes.find(self._digest(request, index))
            if block is None:
                break
            self._hold(block)
            request.blocks.append(block)
        request.num_registered = len(request.blocks)
        request.num_computed = request.num_reused = len(request.blocks) * self.block_size

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Give `request` the blocks its first `num_tokens` tokens need. False: too few are free, nothing
        changed."""
        missing = self.blocks_for(num_tokens) - len(request.blocks)
        if missing <= 0:
            return True
        if missing > len(self._free):
            return False
        for _ in range(missing):
            block, _ = self._free.popitem(last=False)
            self._prefixes.forget(block)
            self._references[block] = 1
            request.blocks.append(block)
        return True

    def register(self, request: Request) -> None:
        """Make the blocks that computed tokens have filled findable by later requests."""
        if not self.prefix_caching:
            return
        for index in range(request.num_registered, request.num_computed // self.block_size):
            self._prefixes.remember(self._digest(request, index), request.blocks[index])
            request.num_registered = index + 1

    def release(self, request: Request) -> None:
        """Take all blocks back. The end of a sequence is given to others before its beginning."""
        for block in reversed(request.blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None
                if block not in self._prefixes:
                    # Nobody can find what it holds: use it up before blocks that somebody may.
                    self._free.move_to_end(block, last=False)
        request.blocks.clear()
        request.num_computed = request.num_registered = 0

    def forget_prefixes(self) -> None:
        """Drop all reuse: the cache's contents can no longer be trusted."""
        self._prefixes.clear()

    def _hold(self, block: int) -> None:
        if self._references[block] == 0:
            del self._free[block]
        self._references[block] += 1

    def _digest(self, request: Request, index: int) -> bytes:
        digests = request.digests
        while len(digests) <= index:
            start = len(digests) * self.block_size
            parent = digests[-1] if digests else ROOT
            digests.append(block_digest(parent, request.token_ids[start : start + self.block_size]))
        return digests[index]
