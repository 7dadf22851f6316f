"""All CPU stand-ins, in the order in which a process meets their modules."""

from __future__ import annotations

from miles_periodic.compat.cpu import (
    copies,
    cuda_on_cpu,
    gloo,
    load_hugging_face,
    loopback,
    megatron_local_spec,
    pinned_memory,
    replay_order,
    saved_adam,
    sglang_weights,
    trainer_start,
)
from miles_periodic.compat.cpu.stand_in import StandIn

STAND_INS: tuple[StandIn, ...] = (
    *pinned_memory.STAND_INS,
    *cuda_on_cpu.STAND_INS,
    *gloo.STAND_INS,
    *loopback.STAND_INS,
    *sglang_weights.STAND_INS,
    *copies.STAND_INS,
    *trainer_start.STAND_INS,
    *megatron_local_spec.STAND_INS,
    *load_hugging_face.STAND_INS,
    *replay_order.STAND_INS,
    *saved_adam.STAND_INS,
)
