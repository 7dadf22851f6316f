"""What the servers bind: the routes of a request, and requests that would end a server."""

from __future__ import annotations

from miles_periodic.compat.binding import Binding

_ADAPTERS = "miles_periodic.compat.bindings"

BINDINGS = (
    Binding(
        name="server/carry-start",
        upstream="sglang",
        target=("sglang.srt.managers.tokenizer_manager:TokenizerManager._create_tokenized_object"),
        adapter=f"{_ADAPTERS}.server_routes:carry",
    ),
    Binding(
        name="server/remember-start",
        upstream="sglang",
        target="sglang.srt.managers.scheduler:Scheduler.handle_generate_request",
        adapter=f"{_ADAPTERS}.server_routes:remember",
    ),
    Binding(
        name="server/collect-from-start",
        upstream="sglang",
        target=(
            "sglang.srt.managers.scheduler_output_processor_mixin:"
            "SchedulerOutputProcessorMixin.maybe_collect_routed_experts"
        ),
        adapter=f"{_ADAPTERS}.server_routes:collect",
        relies_on=(
            "sglang.srt.layers.moe.routed_experts_capturer:"
            "_RoutedExpertsCapturerReal.get_routed_experts",
        ),
    ),
    Binding(
        name="server/refuse-unpaired",
        upstream="sglang",
        target="sglang.srt.managers.tokenizer_manager:TokenizerManager._create_tokenized_object",
        adapter=f"{_ADAPTERS}.unpaired:refuse",
    ),
)
