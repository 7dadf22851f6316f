"""The plain values that hooks exchange: no upstream type, no torch, ever.

rollout   what rollouts and sessions are to the features, and what became of them
routes    routes of tokens: their shape, what a response brought, and a train rank's share of them
serving   servers as they are started, and requests as they are routed to them
training  batches, losses and optimizers of trainers, and what they write into a checkpoint
"""

from miles_periodic.hooks.values.rollout import (
    Cancel,
    EarlierTurns,
    RolloutState,
    RolloutStep,
    SessionPrefix,
    SessionTurn,
)
from miles_periodic.hooks.values.routes import MEDIA_FIELDS, RankShare, RouteAnswer, RouteShape
from miles_periodic.hooks.values.serving import (
    Refusal,
    RoutedAnswer,
    RoutedRequest,
    ServerGroup,
    ServerState,
)
from miles_periodic.hooks.values.training import (
    CheckpointEntry,
    CheckpointWaves,
    DataParallelSplit,
    OffloadedOptimizer,
    OutputHead,
    TrainBatch,
)

__all__ = [
    "Cancel",
    "CheckpointEntry",
    "CheckpointWaves",
    "DataParallelSplit",
    "EarlierTurns",
    "MEDIA_FIELDS",
    "OffloadedOptimizer",
    "OutputHead",
    "RankShare",
    "Refusal",
    "RolloutState",
    "RolloutStep",
    "RouteAnswer",
    "RouteShape",
    "RoutedAnswer",
    "RoutedRequest",
    "ServerGroup",
    "ServerState",
    "SessionPrefix",
    "SessionTurn",
    "TrainBatch",
]
