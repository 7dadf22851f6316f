import json

import pytest
from small_models import CONFIG


@pytest.fixture
def config():
    return dict(CONFIG)


@pytest.fixture
def model_folder(tmp_path, config):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
