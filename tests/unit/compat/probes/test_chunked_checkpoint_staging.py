"""The probe on small trees: whose writer a save takes, and how much of its buckets it preloads."""

import textwrap

import pytest

from miles_periodic.compat.probes import PROBES
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks import Inject, Native, Unsupported

STRATEGIES = "core/dist_checkpointing/strategies"
SAVE = """
    class TorchDistSaveShardedStrategy:
        def save(self, sharded_state_dict, checkpoint_dir):
            request = self.async_save(sharded_state_dict, checkpoint_dir, async_strategy="mcore")
            request.execute_sync()

        def async_save(self, sharded_state_dict, checkpoint_dir, async_strategy="nvrx"):
            return prepared(async_strategy)
    """
REQUEST = """
    class AsyncRequest:
        def execute_sync(self):
            self.async_fn(self.preload_fn())
    """
WRITER = """
    class FileSystemWriterAsync:
        def __init__(self, path):
            self.path = path

        def get_save_function_and_args(self):
            return write, partial(self.preload_tensors, self.write_buckets, True), []
    """
SOURCES = {
    f"{STRATEGIES}/torch.py": SAVE,
    f"{STRATEGIES}/async_utils.py": REQUEST,
    f"{STRATEGIES}/filesystem_async.py": WRITER,
}
MILES = {
    "backends/megatron_utils/checkpoint.py": """
        from megatron.training.checkpointing import save_checkpoint
        """,
    "backends/megatron_utils/model.py": """
        from .checkpoint import save_checkpoint

        def save(iteration, model):
            save_checkpoint(iteration, model)
        """,
}


@pytest.fixture
def probed(tmp_path):
    """Probe the small upstream, with some files replaced; one that is empty is left out."""

    def probe(upstream, sources, changes=None):
        for path, text in {**sources, **(changes or {})}.items():
            file = tmp_path / upstream / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if text:
                file.write_text(textwrap.dedent(text))
        tree = Tree.at(upstream, tmp_path)
        return PROBES["chunked-checkpoint-staging"][upstream](tree)

    return probe


def changed(name, old, new):
    path = f"{STRATEGIES}/{name}.py"
    assert old in SOURCES[path]
    return {path: SOURCES[path].replace(old, new)}


def test_a_save_that_preloads_all_of_its_buckets_is_injected_into(probed):
    decision = probed("megatron", SOURCES)
    assert isinstance(decision, Inject)
    assert [e.what for e in decision.evidence] == [
        "TorchDistSaveShardedStrategy.save calls self.async_save(sharded_state_dict, "
        "checkpoint_dir, async_strategy='mcore')",
        "TorchDistSaveShardedStrategy.save calls request.execute_sync()",
        "AsyncRequest.execute_sync calls self.preload_fn()",
        "FileSystemWriterAsync.get_save_function_and_args preloads self.write_buckets, all of them",
    ]


def test_a_save_in_the_base_class_is_found_there(probed):
    base = SAVE.replace("TorchDistSaveShardedStrategy", "AsyncSaveShardedStrategy")
    decision = probed(
        "megatron",
        SOURCES,
        {f"{STRATEGIES}/base.py": base.replace(', async_strategy="mcore"', "")}
        | {f"{STRATEGIES}/torch.py": "class TorchDistSaveShardedStrategy: pass\n"},
    )
    assert isinstance(decision, Inject) and "checkpoint/save-of-base" in decision.bindings


@pytest.mark.parametrize("asked", ['"nvrx"', "self.strategy"])
def test_a_synchronous_save_by_a_writer_outside_megatron_is_refused_by_name(probed, asked):
    decision = probed("megatron", SOURCES, changed("torch", '"mcore"', asked))
    assert isinstance(decision, Unsupported) and decision.found == "nvrx"
    assert decision.remedy.startswith("Use a Megatron-core whose synchronous saves ask for mcore")


def test_a_synchronous_save_that_takes_the_default_writer_is_judged_by_the_default(probed):
    decision = probed("megatron", SOURCES, changed("torch", ', async_strategy="mcore"', ""))
    assert isinstance(decision, Unsupported) and decision.found == "nvrx"


def test_a_writer_that_stages_a_few_buckets_at_a_time_is_native(probed):
    writer = WRITER.replace("path):", "path, staging_max_buckets=None):").replace(
        "self.path = path", "self.staging_max_buckets = staging_max_buckets"
    )
    waves = writer.replace("partial(self", "self.staging_max_buckets and partial(self")
    decision = probed("megatron", SOURCES, {f"{STRATEGIES}/filesystem_async.py": waves})
    assert isinstance(decision, Native) and "--ckpt-save-staging-buckets" in decision.reason


def test_a_writer_that_declares_it_and_never_reads_it_is_not_native(probed):
    declared = changed("filesystem_async", "path):", "path, staging_max_buckets=None):")
    assert isinstance(probed("megatron", SOURCES, declared), Inject)


@pytest.mark.parametrize("name", ["torch", "async_utils", "filesystem_async"])
def test_a_part_that_is_not_there_is_unsupported_by_its_target(probed, name):
    decision = probed("megatron", SOURCES, {f"{STRATEGIES}/{name}.py": ""})
    assert isinstance(decision, Unsupported)
    assert f"strategies.{name}:" in decision.target


def test_a_writer_that_preloads_something_else_is_unsupported(probed):
    decision = probed("megatron", SOURCES, changed("filesystem_async", "preload_tensors", "x"))
    assert isinstance(decision, Unsupported) and decision.found == "no preload of all buckets"


def test_a_miles_that_saves_through_megatron_has_its_command_line_checked(probed):
    decision = probed("miles", MILES)
    assert isinstance(decision, Inject) and "launch/arguments" in decision.bindings


@pytest.mark.parametrize("path", list(MILES))
def test_a_miles_that_saves_in_another_way_is_unsupported(probed, path):
    decision = probed("miles", MILES, {path: "def save(iteration, model):\n    pass\n"})
    assert isinstance(decision, Unsupported)
    assert decision.remedy.startswith("Use miles-rl 0.0.2")
