"""Feature `cost-aware-packing`: micro-batches and ranks by what samples cost.

packing          pack(): lengths and costs in, a Schedule out
data_parallel    split(): the same for trainers with per-rank sample lists
schedule         the Schedule, its slot time and the rules that it keeps
problem          one optimizer step as arrays: samples, bins, slots
construct        first packings
fold             those of exactly two samples per micro-batch
local_search     exchanges that improve them
lower_bound      what no schedule can go below, with the proof
steps            which optimizer step a sample belongs to
equal_counts     the same number of samples for every rank
cost_model       FLOPs or seconds of a sample
model_shape      FLOPs of a model's parts
attention_shape  those of its attention, layer kind by layer kind
config_fields    the sizes that decide them, from a model's config
validation       what is refused, and what to change
settings         the slug, and what a user can set
feature          the hooks
"""

from miles_periodic.plugins.cost_aware_packing.cost_model import (
    CostModel,
    MeasuredMicroBatch,
    MeasuredStep,
)
from miles_periodic.plugins.cost_aware_packing.data_parallel import (
    SplitPlan,
    split,
)
from miles_periodic.plugins.cost_aware_packing.packing import pack
from miles_periodic.plugins.cost_aware_packing.schedule import Schedule
from miles_periodic.plugins.cost_aware_packing.settings import CostAwarePackingSettings

__all__ = [
    "CostAwarePackingSettings",
    "CostModel",
    "MeasuredMicroBatch",
    "MeasuredStep",
    "Schedule",
    "SplitPlan",
    "pack",
    "split",
]
