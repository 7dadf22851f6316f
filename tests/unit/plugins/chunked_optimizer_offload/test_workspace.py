import pytest
import torch

from miles_periodic.plugins.chunked_optimizer_offload.layout import ALIGNMENT
from miles_periodic.plugins.chunked_optimizer_offload.slots import Costs
from miles_periodic.plugins.chunked_optimizer_offload.workspace import Workspace

FP32 = dict.fromkeys(("master", "exp_avg", "exp_avg_sq"), torch.float32)
NARROW = {**FP32, "exp_avg": torch.bfloat16, "exp_avg_sq": torch.bfloat16}
CPU = torch.device("cpu")


@pytest.mark.parametrize("dtypes", [FP32, NARROW])
def test_what_it_holds_is_within_what_it_was_said_to_cost(dtypes):
    workspace = Workspace(CPU, dtypes, 3, 4 * ALIGNMENT)
    workspace.counters(CPU, torch.float32)
    assert workspace.num_bytes() == Costs.of([d.itemsize for d in dtypes.values()], 0).num_bytes(
        3, 4 * ALIGNMENT
    )


@pytest.mark.parametrize("dtypes", [FP32, NARROW])
def test_slots_and_shared_parts_do_not_overlap(dtypes):
    workspace = Workspace(CPU, dtypes, 3, ALIGNMENT)
    tensors = {t.data_ptr(): t for slot in workspace.staged for t in slot.values()}
    tensors |= {t.data_ptr(): t for slot in workspace.stepped for t in slot.values()}
    for number, tensor in enumerate(tensors.values()):
        tensor.fill_(number)
    assert all(bool((t == n).all()) for n, t in enumerate(tensors.values()))


def test_moments_that_are_stored_narrow_are_stepped_wide():
    workspace = Workspace(CPU, NARROW, 3, ALIGNMENT)
    assert workspace.narrow == ("exp_avg", "exp_avg_sq")
    assert all(t.dtype == torch.float32 for t in workspace.stepped[0].values())
    assert workspace.staged[0]["exp_avg"].dtype == torch.bfloat16
