"""What GitHub says of a pull request or issue: conditional requests, limits honoured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.upstream.rows import REPOSITORIES, Row

API_VARIABLE = "GITHUB_API_URL"
TOKEN_VARIABLES = ("GITHUB_TOKEN", "GH_TOKEN")
TIMEOUT_SECONDS = 20
#: A pause that the server asks for and that is no longer than this is waited for, once.
MAX_WAIT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Said:
    """What GitHub said of one number, and when.

    etag: what a later request names, to be answered with nothing where nothing changed.
    opened, merged, seen: ISO dates; merged is empty where it is not.
    """

    title: str
    state: str
    opened: str
    merged: str
    etag: str
    seen: str


class Unreachable(Exception):
    """No answer: there is no network, or no such server."""


class LimitReached(Exception):
    """The server answers no more before `until`, in seconds since the epoch."""

    def __init__(self, until: float) -> None:
        self.until = until
        super().__init__(until)


class NotFound(Exception):
    """GitHub knows no such number."""


class GitHub:
    """The API at $GITHUB_API_URL or api.github.com, with the token of the environment if any."""

    def __init__(
        self,
        environment: Mapping[str, str] = os.environ,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sleep, self._clock = sleep, clock
        token = next((environment[n] for n in TOKEN_VARIABLES if environment.get(n)), "")
        headers = {
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
            "User-Agent": "miles-periodic",
            **({"Authorization": f"Bearer {token}"} if token else {}),
        }
        self._http = _httpx().Client(
            base_url=environment.get(API_VARIABLE) or "https://api.github.com",
            headers=headers,
            timeout=TIMEOUT_SECONDS,
            follow_redirects=True,
        )

    def __enter__(self) -> GitHub:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def ask(self, row: Row, known: Said | None = None) -> Said:
        """What is said of a row with a number; `known`, seen anew, where nothing changed.

        Raises Unreachable, LimitReached, NotFound, and PeriodicError where the token is refused.
        """
        path = f"/repos/{REPOSITORIES[row.upstream]}/issues/{row.number}"
        headers = {"If-None-Match": known.etag} if known and known.etag else {}
        response = self._get(path, headers)
        if response.status_code == 304 and known is not None:
            return Said(*_without_day(known), self._today())
        return self._read(response)

    def _get(self, path: str, headers: Mapping[str, str]) -> Any:
        response = self._request(path, headers)
        pause = self._asked_to_wait(response)
        if pause is not None and pause <= MAX_WAIT_SECONDS:
            self._sleep(pause)
            response = self._request(path, headers)
            pause = self._asked_to_wait(response)
        if pause is not None:
            raise LimitReached(self._clock() + pause)
        if response.status_code == 401:
            raise PeriodicError(
                "GitHub refuses the token.",
                found=f"status 401 with the token of ${' or $'.join(TOKEN_VARIABLES)}",
                remedy="Set a token that is valid, or unset it: public pull requests need none.",
            )
        if response.status_code in (404, 410):
            raise NotFound(path)
        if response.status_code not in (200, 304):
            raise Unreachable(f"status {response.status_code} of {response.url}")
        return response

    def _request(self, path: str, headers: Mapping[str, str]) -> Any:
        httpx = _httpx()
        try:
            return self._http.get(path, headers=dict(headers))
        except httpx.HTTPError as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error

    def _asked_to_wait(self, response: Any) -> float | None:
        """Seconds to wait where the server refuses for a limit; None where it does not."""
        if response.status_code not in (403, 429):
            return None
        if (after := response.headers.get("retry-after", "")).isdigit():
            return float(after)
        reset = response.headers.get("x-ratelimit-reset", "")
        if response.headers.get("x-ratelimit-remaining") == "0" and reset.isdigit():
            return max(0.0, float(reset) - self._clock())
        return float(MAX_WAIT_SECONDS) if response.status_code == 429 else None

    def _read(self, response: Any) -> Said:
        body = response.json()
        merged = (body.get("pull_request") or {}).get("merged_at") or ""
        return Said(
            title=body["title"],
            state="merged" if merged else body["state"],
            opened=body["created_at"][:10],
            merged=merged[:10],
            etag=response.headers.get("etag", ""),
            seen=self._today(),
        )

    def _today(self) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self._clock()))


def _without_day(said: Said) -> tuple[str, ...]:
    return (said.title, said.state, said.opened, said.merged, said.etag)


def _httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise PeriodicError(
            "httpx is not installed, and asking GitHub needs it.",
            remedy="Run: pip install 'miles-periodic[upstream]'.",
        ) from error
    return httpx
