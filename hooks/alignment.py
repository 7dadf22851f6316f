"""The unit to which trainers pad each sample; nothing else may compute one of its own."""

from __future__ import annotations


def zigzag_multiple(context_parallel_size: int) -> int:
    """Tokens to a multiple of which zigzag context parallelism pads a sample.

    Each rank takes two of twice as many chunks as there are ranks; 1 where there is one rank.
    """
    return 2 * context_parallel_size if context_parallel_size > 1 else 1
