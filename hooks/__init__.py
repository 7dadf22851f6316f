"""The contract between features and upstreams; everything else imports it, it imports nobody.

decisions        the answers of a probe: native, inject, off, unsupported, each with evidence
errors           what a user is told: feature, tree, target, expected, found, remedy
feature          what a feature states about itself
binding_points   the statement that a patch set puts into a module, as text
conditions       what the sources of a tree must show, as plain values
cache_folder     where what was fetched is kept
conflicts        arguments that a feature cannot have beside it
git_environment  git's own variables, without those that name another repository
nearest_name     the closest known name to a mistyped one
selection        `--plugins` text to the features that are on
settings         TOML, environment and command line to one frozen model per feature
values           the plain values that hooks exchange
proofs           what the real servers must show, and the requests that ask for it
common_prefix    how far two sequences of tokens agree
alignment        the unit to which trainers pad a sample
weight_versions  the order of weight versions
rollout_ground   what a rollout stands on beside its servers, and whether that failed
rollout          hook specs that the rollout processes call
sessions         hook specs that the session server calls, and who assembles its sessions
routing          hook specs that decide which server and rank answers a request
serving          hook specs that the rollout servers call
training         hook specs that the trainer and its data path call
checkpointing    hook specs that a train rank calls when it saves
launching        hook specs that the launcher and the driver call
manager          entry points to features, features to a pluggy manager
"""

from miles_periodic.hooks.decisions import Decision, Evidence, Inject, Native, Off, Unsupported
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.feature import Feature, FeatureSettings, hookimpl
from miles_periodic.hooks.values import (
    DataParallelSplit,
    RolloutState,
    RoutedAnswer,
    RoutedRequest,
    ServerState,
    TrainBatch,
)

__all__ = [
    "DataParallelSplit",
    "Decision",
    "Evidence",
    "Feature",
    "FeatureSettings",
    "Inject",
    "Native",
    "Off",
    "PeriodicError",
    "RolloutState",
    "RoutedAnswer",
    "RoutedRequest",
    "ServerState",
    "TrainBatch",
    "Unsupported",
    "hookimpl",
]
