"""The hooks of fast-resharding: exports of a run, made from the checkpoint that it just saved."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from miles_periodic.hooks import Feature, PeriodicError, hookimpl
from miles_periodic.hooks.conflicts import Conflict, refuse_conflicts
from miles_periodic.plugins.fast_resharding.families.known import all_families, family_of
from miles_periodic.plugins.fast_resharding.model_config import ModelConfig, read_config
from miles_periodic.plugins.fast_resharding.settings import SLUG, FastReshardingSettings

logger = logging.getLogger(__name__)

CONFLICTS = (
    Conflict("train_backend", "only Megatron's checkpoints are converted", "megatron"),
    Conflict("ckpt_format", "only torch_dist checkpoints are converted", "torch_dist"),
    Conflict("lora_rank", "adapters are not converted", 0),
)
_ROLLOUT = "{rollout_id"


class FastResharding(Feature):
    """`--save-hf` converts the checkpoint that was saved, and no rank gathers a model."""

    slug = SLUG
    why = "An export reads the saved checkpoint in bounded memory; no rank gathers the model."
    settings_model = FastReshardingSettings
    exit = "Miles's --save-hf publishes whole models or nothing, and no rank gathers the model."
    default = False

    @hookimpl
    def complete_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
        pattern = arguments.get("save_hf")
        if pattern is None:
            return None
        refuse_conflicts(SLUG, CONFLICTS, arguments)
        if _ROLLOUT not in pattern:
            raise PeriodicError(
                "Every export of the run would have the same name.",
                feature=SLUG,
                target="--save-hf",
                found=pattern,
                remedy=f"Put {_ROLLOUT}}} into it, such as {pattern}/{_ROLLOUT}}}.",
            )
        config = _config(arguments)
        family_of(config.model_type, all_families())
        return None

    @hookimpl
    def export_checkpoint(
        self, checkpoint: str, target: str, arguments: Mapping[str, Any]
    ) -> bool | None:
        from miles_periodic.plugins.fast_resharding.resharding import reshard

        config = _config(arguments)
        try:
            report = reshard(
                checkpoint,
                target,
                config=config.folder,
                changes=_left_out(config, arguments),
                workers=self.settings.workers,
                verify=self.settings.verify,
                replace=True,
            )
        except PeriodicError:
            if self.settings.stop_on_failure:
                raise
            logger.exception("%s: %s is not converted", SLUG, checkpoint)
            return False
        logger.info("%s: %s in %.1f s", SLUG, report.target, report.seconds)
        return True


def _config(arguments: Mapping[str, Any]) -> ModelConfig:
    return read_config(Path(str(arguments.get("hf_checkpoint"))).absolute())


def _left_out(config: ModelConfig, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Layers that predict further tokens are in the checkpoint only where they are trained."""
    if config.num_extra_layers and not arguments.get("mtp_num_layers"):
        return {"num_nextn_predict_layers": 0}
    return {}
