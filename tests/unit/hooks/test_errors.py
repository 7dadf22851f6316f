"""What a user is told."""

import pickle

from miles_periodic.hooks import PeriodicError
from miles_periodic.hooks.errors import RollCallError


def test_an_error_prints_only_the_parts_it_has():
    error = PeriodicError("It failed.", remedy="Try again.", found="nothing")
    assert str(error) == "It failed.\n  found:    nothing\n  remedy:   Try again."


def test_an_error_survives_the_way_between_processes():
    error = pickle.loads(pickle.dumps(RollCallError("Gone.", target="a:b")))
    assert (type(error), error.status, error.parts["target"]) == (RollCallError, 3, "a:b")
