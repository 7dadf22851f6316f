"""The plan as every process of a run receives it: one environment variable, stdlib only."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from miles_periodic.compat.binding import Binding

if TYPE_CHECKING:  # They bring pydantic, which not every process of a run has to import.
    from miles_periodic.hooks.feature import Feature, FeatureSettings

#: The gate: unset, the .pth line does nothing; set, it holds the encoded manifest.
GATE = "MILES_PERIODIC"
#: The run's id in clear, so that the launcher can find the run's processes on its node.
RUN_ID = "MILES_PERIODIC_RUN_ID"


class ManifestError(ValueError):
    """The gate is set to something that is not a manifest of this version."""


@dataclass(frozen=True, slots=True)
class FeatureReference:
    """A feature that is on: where its class is, and its settings as plain JSON values."""

    slug: str
    path: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, feature: type[Feature], settings: FeatureSettings) -> FeatureReference:
        """The reference to a feature's class, with its settings."""
        where = f"{feature.__module__}:{feature.__qualname__}"
        return cls(feature.slug, where, settings.model_dump(mode="json"))


@dataclass(frozen=True, slots=True)
class RunManifest:
    """What a process of a run needs to know.

    run_id: unique per launch.
    roll_call: `host:port` of the launcher's roll call.
    token: secret that opens the roll call.
    features: the features that are on, in the order in which their wrappers compose.
    bindings: the bindings to apply; each process applies those whose modules it imports.
    in_sources: names of bindings for which no import hook is needed: the modules of the launcher's
        trees put them in by themselves.
    stand_ins: catalog of CPU stand-ins as `module:attribute`, or empty.
    meter: folder that the meter writes to, or empty for no meter.
    ends_with_launcher: whether a process without bindings, too, stops when the launcher is gone.
    """

    run_id: str
    roll_call: str
    token: str
    features: tuple[FeatureReference, ...] = ()
    bindings: tuple[Binding, ...] = ()
    in_sources: tuple[str, ...] = ()
    stand_ins: str = ""
    meter: str = ""
    ends_with_launcher: bool = False

    def encode(self) -> str:
        """The gate's value: compressed JSON in base64."""
        text = json.dumps(asdict(self), separators=(",", ":"))
        return base64.b64encode(zlib.compress(text.encode(), 9)).decode()

    @classmethod
    def decode(cls, text: str) -> RunManifest:
        """The manifest in a gate's value; ManifestError where it is none."""
        try:
            parts = json.loads(zlib.decompress(base64.b64decode(text, validate=True)))
            parts["features"] = tuple(FeatureReference(**part) for part in parts["features"])
            parts["bindings"] = tuple(_binding(part) for part in parts["bindings"])
            parts["in_sources"] = tuple(parts["in_sources"])
            return cls(**parts)
        except (binascii.Error, zlib.error, ValueError, KeyError, TypeError) as error:
            raise ManifestError(f"{GATE} holds no manifest of this version: {error}") from error

    def environment(self) -> dict[str, str]:
        """The variables that a process of the run needs."""
        return {GATE: self.encode(), RUN_ID: self.run_id}


def _binding(part: dict[str, Any]) -> Binding:
    lists = {key: tuple(value) for key, value in part.items() if isinstance(value, list)}
    return Binding(**{**part, **lists})
