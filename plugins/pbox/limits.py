"""What one sandbox may use: the values that a request names and a node enforces."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MIB = 1 << 20


class Limits(BaseModel):
    """Hard bounds of one sandbox; none of them is shared with its neighbours."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory_bytes: Annotated[int, Field(ge=64 * MIB)] = 512 * MIB
    """Memory of everything in the sandbox, gVisor's own included (about 60 MiB)."""

    num_processes: Annotated[int, Field(ge=128)] = 512
    """Tasks on the host; gVisor itself holds 30 to 65 of them, a guest's process one or more."""

    num_cpus: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """CPU time per second of wall time."""

    disk_bytes: Annotated[int, Field(ge=MIB)] = 256 * MIB
    """Bytes of the writable layer and of /work together; they live in memory of the node."""

    num_files: Annotated[int, Field(ge=64)] = 20_000
    """Inodes of the writable layer and of /work together."""

    scratch_bytes: Annotated[int, Field(ge=MIB)] = 64 * MIB
    """Bytes of /tmp, and of /dev/shm apart from it; they count as memory of the sandbox."""

    num_open_files: Annotated[int, Field(ge=32)] = 1024
    """Open files of one process."""
