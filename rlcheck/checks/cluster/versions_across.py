"""Versions that must, or should, be the same on every node."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.checks.cluster.nodes import differing, machines, minority, version_lines, versions
from rlcheck.facts.document import Facts

_LIBRARIES = ("vllm", "sglang", "transformers", "tensordict", "numpy")


@check("RAY047", "All nodes have the same Ray and Python", needs=("cluster",), playbook="ray-versions-differ",
       problem="The nodes have different Ray or Python")  # fmt: skip
def ray_and_python(facts: Facts) -> Verdict:
    """Compares the version of Ray and of Python, with its patch level, over all nodes.

    What it does:
        Reads both in the environment in which each node's agent ran. Over Ray that is the environment of the node.

    Why it matters:
        Ray refuses a node or a driver whose Ray differs, or whose Python differs even in the patch version
        (3.11.7 and 3.11.9), with "Version mismatch: The cluster was started with".
    """
    if len(machines(facts)) < 2:
        return skip("fewer than two nodes answered")
    odd = [(name, text) for name in ("ray", "python") if (text := differing(versions(facts, name)))]
    if not odd:
        return passed(_agreed(facts, ("ray", "python")))
    if not any("ray" in machine.versions for machine in machines(facts).values()):
        # Without Ray anywhere the patch version of Python is nobody's business yet.
        return info(f"Python differs: {odd[0][1]}; Ray, once installed, wants the same patch version everywhere")
    return fail(
        "one version of Ray and one of Python, to the patch level, on all nodes",
        "; ".join(f"{_title(name)}: {text}" for name, text in odd),
        evidence=tuple(evidence(f"cluster.members[].machine.versions[{name}]", text) for name, text in odd),
        params=_params(facts, odd[0][0], odd[0][0]),
    )


@check("RAY048", "All nodes have the same torch and NCCL", needs=("cluster",), playbook="libraries-differ-across-nodes",
       caused_by=("RAY047",),
       problem="The nodes have different builds of torch or NCCL")  # fmt: skip
def torch_and_nccl(facts: Facts) -> Verdict:
    """Compares torch, the CUDA it is built for, and the NCCL it loads.

    What it does:
        Fails when NCCL differs between nodes with GPUs, or torch is missing on some; warns when only torch or its CUDA
        differ. The head is left out when it has no torch at all.

    Why it matters:
        NCCL compares versions when ranks meet and stops with "Mismatched NCCL version detected". With equal NCCL a
        different torch computes with other kernels and saves checkpoints that the others may not read.
    """
    if len(machines(facts)) < 2:
        return skip("fewer than two nodes answered")
    odd = version_lines(facts, ("torch", "torch_cuda", "torch_nccl"))
    if not any(versions(facts, name) for name in ("torch", "torch_nccl")):
        return skip("torch is on none of the nodes")
    if not odd:
        return passed(_agreed(facts, ("torch", "torch_cuda", "torch_nccl")))
    with_gpus = {node for node, machine in machines(facts).items() if machine.gpus.value}
    nccl = {node: version for node, version in versions(facts, "torch_nccl").items() if node in with_gpus}
    stops = len(set(nccl.values())) > 1
    problem = fail if stops else warn
    return problem(
        "one build of torch and one NCCL on all nodes",
        "; ".join(f"{_title(name)}: {text}" for name, text in odd),
        evidence=tuple(evidence(f"cluster.members[].machine.versions[{name}]", text) for name, text in odd),
        params=_params(facts, odd[0][0], "torch"),
    )


@check("RAY049", "All nodes have the same engine and libraries", needs=("cluster",),
       playbook="libraries-differ-across-nodes", caused_by=("RAY047",),
       problem="The nodes have different versions of the engine or its libraries")  # fmt: skip
def libraries(facts: Facts) -> Verdict:
    """Compares vLLM, SGLang, transformers, tensordict and numpy over all nodes.

    What it does:
        Reports each that differs, or that some nodes lack. The head may lack any of them.

    Why it matters:
        Objects are pickled on one node and read on another: classes that differ stop with AttributeError or a missing
        module, or compute something else. A chat template or a tokenizer differs with transformers.
    """
    if len(machines(facts)) < 2:
        return skip("fewer than two nodes answered")
    odd = version_lines(facts, _LIBRARIES)
    if not odd:
        return passed(_agreed(facts, _LIBRARIES))
    return warn(
        "the same versions on all nodes",
        "; ".join(f"{name}: {text}" for name, text in odd),
        evidence=tuple(evidence(f"cluster.members[].machine.versions[{name}]", text) for name, text in odd),
        params=_params(facts, odd[0][0], odd[0][0]),
    )


@check(
    "RAY050",
    "All nodes run the same driver and system",
    needs=("cluster",),
    playbook="libraries-differ-across-nodes",
    problem="The nodes run different drivers or systems",
)
def system(facts: Facts) -> Verdict:
    """Compares the NVIDIA driver, the kernel and the distribution.

    What it does:
        Warns when nodes have drivers of different branches (the first number), since CUDA features come with the
        branch. Other differences are noted.

    Why it matters:
        A node with an older driver branch runs the same wheel until a kernel needs what the driver lacks, then it alone
        stops; and a node that behaves oddly is often the one that was installed differently.
    """
    if len(machines(facts)) < 2:
        return skip("fewer than two nodes answered")
    branches = {node: version.partition(".")[0] for node, version in versions(facts, "driver").items()}
    odd = [(name, text) for name in ("driver", "kernel", "os") if (text := differing(versions(facts, name)))]
    if not odd:
        return passed(_agreed(facts, ("driver", "kernel", "os")))
    proof = tuple(evidence(f"cluster.members[].machine.versions[{name}]", text) for name, text in odd)
    text = "; ".join(f"{name}: {text}" for name, text in odd)
    if len(set(branches.values())) > 1:
        node = (minority(branches) or list(branches)[-1:])[0]
        return warn("drivers of one branch on all nodes", text, evidence=proof, params={"node": node})
    return info(f"nodes differ in {text}", evidence=proof)


def _title(name: str) -> str:
    return {"ray": "Ray", "python": "Python", "torch_cuda": "CUDA of torch", "torch_nccl": "NCCL of torch"}.get(
        name, name
    )


def _agreed(facts: Facts, wanted: tuple[str, ...]) -> str:
    """What all have in common, for the line of a check that passed."""
    parts = [f"{_title(name)} {next(iter(found.values()))}" for name in wanted if (found := versions(facts, name))]
    return f"{', '.join(parts) or 'none of them installed'} on {len(machines(facts))} nodes"


def _params(facts: Facts, odd: str, package: str) -> dict[str, str]:
    """A node that differs in `odd` and the version of `package` that most nodes have, for the fixes.

    No version where pip cannot install it: Python itself.
    """
    found, wanted = versions(facts, odd), versions(facts, package)
    node = (minority(found) or list(found)[-1:] or [""])[0]
    most = max(wanted.values(), key=list(wanted.values()).count, default="")
    return {"node": node} | ({"package": package, "version": most} if most and package != "python" else {})
