"""What a router's servers report of themselves, read at an interval, off the path of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from miles_periodic.hooks.values import ServerState

READ_INTERVAL_SECONDS = 2.0
#: A server that computes answers late; it is not taken for dead, its last load stays.
READ_TIMEOUT_SECONDS = 5.0
#: Where releases of the server tell their load, newest first.
LOAD_PATHS = ("/v1/loads?include=core", "/get_load")
VERSION_PATH = "/model_info"
#: In how many readings in a row a server's weights must be behind by number: an update reaches the
#: servers one after the other, and no rollout should move for that.
READINGS_BEHIND = 2


@dataclass(slots=True)
class _Reading:
    """The last that a server said; `is_down` from a failure until it answers again."""

    state: ServerState
    load_path: str = LOAD_PATHS[0]
    has_answered: bool = False
    is_down: bool = False
    num_behind: int = 0

    def with_load(self, load: int) -> ServerState:
        """The state with a router's count; of one request to the next few counts differ."""
        if self.state.load != load:
            self.state = replace(self.state, load=load)
        return self.state


@dataclass(slots=True)
class ServerWatch:
    """The servers of one router. say: takes a line for the user."""

    router: Any
    say: Callable[[str], None]
    _said: set[str] = field(default_factory=set)
    _readings: dict[str, _Reading] = field(default_factory=dict)
    _first: frozenset[str] = frozenset()
    _reader: asyncio.Task | None = None

    def choices(self) -> list[ServerState]:
        """The servers that can be chosen, by url; empty where none can.

        Those that the router took for dead stay out; those that failed here, until they answer;
        those that joined after the first request, until they were read; those whose weights are
        behind, as long as others are not.
        """
        counts = self.router.worker_request_counts
        dead = self.router.dead_workers
        up = {u: r for u in sorted(counts) if u not in dead and not (r := self._reading(u)).is_down}
        known = {u: r for u, r in up.items() if r.has_answered or u in self._first} or up
        current = {u: r for u, r in known.items() if r.num_behind < READINGS_BEHIND} or known
        return [reading.with_load(counts[url]) for url, reading in current.items()]

    def _reading(self, url: str) -> _Reading:
        if url not in self._readings:
            self._readings[url] = _Reading(ServerState(url))
        return self._readings[url]

    def say_once(self, text: str) -> None:
        """Tell the user something that stays true."""
        if text not in self._said:
            self._said.add(text)
            self.say(text)

    def failed(self, url: str) -> None:
        """A request could not reach a server."""
        self._reading(url).is_down = True

    def is_unreachable(self, error: Exception) -> bool:
        """Whether an error of the router's client says that the server is gone."""
        import httpx

        gone = (httpx.ConnectError, httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)
        return isinstance(error, gone)

    def keep_reading(self) -> None:
        """Start reading the servers on this event loop, unless it goes on already."""
        if self._reader is None:
            self._first = frozenset(self.router.worker_request_counts)
        if self._reader is None or self._reader.done():
            self._reader = asyncio.get_running_loop().create_task(self._read_on())

    async def _read_on(self) -> None:
        import httpx

        under_way: dict[str, asyncio.Task] = {}
        async with httpx.AsyncClient(timeout=READ_TIMEOUT_SECONDS) as client:
            while True:
                for url in tuple(self.router.worker_request_counts):
                    if url not in under_way or under_way[url].done():
                        under_way[url] = asyncio.ensure_future(self._read(client, url))
                await asyncio.sleep(READ_INTERVAL_SECONDS)

    async def _read(self, client: Any, url: str) -> None:
        """Read one server; a failure marks it down, a late answer leaves what is known."""
        import httpx

        reading = self._reading(url)
        try:
            load = await self._load(client, url, reading)
            version = (await client.get(url + VERSION_PATH)).json().get("weight_version")
        except httpx.TimeoutException:
            return
        except httpx.TransportError as error:
            reading.is_down = reading.is_down or self.is_unreachable(error)
            return
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self.say_once(f"request-routing: the load of {url} cannot be read: {error!r}")
            reading.has_answered = True
            return
        reading.state = ServerState(url, **load, weight_version=version and str(version))
        self._count_behind(url, reading)
        reading.has_answered, reading.is_down = True, False

    async def _load(self, client: Any, url: str, reading: _Reading) -> Mapping[str, Any]:
        """The load under the first path that the server knows, which is then kept."""
        for path in (reading.load_path, *LOAD_PATHS):
            response = await client.get(url + path)
            if response.status_code == 200:
                reading.load_path = path
                return load_in(response.json())
        return {}

    def _count_behind(self, url: str, reading: _Reading) -> None:
        """Note whether the weights of a server that was just read are older than another's."""
        others = {u: r.state.weight_version for u, r in self._readings.items() if not r.is_down}
        if url not in urls_behind({**others, url: reading.state.weight_version}):
            reading.num_behind = 0
        elif is_number(reading.state.weight_version):
            reading.num_behind += 1
        else:  # An update never takes a number away: the server was started anew.
            reading.num_behind = READINGS_BEHIND


def load_in(reported: Any) -> dict[str, Any]:
    """The load that a server reports over all its ranks, in either of its forms.

    Raises KeyError, TypeError or AttributeError where it is none.
    """
    ranks = reported["loads"] if isinstance(reported, dict) else reported
    waiting = sum(int(rank["num_waiting_reqs"]) for rank in ranks)
    running = sum(
        int(rank["num_running_reqs"])
        if "num_running_reqs" in rank
        else int(rank["num_reqs"]) - int(rank["num_waiting_reqs"])
        for rank in ranks
    )
    used = max((float(rank.get("token_usage") or 0.0) for rank in ranks), default=0.0)
    return {
        "queue_depth": max(0, waiting),
        "running_requests": max(0, running),
        "kv_use": min(1.0, max(0.0, used)),
    }


def urls_behind(versions: Mapping[str, str | None]) -> set[str]:
    """Servers whose weights are older than the newest that any of them reports.

    Versions are counted numbers in Miles; a text that is none (`default`: weights that no update
    has reached) is behind every number. Where no server has a number, none is behind.
    """
    numbers = {url: _number(version) for url, version in versions.items() if version is not None}
    newest = max(numbers.values(), default=-1)
    return {url for url, number in numbers.items() if number < newest}


def _number(version: str) -> int:
    return int(version) if is_number(version) else -1


def is_number(version: str | None) -> bool:
    """Whether a weight version is one that an update set."""
    return version is not None and version.isascii() and version.isdecimal()
