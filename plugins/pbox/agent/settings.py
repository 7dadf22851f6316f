"""What an agent is told when it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from miles_periodic.plugins.pbox.cpu_lists import parse_cpus
from miles_periodic.plugins.pbox.limits import Limits


class AgentSettings(BaseModel):
    """Of one agent, one per node or per job and node."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    listen: str = "unix:/run/pbox/agent.sock"
    """Where it listens: `unix:PATH`, or `HOST:PORT` (port 0: any that is free)."""

    certificate: Path | None = None
    """What it shows to clients over TCP, in PEM; with `key`, or neither."""

    key: Path | None = None
    """The key of its certificate, in PEM."""

    token_file: Path = Path("/run/pbox/tokens")
    """One job and its token per line; read again when it changes, made where it is missing."""

    state_dir: Path = Path("/run/pbox/state")
    """Where sandboxes are mounted. One agent has it for itself."""

    image_dir: Path = Path("/var/lib/pbox/images")
    """Where images lie."""

    cgroup: str = "pbox"
    """The control group above all sandboxes, below the mount point of each hierarchy."""

    runsc: str = "runsc"
    """gVisor's program, by name or path."""

    platform: str = "systrap"
    """How gVisor runs code: `systrap`, `kvm`, or `ptrace` where neither can be had."""

    cpus: str = ""
    """CPUs of the sandboxes, as in `2-7,10`; empty leaves them all that the machine has."""

    memory_bytes: int | None = None
    """Memory of all sandboxes together."""

    max_sandboxes: Annotated[int, Field(ge=1)] = 256
    """Most sandboxes at a time, warm ones counted."""

    max_starting: Annotated[int, Field(ge=1)] = 4
    """Most sandboxes that start at the same time."""

    warm: dict[str, int] = Field(default_factory=dict)
    """Image to the number of its sandboxes that are kept ready, under the default limits."""

    default_image: str = "base"
    """The image of a sandbox that names none, and of the proofs at the start."""

    limits: Limits = Limits()
    """Limits of a sandbox that names none, and of those that are kept ready."""

    max_output_bytes: Annotated[int, Field(ge=1)] = 64 << 20
    """The highest output limit that a command may ask for."""

    heartbeat_seconds: Annotated[float, Field(gt=0)] = 30.0
    """How often a job's connection is asked for a sign of life; one and a half of it without an
    answer ends everything of that connection. A job that pickles gigabytes answers late."""

    allow_unenforced: frozenset[str] = frozenset()
    """Limits that may stay unproved, by name."""

    @model_validator(mode="after")
    def _has_seats_for_those_that_are_warm(self) -> AgentSettings:
        if sum(self.warm.values()) > self.max_sandboxes:
            raise ValueError(f"more sandboxes are to be warm than {self.max_sandboxes} in all")
        return self

    @model_validator(mode="after")
    def _has_both_or_neither(self) -> AgentSettings:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("a certificate needs its key, and a key its certificate")
        if self.certificate is not None and self.listen.startswith("unix:"):
            raise ValueError("a certificate is for TCP: listen at HOST:PORT")
        return self

    @field_validator("cpus")
    @classmethod
    def _is_a_list(cls, text: str) -> str:
        if text:
            parse_cpus(text)
        return text
