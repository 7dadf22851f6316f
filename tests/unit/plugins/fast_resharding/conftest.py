import json

import pytest
from megatron_states import write_source
from small_models import CONFIG, state


@pytest.fixture
def config():
    return dict(CONFIG)


@pytest.fixture
def model_folder(tmp_path, config):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.fixture
def expected(config):
    return state(config)


@pytest.fixture
def source(tmp_path, expected):
    write_source(tmp_path / "source", expected, groups=2)
    return tmp_path / "source"


@pytest.fixture
def target(tmp_path):
    return tmp_path / "target"
