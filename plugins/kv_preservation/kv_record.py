"""Under which weights the KV of a prefix was computed: what makes reuse of stale KV visible.

The record is kept by tokens alone, never by salt, so that it also sees a server that ignores salts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

BLOCK_TOKENS = 64
#: About 150 MB; the record covers MAX_BLOCKS * BLOCK_TOKENS tokens, oldest forgotten first.
MAX_BLOCKS = 1_000_000

#: One number per whole block of a prefix; each stands for all tokens up to its block's end.
Chain = tuple[int, ...]


class KVRecord:
    """Weight version by prefix, in whole blocks of `block_tokens` tokens."""

    def __init__(self, block_tokens: int = BLOCK_TOKENS, max_blocks: int = MAX_BLOCKS) -> None:
        self.block_tokens = block_tokens
        self._max_blocks = max_blocks
        self._versions: OrderedDict[int, str] = OrderedDict()

    def chain(self, tokens: Sequence[int], known: Chain = ()) -> Chain:
        """The chain of `tokens`; `known` is that of a prefix of them and is not made again."""
        chain = list(known)
        for start in range(len(chain) * self.block_tokens, len(tokens), self.block_tokens):
            block = tuple(tokens[start : start + self.block_tokens])
            if len(block) == self.block_tokens:
                chain.append(hash((chain[-1] if chain else 0, block)))
        return tuple(chain)

    def computed(self, chain: Chain, start: int, version_at: Callable[[int], str]) -> None:
        """The KV of all tokens from `start` on was computed, under `version_at(token)`.

        A block that began before `start` keeps its version: it is as old as its oldest token.
        """
        first = -(-start // self.block_tokens)
        for index in range(first, len(chain)):
            self._versions[chain[index]] = version_at(index * self.block_tokens)
            self._versions.move_to_end(chain[index])
        while len(self._versions) > self._max_blocks:
            self._versions.popitem(last=False)

    def stale_tokens(self, chain: Chain, num_cached: int, version: str) -> int:
        """How many of the first `num_cached` tokens were computed under another version.

        Counted in whole blocks; a block that is not on record counts as fresh.
        """
        blocks = chain[: num_cached // self.block_tokens]
        stale = sum(self._versions.get(block, version) != version for block in blocks)
        return stale * self.block_tokens
