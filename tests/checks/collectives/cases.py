"""Facts on which each NCL check fires, and facts on which it stays quiet."""

from __future__ import annotations

from typing import Any

from rlcheck.facts.base import absent, known
from rlcheck.facts.document import Facts
from rlcheck.facts.nccl import (
    ConfFile,
    ConfSetting,
    DebugFile,
    NamedFile,
    NcclFacts,
    NcclLibrary,
    NcclPlugin,
    TorchLinkage,
)
from rlcheck.facts.python import Distribution, PythonFacts, TorchFacts
from tests.checks.collectives.collective_cases import CASES as COLLECTIVE_CASES
from tests.checks.network.cases import EIGHT_IB, V4_GID, hca, net, roce

SITE = "/venv/lib/python3.12/site-packages"
BUNDLED = NcclLibrary(path=f"{SITE}/nvidia/nccl/lib/libnccl.so.2", origin="bundled", version="2.28.9")
FOREIGN = NcclLibrary(path="/opt/nccl/lib/libnccl.so.2", origin="LD_LIBRARY_PATH", version="2.21.5")
SYSTEM = NcclLibrary(path="/usr/lib/x86_64-linux-gnu/libnccl.so.2", origin="system", version="2.28.3")


def linkage(**changes: Any) -> TorchLinkage:
    values: dict[str, Any] = {
        "path": f"{SITE}/torch/lib/libtorch_cuda.so", "search": "rpath", "loaded": BUNDLED.path, "loaded_by": "rpath",
        "loaded_version": "2.28.9",
    }  # fmt: skip
    return TorchLinkage(**{**values, **changes})


def python(*names: str, hip: str = "") -> Any:
    found = tuple(Distribution(name=name, version="2.28.9", location=SITE) for name in names)
    torch = TorchFacts(version="2.11.0", cuda="" if hip else "13.0", hip=hip, bundled_nccl="2.28.9")
    return known(PythonFacts(distributions=found, torch=known(torch)))


def ncl(env: dict[str, str] | None = None, base: Facts | None = None, **changes: Any) -> Facts:
    """Facts with these variables and NCCL facts, on a machine without RDMA unless `base` says otherwise."""
    values: dict[str, Any] = {"libraries": (BUNDLED,), "torch": known(linkage()), "debug_file": absent("not set")}
    section = known(NcclFacts(**{**values, **changes}))
    base = base or net()
    return Facts(environ=known(env or {}), nccl=section, network=base.network, python=python("nvidia-nccl-cu13"))


def with_python(section: Any, env: dict[str, str] | None = None) -> Facts:
    return Facts(python=section, environ=known(env or {}))


def conf(*rows: tuple[str, str], origin: str = "system", path: str = "/etc/nccl.conf") -> ConfFile:
    found = tuple(ConfSetting(name=name, value=value, line=line) for line, (name, value) in enumerate(rows, 1))
    return ConfFile(path=path, origin=origin, settings=known(found))


IB = net(*EIGHT_IB)
ROCE = net(hca("mlx5_0", roce(V4_GID)))
LOG = "/scratch/nccl.log"
LOG_FILE = DebugFile(path=LOG, directory="/scratch", writable=known(True), free_bytes=known(1 << 20))
TOPO = NamedFile(variable="NCCL_TOPO_FILE", path="/opt/microsoft/ndv5-topo.xml", exists=known(False))
OFI = NcclPlugin(kind="net", suffix="ofi", path="/opt/amazon/lib/libnccl-net-ofi.so")

