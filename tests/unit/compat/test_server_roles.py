"""The roles of a run's servers, read from the arguments of its script."""

import pytest

from miles_periodic.compat.server_roles import roles_on

YAML = """
sglang:
  - name: actor
    server_groups:
      - {worker_type: %s, num_gpus: 1}
      # - worker_type: decode
"""


@pytest.mark.parametrize("arguments", [[], ["--rollout-num-gpus", "8"]])
def test_a_run_without_either_option_has_regular_servers(arguments):
    assert roles_on(arguments) == {"regular"}


@pytest.mark.parametrize("arguments", [["--prefill-num-servers", "1"], ["--prefill-num-servers=1"]])
def test_prefill_servers_bring_decode_servers(arguments):
    assert roles_on(arguments) == {"prefill", "decode"}


@pytest.mark.parametrize("role", ["regular", "decode", '"decode"'])
def test_a_server_yaml_names_its_roles(tmp_path, role):
    file = tmp_path / "servers.yaml"
    file.write_text(YAML % role)
    assert roles_on([f"--sglang-config={file}"]) == {role.strip('"')}


def test_a_server_yaml_that_cannot_be_read_may_hold_any_role(tmp_path):
    assert "decode" in roles_on(["--sglang-config", str(tmp_path / "none.yaml")])
