"""What the servers bind: the routes of a request, and requests that would end a server.

Bindings around one target are applied in this order: the last one is outermost, and sees what the
others made. Rows are encoded when nobody wants to look into them any more.
"""

from __future__ import annotations

from miles_periodic.compat.binding import Binding

_ADAPTERS = "miles_periodic.compat.bindings"
_SCHEDULER = "sglang.srt.managers.scheduler"
_BATCH = "sglang.srt.managers.schedule_batch"
_MIXIN = f"{_SCHEDULER}_output_processor_mixin:SchedulerOutputProcessorMixin"
_PROCESSOR = (
    "sglang.srt.managers.scheduler_components.batch_result_processor:SchedulerBatchResultProcessor"
)
_MIXIN_COLLECT = f"{_MIXIN}.maybe_collect_routed_experts"
_COLLECT = f"{_PROCESSOR}._maybe_collect_routed_experts"

BINDINGS = (
    Binding(
        name="server/carry-start",
        upstream="sglang",
        target="sglang.srt.managers.tokenizer_manager:TokenizerManager._create_tokenized_object",
        adapter=f"{_ADAPTERS}.server_routes:carry",
    ),
    Binding(
        name="server/remember-start",
        upstream="sglang",
        target=f"{_SCHEDULER}:Scheduler.handle_generate_request",
        adapter=f"{_ADAPTERS}.server_routes:remember",
    ),
    Binding(
        name="server/collect-from-start",
        upstream="sglang",
        target=_MIXIN_COLLECT,
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
    Binding(
        name="server/align-mixed-batches",
        upstream="sglang",
        target=f"{_MIXIN}.stream_output_generation",
        adapter=f"{_ADAPTERS}.server_mixed_batch:align",
    ),
    Binding(
        name="server/own-captured-rows",
        upstream="sglang",
        target="sglang.srt.state_capturer.base:BaseTopkCapturer.on_forward_end",
        adapter=f"{_ADAPTERS}.server_capture:own",
        relies_on=("sglang.srt.state_capturer.base:TopkCaptureOutput",),
    ),
    Binding(
        name="server/check-capture-buffer",
        upstream="sglang",
        target="sglang.srt.state_capturer.routed_experts:RoutedExpertsCapturer.__init__",
        adapter=f"{_ADAPTERS}.server_capture:check_room",
    ),
    Binding(
        name="server/check-capture-buffer-in-layers",
        upstream="sglang",
        target=(
            "sglang.srt.layers.moe.routed_experts_capturer:_RoutedExpertsCapturerReal.__init__"
        ),
        adapter=f"{_ADAPTERS}.server_capture:check_room",
    ),
    Binding(
        name="server/keep-rows",
        upstream="sglang",
        target=f"{_BATCH}:release_req",
        adapter=f"{_ADAPTERS}.server_retraction:keep",
        only_when="a request is retracted",
    ),
    Binding(
        name="server/keep-rows-of-batch",
        upstream="sglang",
        target=f"{_BATCH}:ScheduleBatch.release_req",
        adapter=f"{_ADAPTERS}.server_retraction:keep_of_batch",
        only_when="a request is retracted",
    ),
    Binding(
        name="server/give-back-rows",
        upstream="sglang",
        target=_COLLECT,
        adapter=f"{_ADAPTERS}.server_retraction:give_back",
    ),
    Binding(
        name="server/give-back-rows-in-mixin",
        upstream="sglang",
        target=_MIXIN_COLLECT,
        adapter=f"{_ADAPTERS}.server_retraction:give_back",
    ),
    Binding(
        name="server/encode-rows",
        upstream="sglang",
        target=_COLLECT,
        adapter=f"{_ADAPTERS}.server_wire:encode",
    ),
    Binding(
        name="server/encode-rows-in-mixin",
        upstream="sglang",
        target=_MIXIN_COLLECT,
        adapter=f"{_ADAPTERS}.server_wire:encode",
    ),
)
