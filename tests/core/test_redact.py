"""No secret and no name of a person survives, and nothing else is harmed."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcheck.facts.base import known
from rlcheck.facts.document import Facts, encode
from rlcheck.facts.platform import PlatformFacts
from rlcheck.finding import Finding, Report
from rlcheck.redact import redact, redact_bytes

ALICE = {"HOME": "/home/alice", "USER": "alice"}
HEXADECIMAL = "0123456789abcdef" * 2 + "01234567"
SECRETS = {
    "hugging face": "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345",
    "openai": "sk-proj-abcdefghijklmnopqrstuvwxyz012345",
    "github": "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "github fine": "github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz",
    "gitlab": "glpat-abcdefghijklmnop_qrs",
    "slack": "xoxb-123456789012-abcdefghijkl",
    "pypi": "pypi-AgEIcHlwaS5vcmcCJGFiY2RlZg",
    "aws id": "AKIAIOSFODNN7EXAMPLE",
}


def cleaned(text: str, environ: dict[str, str] | None = None) -> str:
    return json.loads(redact_bytes(json.dumps(text, ensure_ascii=False).encode(), environ or {}))


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("around", ["{}", "x {} y", "('{}')", '"{}"', "/a/{}/b", "a={}&b=1", "\n{}\n", "\\{}\\"])
def test_tokens_are_known_by_their_form(name: str, around: str) -> None:
    secret = SECRETS[name]
    assert secret[8:] not in cleaned(around.format(secret))


@pytest.mark.parametrize(
    "text",
    [
        "https://user:hunter2hunter2@host/x",
        "http://hunter2hunter2@proxy:3128",
        "git+ssh://u:hunter2hunter2@h/r.git",
        "postgres://u:hunter2hunter2@db",
        "https://u:hunter2hunter2@[::1]:80/",
        "x https://a:hunter2hunter2@b y",
        "https://u:p@hunter2hunter2@h/x",
        "WANDB_API_KEY=hunter2hunter2",
        "api_key: hunter2hunter2",
        "api-key = hunter2hunter2",
        "TOKEN=hunter2hunter2",
        "aws_secret_access_key = hunter2hunter2",
        "password: hunter2hunter2",
        "passwd=hunter2hunter2&x=1",
        "Authorization: Bearer hunter2hunter2",
        "authorization: basic hunter2hunter2==",
        '{"token": "hunter2hunter2"}',
        "--token=hunter2hunter2",
        "secret = 'hunter2hunter2'",
        'password = "hunter2hunter2"',
        "--token hunter2hunter2",
        "https://host/x?access_token=hunter2hunter2",
        "https://host/x?sig=1&token=hunter2hunter2&y=2",
        f'wandb.login(key="{HEXADECIMAL}")',
        f"wandb.login(relogin=True, key={HEXADECIMAL})",
        f"key: {HEXADECIMAL}",
        f"machine api.wandb.ai login user password {HEXADECIMAL}",
    ],
)
def test_credentials_in_text(text: str) -> None:
    assert "hunter2" not in cleaned(text)
    assert HEXADECIMAL not in cleaned(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/alice/x", "~/x"),
        ("/home/alice", "~"),
        ("'/home/alice'", "'~'"),
        ("/home/alice:/home/bob/y", "~:/home/***/y"),
        ("/home/alice2/x", "/home/***/x"),
        ("/home/alice-old", "/home/***"),
        ("/Users/alice/x", "/Users/***/x"),
        ("/data/alice/x", "/data/$USER/x"),
        ("/data/alice", "/data/$USER"),
        ("/scratch/alice, full", "/scratch/$USER, full"),
        ("(/scratch/alice)", "(/scratch/$USER)"),
        ("/scratch/alice.", "/scratch/$USER."),
        ("/data/malice/x", "/data/malice/x"),
        ("/data/alice2/x", "/data/alice2/x"),
        ("file:///home/alice/x", "file://~/x"),
        ("/home/***/x", "/home/***/x"),
        ("/tmp/torchinductor_alice", "/tmp/torchinductor_$USER"),
        ("/tmp/malice", "/tmp/malice"),
    ],
)
def test_names_in_paths(text: str, shown: str) -> None:
    assert cleaned(text, ALICE) == shown


def test_names_without_a_home_or_user() -> None:
    assert cleaned("/home/alice/x") == "/home/***/x"
    assert cleaned("/data/alice/x", {"LOGNAME": "alice"}) == "/data/$USER/x"
    assert cleaned("/export/people/alice/x", {"HOME": "/export/people/alice"}) == "~/x"
    assert cleaned("/root/x /data/root/y", {"HOME": "/root", "USER": "root"}) == "/root/x /data/root/y"


@pytest.mark.parametrize(
    "text",
    [
        "expected 64 GiB, found 8 GiB",
        "/usr/lib/python3/site-packages",
        "https://github.com/vllm-project/vllm/issues/1",
        "token present: yes",
        "tokenizers 0.22.1",
        "sk-learn",
        "pip install torch==2.11.0",
        "user@host",
        "NCCL_DEBUG=INFO",
        "max_tokens: 512",
        "tokens=4096",
        "num_tokens=1024",
        "the token is readable",
        "HF_TOKEN is set",
        f"commit {HEXADECIMAL}",
        f"cache_key_prefix {HEXADECIMAL}",
        "key=0123abcd",
        f"monkey={HEXADECIMAL}",
    ],
)
def test_harmless_text_is_left_alone(text: str) -> None:
    assert cleaned(text, ALICE) == text


def test_documents_stay_documents() -> None:
    facts = Facts(
        node="n", environ=known({"https_proxy": "http://u:pw@p:1"}), platform=known(PlatformFacts(kernel="/home/alice"))
    )
    data = redact_bytes(encode((facts,)), ALICE)
    assert json.loads(data)["nodes"][0]["environ"]["value"] == {"https_proxy": "http://***@p:1"}
    report = Report(version="1", command="env", checks=(
        Finding(id="HFC001", title="token", headline="h", family="HFC", status="fail", message='{"token": "abcdefgh"}'),
    ))  # fmt: skip
    clean = redact(report, Report, ALICE)
    assert clean.checks[0].title == "token"
    assert "abcdefgh" not in clean.checks[0].message


def test_a_report_with_undecodable_bytes() -> None:
    report = Report(version="1", command="env", notes=("a\udcffb",))
    assert redact(report, Report, {"HOME": "/home/\udcff", "USER": "\udcffabc"}).notes == ("a\ufffdb",)


@settings(max_examples=500, deadline=None)
@given(
    st.recursive(
        st.text() | st.text("\"\\:/=@ '&{}token%=hf_sk-home", max_size=40) | st.integers() | st.booleans() | st.none(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["token", "password", "a"]), inner),
        max_leaves=8,
    )
)
def test_json_stays_json(tree: object) -> None:
    data = json.dumps(tree, ensure_ascii=False).encode("utf-8", "replace")
    again = json.loads(redact_bytes(data, ALICE))
    assert type(again) is type(tree)
    assert redact_bytes(redact_bytes(data, ALICE), ALICE) == redact_bytes(data, ALICE)


@pytest.mark.parametrize(
    "piece",
    [
        "-",
        "--token ",
        "token",
        "token:",
        "token=",
        "://",
        "://a@",
        "hf_",
        "/home/",
        "bearer ",
        '"name": "token',
        "a",
        " ",
        "\\n",
    ],
)
def test_a_megabyte_takes_no_time(piece: str) -> None:
    """No pattern goes over the same text again and again."""
    data = json.dumps({"name": piece * (1_000_000 // len(piece)), "value": "x"}).encode()
    started = time.process_time()
    redact_bytes(data, ALICE)
    assert time.process_time() - started < 5
