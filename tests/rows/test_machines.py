"""What users hit on one machine, answered by `rlcheck env`: recorded machines, also with one thing changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import ROOT, rlcheck, write_tree
from tests.rows.machines import RECORDS, examined, finding, says, says_of

NONE = {"missing": {"kind": "absent", "reason": "there is none"}}
SITE = "~/venv/lib/python3.12/site-packages"


@pytest.mark.row("F01")
def test_two_packages_that_want_different_versions_of_a_third() -> None:
    both = "verl 0.9.1[sglang] requires transformers==5.9.0, sglang 0.5.12 requires transformers==5.6.0"
    says_of(examined("sglang-verl-conflict"), "✗ ENV005", f"{both}: no version satisfies both", code=1)


@pytest.mark.row("F02")
def test_companions_of_torch_from_another_build() -> None:
    done = examined("broken-venv")
    says_of(done, "✗ ENV012", "torchvision 0.28.0 is built for CUDA 13, beside a CPU-only torch",
            "--no-deps 'torchvision==0.28.*'", "--index-url https://download.pytorch.org/whl/cpu", code=1)  # fmt: skip
    says_of(done, "✗ ENV020", "libtorchaudio.abi3.so lacks 1 symbol(s)")
    says_of(done, "✗ ENV021", "_torchaudio.abi3.so needs libc10_cuda.so")


@pytest.mark.row("F03")
def test_a_driver_older_than_torchs_cuda() -> None:
    """The number that torch reports is the driver's: 1000 × major + 10 × minor."""
    says_of(examined("a100-driver-535"), "✗ GPU008", "driver 535.54.03 with CUDA 12.2 (reported as 12020)",
         "580 or later", "whl/cu129", code=1)  # fmt: skip


@pytest.mark.row("F04")
def test_torch_from_conda_and_from_pip() -> None:
    done = examined("conda-pip-mixture")
    says_of(done, "ENV029", "torch: 2.4.0 from conda, 2.6.0 from pip", "remove torch with pip (pip uninstall)")
    says_of(done, "ENV030", "~/.local/lib/python3.10/site-packages: transformers")


@pytest.mark.row("F04")
def test_an_old_checkout_before_the_installed_package(tmp_path: Path) -> None:
    checkout = write_tree(tmp_path / "verl-old", {"verl/__init__.py": ""})
    site = installed_verl(tmp_path / "site", "0.9.1", {"RECORD": "verl/__init__.py,,\n"})
    write_tree(site, {"verl/__init__.py": ""})
    done = rlcheck("env", "--select", "ENV031", env={"PYTHONPATH": f"{ROOT}:{checkout}:{site}"})
    says_of(done, "ENV031", f"verl is found first in {checkout}/verl", "fix Leave the directory with that verl out",
            f"export PYTHONPATH={ROOT}:{site}\n")  # fmt: skip


@pytest.mark.row("F04")
def test_an_old_editable_install_before_the_installed_package(tmp_path: Path) -> None:
    old = write_tree(tmp_path / "verl-old", {"verl/__init__.py": "", "pyproject.toml": ""})
    editable = {"RECORD": "__editable__.verl-0.3.0.pth,,\n",
                "direct_url.json": json.dumps({"url": f"file://{old}", "dir_info": {"editable": True}})}  # fmt: skip
    first = write_tree(
        installed_verl(tmp_path / "site", "0.3.0", editable), {"__editable__.verl-0.3.0.pth": f"{old}\n"}
    )
    second = installed_verl(tmp_path / "release", "0.9.1", {"RECORD": "verl/__init__.py,,\n"})
    write_tree(second, {"verl/__init__.py": ""})
    done = rlcheck("env", "--select", "ENV028", env={"PYTHONPATH": f"{ROOT}:{old}:{first}:{second}"})
    fix = "pip install --force-reinstall --no-deps verl"
    says_of(done, "ENV028", f"verl 0.3.0 from {old} and verl 0.9.1 in {second}", fix)


def installed_verl(site: Path, version: str, files: dict[str, str]) -> Path:
    """A directory of packages with what pip writes down of verl."""
    metadata = {"METADATA": f"Metadata-Version: 2.1\nName: verl\nVersion: {version}\n", **files}
    return write_tree(site, {f"verl-{version}.dist-info/{name}": text for name, text in metadata.items()})


@pytest.mark.row("F05")
def test_python_3_9() -> None:
    says_of(examined("h200-host", {"python.version": "3.9.18"}), "✗ ENV001", "Python 3.9.18, which",
         "torch 2.11.0 requires Python >=3.10", "uv venv --python 3.12", code=1)  # fmt: skip


