"""What trainers and the split of a batch bind."""

from __future__ import annotations

from miles_periodic.compat.binding import Binding

_ADAPTERS = "miles_periodic.compat.bindings"

_DISTRIBUTED = "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer"

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
    *(
        Binding(
            name=f"training/{name}",
            upstream="megatron",
            target=f"{_DISTRIBUTED}.{method}",
            adapter=f"{_ADAPTERS}.optimizer_state:{adapter}",
            processes=("trainer",) if not only_when else (),
            relies_on=relies_on,
            only_when=only_when,
        )
        for name, method, adapter, relies_on, only_when in (
            (
                "offloaded-optimizer",
                "__init__",
                "attach",
                (f"{_DISTRIBUTED}._build_model_and_main_param_groups",),
                "",
            ),
            ("write-weights", "_copy_main_params_to_model_params", "write_weights", (), ""),
            (
                "read-weights",
                "_copy_model_params_to_main_params",
                "read_weights",
                (),
                "weights become masters",
            ),
            (
                "state-of-weight",
                "_get_main_param_and_optimizer_states",
                "state_of_weight",
                (),
                "a checkpoint is saved or loaded",
            ),
            (
                "load-state-of-weight",
                "_set_main_param_and_optimizer_states",
                "load_state_of_weight",
                (),
                "a checkpoint is loaded",
            ),
        )
    ),
    Binding(
        name="training/quantise-weights",
        upstream="megatron",
        target="megatron.core.fp8_utils:quantize_param_shard",
        adapter=f"{_ADAPTERS}.quantised_weights:quantise_in_waves",
        only_when="weights are quantised",
    ),
    Binding(
        name="training/copied-state",
        upstream="megatron",
        target="megatron.core.dist_checkpointing.strategies.filesystem_async:FileSystemWriterAsync.preload_tensors",
        adapter=f"{_ADAPTERS}.copied_state:copy_for_writer",
        only_when="a checkpoint is saved",
    ),
)
