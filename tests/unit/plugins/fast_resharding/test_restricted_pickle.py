import os
import pickle

import pytest
import torch

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding.restricted_pickle import as_records, load


class Attack:
    def __reduce__(self):
        return os.system, ("exit 1",)


def test_code_in_a_pickle_is_refused_by_name_and_does_not_run(monkeypatch):
    data = pickle.dumps(Attack())
    monkeypatch.setattr(os, "system", lambda command: pytest.fail("it ran"))
    with pytest.raises(PeriodicError, match=r"system, which no checkpoint .*\n(.*\n)*.*trust"):
        load(data, {}, where="here")


def test_a_listed_class_becomes_a_record_of_its_state():
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

    kind = "torch.distributed.checkpoint.metadata.ChunkStorageMetadata"
    chunk = ChunkStorageMetadata(torch.Size([1, 2]), torch.Size([3, 4]))
    record = load(pickle.dumps(chunk), as_records(kind), where="here")
    assert (record.kind, record.get("offsets"), record.get("sizes")) == (kind, (1, 2), (3, 4))


def test_an_element_type_is_read_as_its_name():
    assert load(pickle.dumps(torch.bfloat16), {}, where="here") == "bfloat16"


@pytest.mark.parametrize("data", [b"", b"\x80\x04", b"no pickle at all", pickle.dumps([1])[:-1]])
def test_damage_is_an_error_that_names_the_file(data):
    with pytest.raises(PeriodicError, match=r"FILE is not a readable pickle"):
        load(data, {}, where="FILE")