@pytest.mark.row("F06")
def test_the_fallback_of_tensordict_on_arm() -> None:
    old = [{"name": "tensordict", "version": "0.1.2", "location": SITE, "installer": "pip"}]
    done = examined("gh200-torch-without-cuda", {"python.distributions": old})
    says_of(done, "✗ ENV036", "tensordict 0.1.2: pip falls back",
            "pip install 'verl>=0.5' 'tensordict>=0.8,<=0.10,!=0.9.0'",
            "build tensordict 0.6.2 from its git repository", code=1)  # fmt: skip


@pytest.mark.row("F07")
def test_no_compiler_for_triton() -> None:
    bare = {"system.toolchain.compilers": {}, "system.toolchain.cc": "", "system.toolchain.python_h": NONE}
    done = examined("h200-host", bare)
    says_of(done, "✗ SYS037", "apt-get install -y build-essential", code=1)
    says_of(done, "✗ SYS038", "none in /usr/include/python3.12")


@pytest.mark.row("F15")
def test_the_memory_limit_of_a_container() -> None:
    """126 GiB in the machine, 4 GiB for this process: a small model cannot be loaded."""
    sizes = {"limit": 4 << 30, "used": 3 << 30, "reclaimable": 0}
    small = {f"system.cgroup.memory_{name}_bytes": {"value": size} for name, size in sizes.items()}
    done = examined("h200-host", small)
    says(done, "4.0 GiB memory")
    says_of(done, "SYS010", "1 GiB of 4 GiB", "limit of the container or job")


@pytest.mark.row("F23")
def test_lists_of_amd_devices_that_disagree() -> None:
    done = examined("mi300x-rocm-mismatch")
    says_of(done, "✗ GPU043", "'0,1,2,3,4,5,6,7' and '0,1,2,3'", "unset CUDA_VISIBLE_DEVICES", code=1)
    says_of(done, "✗ RAY004", "Ray 2.53.0 (ValueError: use either of them)")


@pytest.mark.row("F23")
def test_rocr_visible_devices() -> None:
    done = examined("mi300x-healthy", {"environ.ROCR_VISIBLE_DEVICES": "0,1"})
    says_of(done, "GPU044", "ROCR_VISIBLE_DEVICES", "unset ROCR_VISIBLE_DEVICES", code=1)


@pytest.mark.row("F52")
def test_a_slurm_step_with_few_of_the_processors() -> None:
    done = examined("slurm-step-4-of-112-cpus")
    says_of(done, "SYS017", "4 in its affinity mask", "export SRUN_CPUS_PER_TASK=112", "ray start --num-cpus=4")
    says_of(done, "SYS015", "and Ray counts 112")


@pytest.mark.row("F53")
def test_two_debuggers_of_ray_at_once() -> None:
    both = {"RAY_DEBUG": "legacy", "RAY_DEBUG_POST_MORTEM": "1"}
    says_of(rlcheck("env", "--select", "RAY", env=both), "RAY005", "not both", "unset RAY_DEBUG\n")


@pytest.mark.row("F54")
def test_what_makes_nccl_hang_is_seen_before_it_hangs() -> None:
    done = examined("h100-ib-port-init")
    says_of(done, "✗ SYS002", "64 KiB", "--ulimit memlock=-1 --cap-add=IPC_LOCK")
    says_of(done, "NET002", "mlx5_7:1: state INIT")
    says_of(examined("roce-wrong-gid-index"), "NET008", "NCCL_IB_GID_INDEX", "link-local")
    says_of(examined("h200-host", {"environ.NCCL_SOCKET_IFNAME": "eth7"}), "NET012", "eth7")


@pytest.mark.row("F55")
def test_settings_of_rccl_for_this_rocm() -> None:
    says_of(examined("mi300x-healthy", {"python.torch.hip": "6.4.43482"}), "GPU046", "export RCCL_MSCCL_ENABLE=0")
    two = [{"node": node, "gfx": "gfx90a"} for node in (2, 3)]
    says_of(
        examined("mi300x-healthy", {"python.torch.hip": "7.13.0", "rocm.devices": {"value": two}}),
        "GPU047",
        "export HSA_NO_SCRATCH_RECLAIM=1",
    )


