"""The OCI bundle of a sandbox: what runsc is told to run, and in what surroundings."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from miles_periodic.plugins.pbox.limits import Limits
from miles_periodic.plugins.pbox.node.layers import Layers

#: The user of commands, by default, and the owner of /work.
USER_ID = 1000
WORK = "/work"
#: What process 1 needs to start, own and end the commands of other users; they have none of it.
CAPABILITIES = [f"CAP_{name}" for name in ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL",
                                           "NET_BIND_SERVICE", "SETGID", "SETUID")]  # fmt: skip
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
    "HOME": WORK,
    "LANG": "C.UTF-8",
    "PYTHONPYCACHEPREFIX": "/tmp/.pycache",
}
_HIDDEN = ["/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list"]


@cache
def guest_source() -> str:
    """The text of process 1."""
    return Path(__file__).with_name("guest.py").read_text(encoding="utf-8")


def write(layers: Layers, python: str, limits: Limits, hostname: str = "sandbox") -> None:
    """Write `config.json` of a sandbox into its home. python: its path in the image."""
    text = json.dumps(configuration(layers, python, limits, hostname))
    (layers.home / "config.json").write_text(text, encoding="utf-8")


def configuration(layers: Layers, python: str, limits: Limits, hostname: str) -> dict[str, Any]:
    """The OCI runtime configuration."""
    kinds = ("bounding", "effective", "permitted")
    return {
        "ociVersion": "1.0.0",
        "process": {
            "user": {"uid": 0, "gid": 0},
            # -I -S: nothing of the image's, or of whoever wrote into it, is imported.
            "args": [python, "-I", "-S", "-c", guest_source()],
            "env": [f"{name}={value}" for name, value in ENVIRONMENT.items()],
            "cwd": "/",
            "capabilities": {kind: CAPABILITIES for kind in kinds},
            "rlimits": _resource_limits(limits),
            "noNewPrivileges": True,
        },
        "root": {"path": str(layers.root), "readonly": False},
        "hostname": hostname,
        "mounts": _mounts(layers, limits),
        "linux": {
            "namespaces": [{"type": t} for t in ("pid", "network", "ipc", "uts", "mount")],
            "maskedPaths": _HIDDEN,
        },
    }


def _resource_limits(limits: Limits) -> list[dict[str, Any]]:
    wanted = {"RLIMIT_NOFILE": limits.num_open_files, "RLIMIT_CORE": 0}
    return [{"type": name, "hard": value, "soft": value} for name, value in wanted.items()]


def _mounts(layers: Layers, limits: Limits) -> list[dict[str, Any]]:
    """Each mount bounded: gVisor's own choice for /tmp and /dev/shm is memory without a size."""
    scratch = ["nosuid", "nodev", "mode=1777", f"size={limits.scratch_bytes}"]
    return [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["size=65536"]},
        {"destination": "/dev/shm", "type": "tmpfs", "source": "tmpfs", "options": scratch},
        {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": scratch},
        {"destination": WORK, "type": "bind", "source": str(layers.files), "options": ["rbind"]},
    ]