CASES: dict[str, tuple[Facts, Facts]] = {
    "NCL001": (
        ncl(libraries=(BUNDLED, FOREIGN), torch=known(linkage(
            search="runpath", loaded=FOREIGN.path, loaded_by="LD_LIBRARY_PATH", loaded_version="2.21.5"))),
        ncl(libraries=(BUNDLED, FOREIGN)),
    ),
    "NCL002": (ncl(libraries=(BUNDLED, FOREIGN)), ncl(libraries=(BUNDLED, SYSTEM))),
    "NCL003": (
        with_python(python("nvidia-nccl-cu12", "nvidia-nccl-cu13", "torch")),
        with_python(python("nvidia-nccl-cu13", "torch")),
    ),
    "NCL004": (ncl(torch=known(linkage(loaded_version="2.29.2"))), ncl()),
    "NCL005": (ncl({"NCCL_SOCKET_IFNAMES": "eth0"}), ncl({"NCCL_SOCKET_IFNAME": "eth0", "NCCL_VERSION": "2.28.3-1"})),
    "NCL006": (ncl({"NCCL_IB_CUDA_SUPPORT": "1"}), ncl({"NCCL_NET_GDR_LEVEL": "PHB"})),
    "NCL007": (ncl({"NCCL_ALGO": "Rings"}), ncl({"NCCL_ALGO": "allreduce:ring,tree;broadcast:ring"})),
    "NCL008": (ncl({"NCCL_CHECK_MODE": "DEFAULT"}), ncl({"NCCL_IB_FIFO_TC": "84"})),
    "NCL009": (ncl({"NCCL_TIMEOUT": "3600"}), ncl({"NCCL_IB_TIMEOUT": "22"})),
    "NCL010": (
        with_python(python("torch"), {"RCCL_MSCCL_ENABLE": "0"}),
        with_python(python("torch", hip="7.2.1"), {"RCCL_MSCCL_ENABLE": "0"}),
    ),
    "NCL011": (ncl({"NCCL_P2P_DISABLE": "1"}), ncl({"NCCL_P2P_DISABLE": "0"})),
    "NCL012": (ncl({"NCCL_IB_DISABLE": "1"}, IB), ncl({"NCCL_IB_DISABLE": "0"}, IB)),
    "NCL013": (ncl({"NCCL_CUMEM_ENABLE": "0"}, imex_channel=True), ncl({"NCCL_CUMEM_ENABLE": "0"})),
    "NCL014": (ncl({"NCCL_NVLS_ENABLE": "0"}), ncl({"NCCL_NVLS_ENABLE": "2"})),
    "NCL015": (ncl({"NCCL_PROTO": "LL128"}), ncl()),
    "NCL016": (ncl({"NCCL_MAX_NCHANNELS": "1"}), ncl({"NCCL_MAX_CTAS": "16", "NCCL_BUFFSIZE": "8388608"})),
    "NCL017": (ncl({"NCCL_COMM_ID": "10.0.0.1:12345"}), ncl()),
    "NCL018": (ncl({"NCCL_CROSS_NIC": "1"}, IB), ncl({"NCCL_CROSS_NIC": "0"}, IB)),
    "NCL019": (ncl({"NCCL_DEBUG": "TRACE"}), ncl({"NCCL_DEBUG": "WARN"})),
    "NCL020": (
        ncl({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": LOG}, debug_file=known(LOG_FILE)),
        ncl({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p.log"}),
    ),
    "NCL021": (ncl({"NCCL_ASYNC_ERROR_HANDLING": "0"}), ncl({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"})),
    "NCL022": (ncl({"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}), ncl({"TORCH_FR_BUFFER_SIZE": "2000"})),
    "NCL023": (ncl(conf_files=(conf(("NCCL_TOPO_FILE", "/opt/topo.xml")),)), ncl()),
    "NCL024": (
        ncl({"NCCL_IB_HCA": "=mlx5_0"}, conf_files=(conf(("NCCL_IB_HCA", "mlx5")),)),
        ncl({"NCCL_IB_HCA": "mlx5"}, conf_files=(conf(("NCCL_IB_HCA", "mlx5")),)),
    ),
    "NCL025": (
        ncl(conf_files=(conf(("export NCCL_DEBUG", "INFO"), ("NCCL_NET ", "IB")),)),
        ncl(conf_files=(conf(("NCCL_DEBUG", "INFO")),)),
    ),
    "NCL026": (ncl({"NCCL_IB_DISABLE": "1", "NCCL_NET": "IB"}), ncl({"NCCL_NET": "IB", "NCCL_IB_HCA": "=mlx5_0"})),
    "NCL027": (ncl({"NCCL_NTHREADS": "256"}), ncl({"NCCL_SOCKET_IFNAME": "eth0"})),
    "NCL028": (ncl({"NCCL_NET": "AWS Libfabric"}), ncl({"NCCL_NET_PLUGIN": "ofi"}, plugins=(OFI,))),
    "NCL029": (ncl({"NCCL_TOPO_FILE": TOPO.path}, named_files=(TOPO,)), ncl()),
    "NCL030": (ncl({"NCCL_IB_HCA": "=mlx5_0,mlx5_99"}, IB), ncl({"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"}, IB)),
    "NCL031": (ncl({"NCCL_IB_TC": "106"}, ROCE), ncl({"NCCL_IB_TC": "52", "NCCL_IB_FIFO_TC": "84"}, ROCE)),
    "NCL032": (ncl({"NCCL_NET": "gIB"}), ncl({"NCCL_NET": "IB"}, IB)),
}  # fmt: skip

CASES |= COLLECTIVE_CASES