@pytest.mark.row("F56")
def test_a_container_as_it_comes() -> None:
    says_of(examined("l4-container-small-shm"), "✗ SYS001", "44 MiB free of 64 MiB for 2 GPUs", "--shm-size=", code=1)
    docker = {"platform.container": "docker", "system.process.capabilities": {"value": ["dac_override"]},
              "system.limits.memlock": {"value": {"soft": 65536, "hard": 65536}}}  # fmt: skip
    done = examined("h100-ib-healthy", docker)
    says_of(done, "✗ SYS002", "--cap-add=IPC_LOCK")
    says_of(done, "SYS032", "fix SYS002 first")
    assert "--privileged" not in done.out


@pytest.mark.row("F56")
def test_a_container_without_the_devices_of_rdma() -> None:
    """/sys has the host's cards; what a program opens is not there."""
    record = json.loads((RECORDS / "h100-ib-healthy.json").read_text())["nodes"][0]
    rdma = [{**card, "uverbs_usable": False} for card in record["network"]["value"]["rdma"]["value"]]
    done = examined("h100-ib-healthy", {"platform.container": "docker", "network.rdma": {"value": rdma}})
    says_of(done, "NET006", "mlx5_0: /dev/infiniband/uverbs0 missing or not permitted",
            "docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1")  # fmt: skip


@pytest.mark.row("F58")
def test_a_cache_of_somebody_else() -> None:
    done = examined("shared-hf-cache")
    says_of(done, "HFC006", "214 of uid 1007", "export HF_HOME=")
    says_of(done, "HFC010", "1.0 GiB in /data/hf/hub")
    says_of(done, "HFC012", "TRANSFORMERS_CACHE=/data/hf/transformers; the cache is /data/hf/hub")


@pytest.mark.row("F71")
def test_a_proxy_before_the_head() -> None:
    behind = {
        "http_proxy": "http://proxy.example.com:3128",
        "RAY_ADDRESS": "10.0.0.1:6379",
        "no_proxy": "localhost,127.0.0.1",
    }
    says_of(rlcheck("env", "--select", "SYS", env=behind), "SYS040", "10.0.0.1 not in no_proxy",
         "export no_proxy=localhost,127.0.0.1")  # fmt: skip


@pytest.mark.row("F71")
def test_a_mirror_that_is_no_address() -> None:
    says_of(
        rlcheck("env", "--select", "HFC", env={"HF_ENDPOINT": "hf-mirror.com"}), "HFC020", "hf-mirror.com", "https://"
    )


@pytest.mark.row("F72")
def test_closed_device_nodes_of_amd() -> None:
    closed = [{"path": path, "gid": 993, "mode": "660"} for path in ("/dev/kfd", "/dev/dri/renderD128")]
    done = examined("mi300x-healthy", {"platform.container": "docker", "system.devices.nodes": closed})
    says_of(done, "✗ SYS035", "/dev/kfd", "--group-add 993", code=1)


@pytest.mark.row("F73")
def test_a_debugger_that_ray_is_too_old_for() -> None:
    old = [{"name": "ray", "version": "2.10.0", "location": SITE, "installer": "pip"}]
    done = examined("h200-host", {"python.distributions": old, "environ.RAY_DEBUG": "1"})
    says_of(done, "RAY006", "found Ray 2.10.0", "fix", "pip install 'ray[default]>=2.39' 'debugpy>=1.8.0'",
            "runtime_env={'env_vars': {'RAY_DEBUG': '1'}}")  # fmt: skip
    assert "unset RAY_DEBUG" not in done.out, "the user wants the debugger"


@pytest.mark.row("F73")
def test_a_debugger_without_debugpy() -> None:
    new = [{"name": "ray", "version": "2.53.0", "location": SITE, "installer": "pip"}]
    done = examined("h200-host", {"python.distributions": new, "environ.RAY_DEBUG": "1"})
    says_of(done, "RAY006", "found no debugpy", "fix Install debugpy", "pip install 'debugpy>=1.8.0'")
    assert "ray[default]" not in finding(done, "RAY006"), "Ray is new enough"
    assert "unset RAY_DEBUG" not in done.out


@pytest.mark.row("F73")
def test_where_the_words_of_workers_are() -> None:
    done = rlcheck("env", "--select", "RAY", env={"RAY_LOG_TO_DRIVER": "0"})
    says_of(done, "RAY009", "the driver shows no output of its workers", "unset RAY_LOG_TO_DRIVER")
    says(rlcheck("explain", "ray-driver-logs"), "`ray job logs` when the driver itself shows nothing")
    says(rlcheck("explain", "ray-test-switches"), "runtime_env={'env_vars': …}", "Ray 2.39 or later")
