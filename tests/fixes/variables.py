"""Faults in environment variables: a wrong, stale or forbidden value is exported, the fix is sourced."""

from __future__ import annotations

import sys

from tests.fixes.scene import Case

_LONG = "/tmp/" + "x" * 60
_PROXY = {"http_proxy": "http://127.0.0.1:9"}

VARIABLES = (
    Case("locale", "SYS042", "locale-not-utf8", "PYTHONUTF8=1", {"PYTHONIOENCODING": "ascii"}),
    Case("locale", "SYS042", "locale-not-utf8", "PYTHONUTF8=1", {"LC_ALL": "de_DE.ISO-8859-1"}),
    Case("locale", "SYS042", "locale-not-utf8", "LC_ALL=C.UTF-8", {"LC_ALL": "C", "PYTHONUTF8": "0"}),
    Case("proxies", "SYS040", "proxy-without-no-proxy", "no_proxy=", _PROXY),
    Case("proxies", "SYS041", "proxy-without-no-proxy", "no_proxy=", {**_PROXY, "no_proxy": "*.example.com"}),
    Case("proxies", "SYS041", "proxy-without-no-proxy", "NO_PROXY=", {**_PROXY, "no_proxy": "localhost,127.0.0.1",
                                                                      "NO_PROXY": "localhost"}),
    Case("proxies", "RAY027", "ray-head-proxy", "unset", {**_PROXY, "RAY_grpc_enable_http_proxy": "1"}),
    Case("temporary directory", "SYS027", "socket-path-too-long", "RAY_TMPDIR=", {"RAY_TMPDIR": _LONG}),
    Case("temporary directory", "SYS027", "socket-path-too-long", "export TMPDIR=", {"TMPDIR": _LONG}),
    Case("temporary directory", "SYS028", "temp-dir-unusable", "export TMPDIR=", {"TMPDIR": "/proc/nothing"}),
    Case("home", "HFC005", "home-unusable", "HOME=", {"HOME": "/nonexistent"}),
    Case("hub cache", "HFC001", "hf-cache-not-writable", "HF_HOME=", {"HF_HOME": "/proc/hf"}),
    Case("hub cache", "HFC001", "hf-cache-not-writable", "HF_HOME=", {"HF_HUB_CACHE": "/proc/hub"}),
    Case("hub client", "HFC018", "hf-offline-empty-cache", "HF_HUB_OFFLINE", {"HF_HUB_OFFLINE": "1"}, ("skip",)),
    Case("hub client", "HFC020", "hf-variables", "HF_ENDPOINT", {"HF_ENDPOINT": "mirror.example"}),
    Case("hub client", "HFC022", "hf-variables", "HF_HUB_ETAG", {"HF_HUB_ETAG_TIMEOUT": "ten"}),
    Case("Python variables", "ENV038", "python-variables", "unset", {"PYTHONOPTIMIZE": "1"}),
    Case("Python variables", "ENV038", "python-variables", "unset", {"PYTHONHOME": sys.base_prefix,
                                                                     "PYTHONOPTIMIZE": "1"}),
    Case("tokenizer threads", "ENV045", "tokenizers-parallelism", "unset", {"TOKENIZERS_PARALLELISM": "true"}),
    Case("thread counts", "ENV044", "thread-variables", "OMP_NUM", {"OMP_NUM_THREADS": "all", "MKL_NUM_THREADS": "0"}),
    Case("debugging variables", "ENV042", "debug-variables", "unset", {"CUDA_LAUNCH_BLOCKING": "1",
                                                                          "TORCHDYNAMO_DISABLE": "1"}),
    Case("NCCL transports", "NCL011", "nccl-no-peer-access", "P2P_DISABLE", {"NCCL_P2P_DISABLE": "1"}),
    Case("NCCL transports", "NCL028", "nccl-plugin-missing", "TUNER", {"NCCL_NET_PLUGIN": "nonesuch",
                                                                       "NCCL_TUNER_PLUGIN": "nonesuch"}),
    Case("NCCL transports", "NCL032", "nccl-plugin-missing", "NCCL_NET", {"NCCL_NET": "IB"}, ("skip", "pass")),
    Case("NCCL tuning", "NCL016", "nccl-tuning-left-over", "CHANNELS", {"NCCL_BUFFSIZE": "1024",
                                                                        "NCCL_MAX_NCHANNELS": "1"}),
    Case("NCCL tuning", "NCL017", "nccl-bootstrap-collision", "COMM_ID", {"NCCL_COMM_ID": "127.0.0.1:4000"}),
    Case("NCCL tuning", "NCL009", "nccl-unknown-variable", "TIMEOUT", {"NCCL_TIMEOUT": "3600"}),
    Case("NCCL logs", "NCL019", "nccl-debug-log", "SUBSYS", {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL"}),
    Case("NCCL logs", "NCL020", "nccl-debug-log", "FILE=", {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/tmp/nccl"}),
    Case("hidden failures", "NCL021", "torch-nccl-errors-hidden", "unset", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}),
    Case("hidden failures", "RAY009", "ray-driver-logs", "unset", {"RAY_LOG_TO_DRIVER": "0"}),
    Case("interfaces", "NET012", "socket-ifname", "unset", {"NCCL_SOCKET_IFNAME": "nonesuch0"}, ("skip", "pass")),
    Case("interfaces", "NET013", "socket-ifname", "unset", {"GLOO_SOCKET_IFNAME": "nonesuch0"}, ("skip", "pass")),
    Case("dead settings", "NCL005", "nccl-unknown-variable", "export", {"NCCL_SOCKET_IFNAM": "eth0"}),
    Case("dead settings", "NCL006", "nccl-unknown-variable", "unset", {"NCCL_TREE_THRESHOLD": "0"}),
    Case("dead settings", "RAY024", "ray-unread-variables", "unset", {"RAY_BACKEND": "ucx"}),
    Case("dead settings", "RAY025", "ray-unread-variables", "export", {"RAY_WORKER_REGISTER_TIMEOUT_SECONDS": "9"}),
    Case("wrong values", "NCL007", "nccl-bad-value", "unset", {"NCCL_P2P_DISABLE": "true", "NCCL_ALGO": "rings"}),
    Case("wrong values", "NCL026", "nccl-bad-value", "unset", {"NCCL_ALGO": "NVLS", "NCCL_NVLS_ENABLE": "0"}),
    Case("wrong values", "NCL029", "nccl-plugin-missing", "unset", {"NCCL_TOPO_FILE": "/none.xml"}, ("skip",)),
    Case("Ray debugger", "RAY007", "ray-test-switches", "unset", {"RAY_DEBUG_POST_MORTEM": "1"}),
    Case("Ray debugger", "RAY005", "ray-test-switches", "unset", {"RAY_DEBUG": "legacy", "RAY_DEBUG_POST_MORTEM": "1"}),
    Case("Ray address", "RAY020", "ray-address-dead", "unset", {"RAY_ADDRESS": "127.0.0.1"}),
    Case("Ray address", "RAY021", "ray-address-dead", "unset", {"RAY_ADDRESS": "127.0.0.1:6399"}),
    Case("Ray memory", "RAY022", "ray-memory-monitor", "unset", {"RAY_memory_monitor_refresh_ms": "0"}),
    Case("Ray memory", "RAY023", "ray-object-store-shm", "unset", {"RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE": "1"}),
    Case("Ray memory", "RAY026", "cpus-fewer-than-seen", "unset", {"RAY_USE_MULTIPROCESSING_CPU_COUNT": "1"}),
    Case("Ray security", "RAY008", "ray-test-switches", "unset", {"RAY_testing_asio_delay_us": "x"}),
    Case("Ray security", "RAY030", "ray-tls", "unset", {"RAY_USE_TLS": "1"}),
)  # fmt: skip
