"""What users find in their logs, and what `rlcheck diagnose` answers: the problem by name, and what to type."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT, rlcheck
from tests.rows.machines import says


def diagnosed(log: str, playbook: str, *words: str) -> None:
    """LOG is known as PLAYBOOK, before all else, and the answer holds WORDS."""
    done = rlcheck("diagnose", "-", stdin=log.encode())
    says(done, f"rlcheck explain {playbook}", *words)
    assert done.out.index(f"rlcheck explain {playbook}") == done.out.index("rlcheck explain ")


@pytest.mark.row("F01")
def test_pip_names_two_sides() -> None:
    log = "vllm 0.24.0 requires torch==2.11.0, but you have torch 2.10.0 which is incompatible.\n"
    diagnosed(log, "dependency-conflict", "vllm 0.24.0 requires torch==2.11.0", "pip install torch==2.11.0")


@pytest.mark.row("F01")
def test_verl_does_not_import() -> None:
    log = (
        "ImportError: tensordict>=0.8.0,<=0.10.0,!=0.9.0 is required for a normal functioning of this module, "
        "but found tensordict==0.6.2.\n"
    )
    diagnosed(log, "required-version-refused", "tensordict==0.6.2")


@pytest.mark.row("F02")
@pytest.mark.parametrize(
    ("log", "playbook", "said"),
    [
        ("ImportError: /v/flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs",
         "undefined-symbol", "c10::Error"),
        ("ImportError: /v/vllm/_C.abi3.so: undefined symbol: _ZNK3c1011StorageImpl27throw_data_ptr_access_errorEv",
         "undefined-symbol", "c10::StorageImpl::throw_data_ptr_access_error"),
        ("RuntimeError: operator torchvision::nms does not exist", "torch-companions", "torchvision"),
        ("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
         "cuda-major-mismatch", "CUDA 12"),
        ("OSError: libcudnn.so.9: cannot open shared object file: No such file or directory", "cuda-major-mismatch",
         "libcudnn.so.9"),
    ],
)  # fmt: skip
def test_an_engine_that_does_not_import_beside_a_torch_that_does(log: str, playbook: str, said: str) -> None:
    diagnosed(log + "\n", playbook, said)


@pytest.mark.row("F03")
def test_the_number_of_an_old_driver_is_read() -> None:
    log = "RuntimeError: The NVIDIA driver on your system is too old (found version 12080).\n"
    diagnosed(log, "driver-too-old-for-torch", "12.8", "580")


@pytest.mark.row("F05")
def test_another_patch_version_of_python_on_a_node() -> None:
    log = (
        "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.60.0\n    Python: 3.11.7\n"
        "This process on node 192.0.2.7 was started with:\n    Ray: 2.60.0\n    Python: 3.11.9\n"
    )
    diagnosed(log, "ray-versions-differ", "3.11.7", "3.11.9", "patch")


@pytest.mark.row("F06")
def test_the_words_of_an_old_tensordict() -> None:
    log = "RuntimeError: TensorDict does not support membership checks with the `in` keyword.\n"
    diagnosed(log, "tensordict-version", "0.1.2", "0.8")


@pytest.mark.row("F07")
@pytest.mark.parametrize(
    ("log", "playbook", "said"),
    [
        ("RuntimeError: Failed to find C compiler. Please specify via CC environment variable.", "c-compiler-missing",
         "build-essential"),
        ("/tmp/x/main.c:4:10: fatal error: Python.h: No such file or directory\n"
         '  File "/v/triton/backends/nvidia/driver.py", line 72, in compile_module_from_src', "python-headers-missing",
         "-dev"),
    ],
)  # fmt: skip
def test_triton_cannot_compile(log: str, playbook: str, said: str) -> None:
    diagnosed(log + "\n", playbook, said, "use_torch_compile=False")


@pytest.mark.row("F08")
@pytest.mark.parametrize("name", ["check_env", "test_ray_connectivity"])
@pytest.mark.parametrize(
    "log",
    [
        "ImportError: cannot import name '{name}' from 'verl.utils' (/v/verl/utils/__init__.py)",
        "ModuleNotFoundError: No module named 'verl.{name}'",
        "ModuleNotFoundError: No module named 'verl.utils.debug.{name}'",
        "AttributeError: module 'verl' has no attribute '{name}'",
        "NameError: name '{name}' is not defined",
        "bash: {name}: command not found",
        "zsh: command not found: {name}",
    ],
)
def test_a_function_that_only_guides_know(log: str, name: str) -> None:
    log = log.format(name=name) + "\n"
    diagnosed(log, "verl-check-functions", "No release of verl has them", "rlcheck env\n", "rlcheck ray --head-ip")


@pytest.mark.row("F10")
def test_out_of_gpu_memory() -> None:
    log = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 13.91 GiB. GPU 0 has a total capacity of "
        "79.10 GiB of which 8.02 GiB is free. Of the allocated memory 60.11 GiB is allocated by PyTorch.\n"
    )
    diagnosed(log, "gpu-out-of-memory", "13.9", "8.0", "rlcheck memory-profile")


@pytest.mark.row("F13")
@pytest.mark.parametrize(
    ("log", "playbook", "said"),
    [
        ("ValueError: Free memory on device (31.02/79.1 GiB) on startup is less than desired GPU memory utilization "
         "(0.9, 71.19 GiB).", "engine-share-of-gpu", "31.02"),
        ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
         "initializing the engine.", "kv-cache-too-small", "gpu_memory_utilization"),
    ],
)  # fmt: skip
def test_no_memory_for_the_kv_cache(log: str, playbook: str, said: str) -> None:
    diagnosed(log + "\n", playbook, said)


@pytest.mark.row("F13", "F24")
@pytest.mark.parametrize(
    "log",
    [
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.",
        "WARNING scheduler.py:1057] Sequence group 7 is preempted by PreemptionMode.RECOMPUTE mode because there is "
        "not enough KV cache space.",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "ValueError: Prefill out of memory. Try to lower your batch size.",
    ],
)
def test_a_larger_share_is_computed_and_no_constant(log: str) -> None:
    """A run that has 0.9 is not told to raise it to 0.8, and no other is told a number that nobody has computed."""
    own = ("--config", str(ROOT / "docs" / "examples" / "grpo-7b.sh"), "actor_rollout_ref.rollout."
           "gpu_memory_utilization=0.9")  # fmt: skip
    for options in ((), own):
        done = rlcheck("diagnose", "-", *options, stdin=f"{log}\n".encode())
        says(done, "rlcheck memory-profile CONFIG")
        assert "gpu_memory_utilization=0." not in done.out.replace(own[-1], "")


@pytest.mark.row("F14")
def test_tensors_on_two_devices() -> None:
    log = (
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!\n"
    )
    diagnosed(log, "tensors-on-two-devices", "cuda:0", "cpu", "offload")


@pytest.mark.row("F15")
def test_cannot_allocate_memory() -> None:
    diagnosed("OSError: [Errno 12] Cannot allocate memory\n", "host-memory-too-small", "memory.max")


@pytest.mark.row("F20", "F21")
def test_an_engine_that_is_on_another_node() -> None:
    log = (
        "requests.exceptions.ConnectionError: HTTPConnectionPool(host='127.0.0.1', port=30000): Max retries exceeded "
        "with url: /generate (Caused by NewConnectionError('Failed to establish a new connection: [Errno 111] "
        "Connection refused'))\n"
    )
    diagnosed(log, "rollout-server-refuses", "127.0.0.1:30000", "--host 0.0.0.0 for callers on other nodes")


@pytest.mark.row("F22")
def test_an_engine_that_does_not_come_up() -> None:
    log = "TimeoutError: Timed out waiting for engine core processes to start. Waited 600s.\n"
    diagnosed(log, "engine-start-timeout", "600")


@pytest.mark.row("F23")
def test_ray_refuses_two_lists_of_devices() -> None:
    log = "ValueError: Inconsistant values found. Please use either HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES.\n"
    diagnosed(log, "hip-cuda-visible-devices", "unset")


@pytest.mark.row("F24")
@pytest.mark.parametrize(
    ("log", "playbook"),
    [
        ("WARNING scheduler.py:1057] Sequence group 7 is preempted by PreemptionMode.RECOMPUTE mode because there "
         "is not enough KV cache space.", "engine-preempts-requests"),
        ("ValueError: The request queue is full.", "rollout-server-busy"),
    ],
)  # fmt: skip
def test_more_requests_than_the_engine_takes(log: str, playbook: str) -> None:
    diagnosed(log + "\n", playbook, "max_num_seqs")


@pytest.mark.row("F24")
def test_sglang_retracts_again_and_again() -> None:
    log = "[TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: 0.51 -> 0.93\n"
    done = rlcheck("diagnose", "-", stdin=(log * 20).encode())
    words = ("[!] SGLang's KV cache or request pool is full", "--max-running-requests", "rlcheck memory-profile CONFIG")
    says(done, *words, code=0)
    once = rlcheck("diagnose", "-", stdin=log.encode())
    says(once, "[✓] No error in what was read", code=0)


@pytest.mark.row("F25")
def test_an_illegal_access_in_the_engine_is_narrowed_down_in_order() -> None:
    log = "(EngineCore_DP0 pid=412) torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
    diagnosed(log, "gpu-illegal-access", "CUDA_LAUNCH_BLOCKING=1", "enforce_eager", "1. ", "2. ", "3. ")


@pytest.mark.row("F30")
def test_a_line_that_is_no_json() -> None:
    log = "pyarrow.lib.ArrowInvalid: JSON parse error: Missing a comma or '}' after an object member. in row 12\n"
    diagnosed(log, "data-lines", "in row 12", "rlcheck data FILE")


@pytest.mark.row("F31")
def test_a_home_that_nobody_expands() -> None:
    log = "FileNotFoundError: [Errno 2] No such file or directory: '~/data/gsm8k/train.parquet'\n"
    diagnosed(log, "data-file-missing", "~/data/gsm8k/train.parquet", "~")


@pytest.mark.row("F34")
def test_token_ids_beyond_the_reward_models_vocabulary() -> None:
    diagnosed(
        "IndexError: index out of range in self\n", "token-outside-vocabulary", "a reward model of another family"
    )
    says(rlcheck("explain", "token-outside-vocabulary"), "need not have the actor's architecture")


@pytest.mark.row("F40")
@pytest.mark.parametrize(
    ("log", "playbook", "said"),
    [
        ("step:12 - critic/vf_loss:inf - actor/pg_loss:nan - actor/grad_norm:nan", "training-turned-nan", "clip"),
        ("response: " + "!" * 64, "answers-of-exclamation-marks", "weights"),
    ],
)
def test_nan_and_exclamation_marks(log: str, playbook: str, said: str) -> None:
    diagnosed(log + "\n", playbook, said)


@pytest.mark.row("F42")
def test_probabilities_that_differ() -> None:
    log = "step:57 - training/rollout_probs_diff_mean:0.031 - actor/grad_norm:17.4\n"
    diagnosed(log, "rollout-and-training-differ", "0.031", "rlcheck drift")


@pytest.mark.row("F43")
def test_target_modules_of_another_family() -> None:
    log = "ValueError: Target modules {'q_proj', 'v_proj'} not found in the base model.\n"
    diagnosed(log, "run-lora-targets", "q_proj", "all-linear")


@pytest.mark.row("F50")
def test_the_gcs_is_not_reached() -> None:
    log = "gcs_rpc_client.h:179: Failed to connect to GCS at address 192.0.2.1:6379 within 5 seconds.\n"
    diagnosed(log, "ray-gcs-unreachable", "192.0.2.1:6379", "rlcheck ray --head-ip HEAD")


@pytest.mark.row("F51")
def test_an_old_ray_on_the_port() -> None:
    log = (
        "ConnectionError: Ray is trying to start at 192.0.2.1:6379, but is already running at 192.0.2.1:6379. "
        "Please specify a different port using the `--port` flag of `ray start` command.\n"
    )
    diagnosed(log, "ray-already-running", "ray stop")


@pytest.mark.row("F51")
def test_rays_port_and_another_one_that_is_taken() -> None:
    log = "Failed to bind to port {}: [Errno 98] Address already in use\n"
    diagnosed(log.format(6379), "ray-port-occupied", "Redis", "6379", "ray stop")
    diagnosed(log.format(8000), "port-in-use", "ss -ltnp 'sport = :8000'")
    assert ":29500" not in rlcheck("diagnose", "-", stdin=log.format(8000).encode()).out


@pytest.mark.row("F52")
def test_no_worker_registers_under_slurm() -> None:
    log = (
        "core_worker.cc:203: Failed to register worker 01000000ffff to Raylet. IOError: [RayletClient] "
        "Unable to register worker with raylet. No such file or directory\n"
    )
    diagnosed(log, "ray-worker-not-registered", "ray_kwargs.ray_init.num_cpus")


@pytest.mark.row("F54")
def test_the_watchdog_ends_a_collective() -> None:
    log = (
        "[rank3]:[E1120 10:00:00.000 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600021 milliseconds "
        "before timing out.\n"
    )
    diagnosed(log, "collective-timeout", "ALLREDUCE", "rlcheck nccl")


@pytest.mark.row("F55")
@pytest.mark.parametrize("engine", ["", "(EngineCore_DP0 pid=412) INFO vLLM 0.24.0 on ROCm\n"])
def test_a_memory_fault_on_amd_gets_the_steps_of_amd(engine: str) -> None:
    log = f"{engine}Memory access fault by GPU node-4 (Agent handle: 0x55d1) on address 0x7f12. Reason: Unknown.\n"
    diagnosed(log, "amd-illegal-access", "AMD_SERIALIZE_KERNEL=3", "HSA_NO_SCRATCH_RECLAIM", "rlcheck env\n")
    out = rlcheck("diagnose", "-", stdin=log.encode()).out
    assert not [word for word in ("Xid", "xid", "compute-sanitizer", "CUDA_LAUNCH_BLOCKING") if word in out]


@pytest.mark.row("F55")
def test_a_memory_fault_beside_msccl() -> None:
    log = (
        "gpu-03:411:980 [2] NCCL INFO RCCL version 2.22.3, MSCCL: initialising for 8 ranks\n"
        "Memory access fault by GPU node-4 (Agent handle: 0x55d1) on address 0x7f12. Reason: Unknown.\n"
    )
    diagnosed(log, "rccl-msccl-crash", "ROCm 6.4", "export RCCL_MSCCL_ENABLE=0")


@pytest.mark.row("F56")
@pytest.mark.parametrize(
    "log",
    [
        "Permission Denied: Try running again with elevated permissions by going 'sudo env \"PATH=$PATH\" !!'",
        "Could not attach to process: ptrace: Operation not permitted.",
    ],
)
def test_a_hung_run_in_a_container_that_may_not_be_traced(log: str) -> None:
    diagnosed(log + "\n", "ptrace-forbidden", "docker run --cap-add=SYS_PTRACE")


@pytest.mark.row("F57")
def test_the_host_network_is_no_sin() -> None:
    says(rlcheck("explain", "ray-advertised-address"), "--network=host", "nothing in Docker, Ray or NCCL does")


@pytest.mark.row("F58")
def test_a_lock_of_somebody_else() -> None:
    log = "PermissionError: [Errno 13] Permission denied: '/data/hf/hub/.locks/models--Qwen--Qwen2.5-7B/abc.lock'\n"
    diagnosed(log, "hf-foreign-locks", "/data/hf/hub/.locks", "HF_HOME")


@pytest.mark.row("F67")
def test_a_script_for_torchrun_without_it() -> None:
    log = (
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK "
        "expected, but not set\n"
    )
    diagnosed(log, "not-under-torchrun", "torchrun")


@pytest.mark.row("F70")
@pytest.mark.parametrize(
    ("log", "playbook"),
    [
        ("ModuleNotFoundError: No module named 'modeling_internlm2'", "local-module-missing"),
        ("ValueError: The repository for org/model contains custom code which must be executed to correctly load the "
         "model.", "run-remote-code"),
    ],
)  # fmt: skip
def test_code_of_the_model(log: str, playbook: str) -> None:
    diagnosed(log + "\n", playbook, "actor_rollout_ref.model.trust_remote_code=True")


@pytest.mark.row("F71")
@pytest.mark.parametrize(
    ("log", "playbook", "said"),
    [
        ("requests.exceptions.ProxyError: HTTPConnectionPool(host='192.0.2.1', port=8265): Max retries exceeded "
         "with url: /api/version (Caused by ProxyError('Unable to connect to proxy', OSError('Tunnel connection "
         "failed: 403 Forbidden')))",
         "proxy-fails", "no_proxy"),
        ("OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the "
         "cached files.",
         "hf-unreachable", "HF_ENDPOINT"),
    ],
)  # fmt: skip
def test_a_proxy_in_the_way(log: str, playbook: str, said: str) -> None:
    diagnosed(log + "\n", playbook, said)
