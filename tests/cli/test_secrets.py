"""Secrets planted wherever the doctor looks: none may appear in anything that it prints or writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import ROOT, Done, rlcheck, write_tree

INFO = "Metadata-Version: 2.1"
MARK = "S3CR3T"
NAME = "zelmira"
HF = f"hf_{MARK}AbCdEfGhIjKlMnOpQrStUv"
AWS = f"wJalr{MARK}XUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
URL = f"https://{NAME}:{MARK}pass@"

VARIABLES = {
    "HF_TOKEN": HF,
    "HUGGING_FACE_HUB_TOKEN": HF,
    "HUGGINGFACE_HUB_TOKEN": HF,
    "WANDB_API_KEY": f"{MARK}0123456789abcdef0123456789abcdef",
    "OPENAI_API_KEY": f"sk-proj-{MARK}abcdefghijklmnop",
    "ANTHROPIC_API_KEY": f"sk-ant-{MARK}abcdefghijklmnop",
    "VLLM_API_KEY": f"{MARK}-vllm",
    "SGLANG_API_KEY": f"{MARK}-sglang",
    "NGC_API_KEY": f"nvapi-{MARK}abcdefghijklmnop",
    "AWS_ACCESS_KEY_ID": f"AKIA{MARK}7EXAMPLE1234",
    "AWS_SECRET_ACCESS_KEY": AWS,
    "AWS_SESSION_TOKEN": f"{MARK}//////////wEXAMPLE",
    "GITHUB_TOKEN": f"ghp_{MARK}abcdefghijklmnopqrstuvwxyz01",
    "RAY_AUTH_TOKEN": f"{MARK}-ray-token",
    "MODELSCOPE_API_TOKEN": f"{MARK}-modelscope",
    "MY_PASSWORD": f"{MARK}-password",
    "http_proxy": f"http://{NAME}:{MARK}pass@proxy.example.org:3128",
    "https_proxy": f"http://{NAME}:{MARK}pass@proxy.example.org:3128",
    "HTTPS_PROXY": f"http://{NAME}:{MARK}pass@proxy.example.org:3128",
    "ALL_PROXY": f"socks5://{NAME}:{MARK}pass@proxy.example.org:1080",
    "no_proxy": "localhost",
    "HF_ENDPOINT": f"{URL}hub.example.org",
    "RAY_ADDRESS": f"ray://{NAME}:{MARK}pass@head:10001",
    "PIP_INDEX_URL": f"{URL}index.example.org/simple",
    "PIP_EXTRA_INDEX_URL": f"{URL}index.example.org/simple {URL}other.example.org/simple",
    "UV_INDEX_URL": f"{URL}index.example.org/simple",
    "WANDB_BASE_URL": f"{URL}wandb.example.org",
    "VLLM_EXTRA": f"--api-key={MARK}-inline",
    "NCCL_UNKNOWN_VARIABLE": f"token={MARK}inline",
    "USER": NAME,
    "LOGNAME": NAME,
}
FILES = {
    ".netrc": f"machine huggingface.co login {NAME} password {MARK}netrc\n",
    ".cache/huggingface/token": HF,
    ".cache/huggingface/stored_tokens": f"[default]\nhf_token = {HF}\n",
    ".huggingface/token": HF,
    ".aws/credentials": f"[default]\naws_secret_access_key = {AWS}\n",
    ".config/pip/pip.conf": f"[global]\nindex-url = {URL}index.example.org/simple\nextra-index-url =\n  {URL}a/\n",
    ".pip/pip.conf": f"[global]\nindex-url = {URL}index.example.org/simple\n",
    ".config/uv/uv.toml": f'index-url = "{URL}index.example.org/simple"\n',
    ".git-credentials": f"{URL}github.com\n",
    ".gitconfig": f'[url "{URL}github.com/"]\n  insteadOf = https://github.com/\n',
    ".docker/config.json": json.dumps({"auths": {"r": {"auth": f"{MARK}docker"}}}),
    ".nccl.conf": f"NCCL_DEBUG=INFO\nNCCL_TOKEN={MARK}conf\n",
    ".condarc": f"channels:\n  - {URL}conda.example.org/t/tk-{MARK}/main\n",
    "site/verl-0.9.1.dist-info/METADATA": f"{INFO}\nName: verl\nVersion: 0.9.1\nRequires-Dist: torch>=99\n",
    "site/verl-0.9.1.dist-info/RECORD": "verl/__init__.py,,\n",
    "site/verl-0.9.1.dist-info/direct_url.json": json.dumps(
        {"url": f"{URL}github.com/volcengine/verl.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    ),
    "site/vllm-0.7.0.dist-info/METADATA": f"{INFO}\nName: vllm\nVersion: 0.7.0\nRequires-Dist: torch @ {URL}h/t.whl\n",
    "site/vllm-0.7.0.dist-info/direct_url.json": json.dumps(
        {"url": f"file:///home/{NAME}/vllm", "dir_info": {"editable": True}}
    ),
    "site/__editable__.vllm-0.7.0.pth": f"/home/{NAME}/src/vllm\n",
    "site/easy.pth": f"/home/{NAME}/src/other\n",
    "site/verl/__init__.py": "",
}
FORMATS = ("text", "json", "markdown", "junit", "sarif", "prometheus", "nagios")
Env = dict[str, str | None]


@pytest.fixture
def planted(tmp_path: Path) -> Env:
    home = write_tree(tmp_path / "home" / NAME, FILES)
    for name in (".cache/huggingface/token", ".netrc"):
        (home / name).chmod(0o600)
    return {
        **VARIABLES,
        "HOME": str(home),
        "HF_HOME": str(home / ".cache/huggingface"),
        "TMPDIR": str(home),
        "NCCL_CONF_FILE": str(home / ".nccl.conf"),
        "LD_LIBRARY_PATH": f"/home/{NAME}/lib:/data/{NAME}/lib",
        "CUDA_HOME": f"/home/{NAME}/cuda",
        "TRITON_CACHE_DIR": f"/scratch/{NAME}/triton",
        "VIRTUAL_ENV": str(home / "venv"),
        "PYTHONPATH": f"{ROOT}:{home / 'site'}",
    }


def assert_clean(done: Done) -> None:
    assert done.code in (0, 1) or done.out.startswith("RLCHECK CRITICAL"), done.err
    for stream in (done.out, done.err):
        for line in stream.splitlines():
            assert MARK not in line, line
            assert NAME not in line, line


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("more", [(), ("-v",)])
def test_no_format_shows_one(format: str, more: tuple[str, ...], planted: Env) -> None:
    done = rlcheck("env", "--format", format, *more, env=planted)
    assert len(done.out) > (100 if format == "nagios" else 500)
    assert_clean(done)


def test_no_file_keeps_one(planted: Env, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    assert_clean(rlcheck("env", "--format", "json", "-o", report, env=planted))
    assert_clean(Done(0, report.read_text(), "", 0))


def test_a_facts_file_holds_none(planted: Env, tmp_path: Path) -> None:
    done = rlcheck("collect", env=planted)
    assert_clean(done)
    facts = json.loads(done.out)["nodes"][0]
    environ = facts["environ"]["value"]
    assert environ["HF_TOKEN"] != ""
    assert environ["http_proxy"].endswith("@proxy.example.org:3128"), "what is no secret is kept"
    path = tmp_path / "facts.json"
    path.write_text(done.out)
    for format in FORMATS:
        assert_clean(rlcheck("env", "--facts", path, "--format", format, "-v"))


def test_a_dry_run_shows_none(planted: Env, tmp_path: Path) -> None:
    done = rlcheck("env", "--fix", "--dry-run", env=planted, cwd=tmp_path)
    assert MARK not in done.out + done.err
