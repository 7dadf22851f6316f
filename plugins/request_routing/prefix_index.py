"""Which prefixes each server is expected to hold, by what was sent to it.

A prompt is cut into blocks; a block's hash covers its salt and everything before it, so that one
hash stands for one prefix. Per server the hashes lie in the order of their last use. Whenever a
prefix is used, so are all shorter ones of it, deepest first: what falls out first is always a tail,
as in the server's own cache, and the longest prefix held is found by bisection.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

_HASH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Path:
    """A prompt as the index sees it: one hash per prefix of 1, 2, … blocks."""

    hashes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a server is expected to hold of a path.

    num_tokens: a multiple of the block's size. last_used: when that prefix was last sent there.
    is_answered: whether it was computed for certain: every request with it was answered.
    """

    num_tokens: int = 0
    last_used: int = -1
    is_answered: bool = False


@dataclass(slots=True)
class _Server:
    """hash to the time of its last use, in that order; `forgotten`: all up to then is gone."""

    used: dict[int, int] = field(default_factory=dict)
    open_times: set[int] = field(default_factory=set)
    forgotten: int = -1


class PrefixIndex:
    """Prefixes per server, at most `max_tokens` of them each, the least recently used ones go.

    Memory: one dictionary entry with two integers per block, under 256 bytes.
    """

    def __init__(self, block_tokens: int, max_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.max_blocks = max(1, max_tokens // block_tokens)
        self._servers: dict[str, _Server] = {}
        self._now = 0

    def path(self, salt: str, tokens: Sequence[int]) -> Path:
        """The prefixes of a prompt; a last block that is not full is left out."""
        held = tokens if isinstance(tokens, array) else array("q", tokens)
        data, size = held.tobytes(), held.itemsize * self.block_tokens
        hashes, before = [], blake2b(salt.encode("utf-8", "surrogatepass")).digest()
        for start in range(0, len(data) - size + 1, size):
            digest = blake2b(data[start : start + size], key=before[:64], digest_size=_HASH_BYTES)
            before = digest.digest()
            hashes.append(int.from_bytes(before, "little"))
        return Path(tuple(hashes))

    def expected(self, url: str, path: Path) -> Expectation:
        """What the server at `url` is expected to hold of a path; never more than the path."""
        server = self._servers.get(url)
        if server is None or not path.hashes or not self._holds(server, path.hashes[0]):
            return Expectation()
        low, high = 1, len(path.hashes)
        while low < high:
            middle = (low + high + 1) // 2
            if self._holds(server, path.hashes[middle - 1]):
                low = middle
            else:
                high = middle - 1
        last_used = server.used[path.hashes[low - 1]]
        return Expectation(low * self.block_tokens, last_used, last_used not in server.open_times)

    def _holds(self, server: _Server, block: int) -> bool:
        return server.used.get(block, -1) > server.forgotten

    def sent(self, url: str, path: Path) -> int:
        """Note that a prompt goes to a server; returns the time, for `answered`."""
        server = self._servers.setdefault(url, _Server())
        self._now += 1
        for block in reversed(path.hashes[: self.max_blocks]):
            server.used.pop(block, None)
            server.used[block] = self._now
        while len(server.used) > self.max_blocks:
            del server.used[next(iter(server.used))]
        server.open_times.add(self._now)
        return self._now

    def answered(self, url: str, time: int, before: Expectation, cached_tokens: int | None) -> None:
        """Note the answer to what was sent at `time`, of which `before` was expected.

        Where the server had less in its cache than a prefix that it had certainly computed, that
        prefix was evicted or flushed, and so was all that was used no later.
        """
        server = self._servers.get(url)
        if server is None:
            return
        server.open_times.discard(time)
        is_less = cached_tokens is not None and cached_tokens < before.num_tokens - 1
        if is_less and before.is_answered:
            server.forgotten = max(server.forgotten, before.last_used)

    def forget(self, url: str) -> None:
        """Forget everything of a server: it failed, and its cache went with it."""
        self._servers.pop(url, None)

    def is_forgotten(self, url: str, time: int) -> bool:
        """Whether what was sent to a server at `time` is gone from it."""
        server = self._servers.get(url)
        return server is None or time <= server.forgotten

    def num_blocks(self) -> int:
        """Entries over all servers."""
        return sum(len(server.used) for server in self._servers.values())
