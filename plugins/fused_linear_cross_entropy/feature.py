"""The hooks of fused-linear-cross-entropy."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from miles_periodic.hooks import Feature, PeriodicError, hookimpl
from miles_periodic.hooks.conflicts import refuse_conflicts
from miles_periodic.hooks.values import OutputHead
from miles_periodic.plugins.fused_linear_cross_entropy.conflicts import CONFLICTS
from miles_periodic.plugins.fused_linear_cross_entropy.settings import (
    SLUG,
    FusedLinearCrossEntropySettings,
)

#: What a kernel needs beside torch.
PACKAGES = {"liger": "liger_kernel"}


class FusedLinearCrossEntropy(Feature):
    """Token log-probabilities straight from hidden states and the output weight."""

    slug = SLUG
    why = "No tensor of tokens x vocabulary exists, so that longer micro-batches fit a trainer."
    settings_model = FusedLinearCrossEntropySettings
    pull_requests = ("megatron#2206", "megatron#2256", "megatron#6700")
    exit = (
        "Megatron gives log-probabilities of tokens without logits on Hopper, and Miles takes them."
    )
    default = False

    @hookimpl
    def complete_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
        refuse_conflicts(SLUG, CONFLICTS, arguments)
        self._require_package()
        # Nothing of the size of logits is kept for backward, and a checkpoint would see no tensor.
        return {"recompute_loss_function": False} if _recomputes(arguments) else None

    def _require_package(self) -> None:
        package = PACKAGES.get(self.settings.kernel)
        if package and importlib.util.find_spec(package) is None:
            raise PeriodicError(
                f"The kernel {self.settings.kernel} is not installed here.",
                feature=SLUG,
                expected=f"the package {package}",
                remedy=f'Install "liger-kernel[cutedsl]", or set {SLUG}.kernel=torch.',
            )

    @hookimpl
    def token_log_probs(
        self,
        head: OutputHead,
        targets: Any,
        temperature: float,
        any_target: bool,
        with_entropy: bool,
    ) -> tuple[Any, Any]:
        from miles_periodic.plugins.fused_linear_cross_entropy.log_probs import token_log_probs

        try:
            answer = token_log_probs(
                head.hidden,
                head.weight,
                targets,
                temperature=temperature,
                logit_scale=head.logit_scale,
                vocab_start=head.vocab_start,
                tp_group=head.tp_group,
                any_target=any_target,
                with_entropy=with_entropy,
                **self.settings.model_dump(),
            )
        except (ValueError, ArithmeticError, ImportError) as error:
            raise PeriodicError(
                f"Log-probabilities cannot be computed: {error}.",
                feature=SLUG,
                target=f"kernel {self.settings.kernel}",
                remedy=f"Change what it names, or take the feature out with -{SLUG}.",
            ) from error
        return answer if with_entropy else (answer, None)


def _recomputes(arguments: Mapping[str, Any]) -> bool:
    return bool(arguments.get("recompute_loss_function"))
