"""What trainers and the split of a batch bind."""

from __future__ import annotations

from miles_periodic.compat.binding import Binding

_ADAPTERS = "miles_periodic.compat.bindings"

BINDINGS = (
    Binding(
        name="training/replay-fill",
        upstream="miles",
        target="miles.backends.training_utils.replay_data:fill_replay_data",
        adapter=f"{_ADAPTERS}.replay_fill:fill",
        processes=("trainer",),
        relies_on=("miles.utils.replay_base:Replay",),
    ),
    Binding(
        name="training/actor-replay-fill",
        upstream="miles",
        target="miles.backends.megatron_utils.actor:MegatronTrainRayActor._fill_replay_data",
        adapter=f"{_ADAPTERS}.replay_fill:fill",
        processes=("trainer",),
        relies_on=("miles.utils.replay_base:Replay",),
    ),
    Binding(
        name="training/schedule",
        upstream="miles",
        target="miles.utils.dp_schedule:build_dp_schedule",
        adapter=f"{_ADAPTERS}.packing_schedule:schedule",
        processes=("rollout-manager",),
        relies_on=("miles.ray.rollout.train_data_conversion:split_train_data_by_dp_scheduled_raw",),
    ),
    Binding(
        name="training/unplanned-split",
        upstream="miles",
        target="miles.ray.rollout.train_data_conversion:split_train_data_by_dp_raw",
        adapter=f"{_ADAPTERS}.packing_schedule:unplanned",
        processes=("rollout-manager",),
        only_when="Miles splits a batch without planning its micro-batches",
    ),
    Binding(
        name="training/packing-scheduler",
        upstream="megatron",
        target="megatron.core.datasets.data_schedule:DpBalancedScheduler.get_groups_and_subsamples",
        adapter=f"{_ADAPTERS}.packing_megatron:groups",
        relies_on=("megatron.training.global_vars:get_args",),
        only_when="Megatron's training loop packs with --sequence-packing-scheduler dp_balanced",
    ),
    Binding(
        name="training/split",
        upstream="miles",
        target="miles.ray.rollout:RolloutManager._split_train_data_by_dp",
        adapter=f"{_ADAPTERS}.packing:split",
        processes=("driver",),
        relies_on=("miles.utils.ray_utils:Box", "miles.utils.data:process_rollout_data"),
    ),
    Binding(
        name="training/plan",
        upstream="miles",
        target="miles.backends.training_utils.data:get_rollout_data",
        adapter=f"{_ADAPTERS}.packing:receive",
        processes=("trainer",),
    ),
    Binding(
        name="training/micro-batches",
        upstream="miles",
        target="miles.backends.training_utils.data:get_data_iterator",
        adapter=f"{_ADAPTERS}.packing:iterate",
        processes=("trainer",),
        relies_on=("miles.backends.training_utils.data:DataIterator",),
    ),
)
