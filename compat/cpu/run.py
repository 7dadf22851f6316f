"""The driver of a CPU run: a private Ray with logical GPUs around Miles's loop.

python -m miles_periodic.compat.cpu.run NUM_GPUS RAY_FOLDER MILES_FLAGS…
"""

from __future__ import annotations

import sys
from pathlib import Path

from miles_periodic.compat import train
from miles_periodic.compat.cpu.logical_gpus import ray_with_logical_gpus


def main(argv: list[str]) -> None:
    """Run Miles's loop with the flags behind the first two words of `argv`."""
    num_gpus, ray_folder, *flags = argv
    with ray_with_logical_gpus(int(num_gpus), Path(ray_folder)):
        train.main(flags)


if __name__ == "__main__":
    main(sys.argv[1:])
