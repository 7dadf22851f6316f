"""A Ray instance on this machine whose GPUs are numbers.

Miles places its actors by GPU; Ray takes any number of GPUs on trust, and a CPU run uses none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from miles_periodic.compat.cpu.environment import LOOPBACK

OBJECT_STORE_BYTES = 400 << 20
NUM_LOGICAL_CPUS = 8


@contextmanager
def ray_with_logical_gpus(num_gpus: int, work_folder: Path) -> Iterator[None]:
    """A private Ray instance, gone when the block ends.

    num_gpus: train actors plus SGLang engines. work_folder: where Ray keeps its sockets and logs;
    keep its path short, a socket's path may have about 100 characters.
    """
    import ray

    ray.init(
        num_gpus=num_gpus,
        num_cpus=NUM_LOGICAL_CPUS,
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        _node_ip_address=LOOPBACK,
        _temp_dir=str(work_folder / "ray"),
        # Ray would start a worker per CPU ahead; Miles's actors have variables of their own, and
        # so workers of their own.
        _system_config={"prestart_worker_first_driver": False},
    )
    try:
        yield
    finally:
        ray.shutdown()
