"""The environment probe records what matters and never a secret (F71, F58)."""

import msgspec
import pytest

from rlcheck.facts.base import known
from rlcheck.facts.document import Facts, decode, encode
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.environ import collect
from rlcheck.remote.agent.environ import SET, VALUE_LIMIT


def recorded(**environ: str) -> dict[str, str]:
    return collect(ProbeContext(environ=environ))


def test_records_the_allowed_and_leaves_out_the_rest():
    found = recorded(
        NCCL_DEBUG="INFO", HOME="/home/a", MY_APP="x", AWS_REGION="y", no_proxy="10.0.0.0/8", LOCAL_RANK="3"
    )
    assert found == {"HOME": "/home/a", "LOCAL_RANK": "3", "NCCL_DEBUG": "INFO", "no_proxy": "10.0.0.0/8"}


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "RAY_REDIS_PASSWORD", "RAY_AUTH_TOKEN",
     "RAY_TLS_SERVER_KEY", "SLURM_JWT", "RAY_JOB_HEADERS", "RAY_JOB_CONFIG_JSON_ENV_VAR", "SGLANG_API_KEY",
     "APPTAINER_DOCKER_PASSWORD",
     "APPTAINER_ENCRYPTION_PASSPHRASE", "VLLM_api_key", "WANDB_COOKIE"],
)  # fmt: skip
def test_a_secret_is_recorded_only_as_set(name: str):
    assert recorded(**{name: "s3cret-value-123"}) == {name: SET}


def test_an_empty_secret_is_recorded_as_empty():
    assert recorded(HF_TOKEN="") == {"HF_TOKEN": ""}


@pytest.mark.parametrize(
    "name", ["RAY_AUTH_MODE", "NCCL_IB_PKEY", "HF_TOKEN_PATH", "TOKENIZERS_PARALLELISM", "RAY_AUTH_TOKEN_PATH"]
)
def test_harmless_names_that_look_like_secrets_are_shown(name: str):
    assert recorded(**{name: "value"}) == {name: "value"}


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("https_proxy", "http://bob:pw@proxy:3128", "http://***@proxy:3128"),
        ("HTTPS_PROXY", "http://bob:p@ss@proxy:3128/", "http://***@proxy:3128/"),
        ("http_proxy", "bob:pw@proxy:3128", "***@proxy:3128"),
        ("http_proxy", "proxy:3128", "proxy:3128"),
        ("HF_ENDPOINT", "https://mirror/x?token=abcdef&a=1", "https://mirror/x?token=***&a=1"),
        ("PIP_EXTRA_INDEX_URL", "https://u:p@a/simple https://t@b/simple", "https://***@a/simple https://***@b/simple"),
    ],
)
def test_credentials_in_urls_are_cut_out(name: str, value: str, shown: str):
    assert recorded(**{name: value}) == {name: shown}


def test_long_values_are_cut_and_odd_bytes_survive_json():
    found = recorded(PATH="x" * 10_000, HF_HOME=b"/a/\xff".decode("utf-8", "surrogateescape"))
    assert len(found["PATH"]) == VALUE_LIMIT + 1
    assert found["HF_HOME"] == "/a/\ufffd"
    assert decode(encode((Facts(environ=known(found)),)))[0].environ.value == found


def test_names_that_are_no_names_are_left_out():
    assert recorded(**{"NCCL_\x1b[31m": "1", "RAY_A B": "1", "BASH_FUNC_x%%": "() {"}) == {}


def test_an_empty_environment_is_a_value():
    assert recorded() == {}
    assert msgspec.json.encode(recorded()) == b"{}"
