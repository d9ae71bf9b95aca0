"""What a fix may harm is read from its words: each deed is found, and what one line takes back is not one."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from rlcheck.harm import DEEDS, deeds
from rlcheck.playbook import Library, Recipe, fill
from rlcheck.report.wording import caution
from tests.diagnose.matches import without

HARMS = (
    ("install", "Install the matching pair", ""),
    ("install", "Take the older one", "pip install 'click<8.2'"),
    ("install", "Or do without it (pip uninstall torchvision)", ""),
    ("install", "Read its notes; upgrade the engine", ""),
    ("install", "Take the system's", "apt-get install -y gcc"),
    ("install", "Fuse it. Otherwise upgrade accelerate", ""),
    ("install", "Use a newer NCCL", ""),
    ("mount", "Have /tmp mounted without noexec", ""),
    ("restart", "Start the container with --cap-add=SYS_NICE", ""),
    ("system", "Switch off PCI access control (ACS) and the IOMMU in the firmware", ""),
    ("kill", "End the other process if it is yours", ""),
    ("kill", "Free the port", "kill 4711"),
    ("kill", "Free the ports: `ray stop`", ""),
    ("delete", "Free space: delete old checkpoints", ""),
    ("delete", "Make room", "rm -rf ~/.cache/huggingface"),
    ("delete", "Remove the damaged cache", ""),
    ("mount", "Enlarge it", "mount -o remount,size=64G /dev/shm"),
    ("restart", "Reboot the machine", ""),
    ("restart", "Let Docker see it", "systemctl restart docker"),
    ("restart", "More shared memory", "docker run --shm-size=64g IMAGE"),
    ("system", "Raise it", "sysctl -w vm.max_map_count=262144"),
    ("system", "Raise it for all", "echo '* soft nofile 65536' >> /etc/security/limits.conf"),
    ("foreign code", "Load it", "actor_rollout_ref.model.trust_remote_code=True"),
    ("foreign code", "Load it: torch.load(path, weights_only=False)", ""),
    ("foreign code", "Get it", "curl -fsSL https://example.com/install.sh | bash"),
    ("owner", "Own it", "sudo chown -R me /data"),
    ("owner", "Open it", "chmod -R 777 /data"),
    ("protection", "Open all ports between the nodes", ""),
    ("unset", "Let every GPU be seen", "unset CUDA_VISIBLE_DEVICES"),
    ("unset", "Or unset LD_LIBRARY_PATH", ""),
    ("list", "Leave the proxy out", "export no_proxy=localhost,127.0.0.1"),
    ("unknown", "Do it", "frobnicate --all"),
    ("kill", "End actors and placement groups of an earlier run", ""),
    ("kill", "Close other programs that hold memory", ""),
    ("delete", "Go back to an intact checkpoint and remove the damaged one", ""),
    ("restart", "A GPU that fell off the bus needs a reset or a reboot", ""),
    ("system", "Look at the cable of eth1, or remove its address", ""),
    ("system", "Raise the limits: memlock unlimited in limits.conf", ""),
    ("system", "On bare metal, switch off PCI access control (ACS)", ""),
    ("protection", "As root in a container: OMPI_ALLOW_RUN_AS_ROOT=1", ""),
    ("protection", "As root", "mpirun --allow-run-as-root -n 2 train"),
    ("protection", "Widen the range, and open it in the firewall", ""),
    ("unset", "Or unset http_proxy and https_proxy for Ray", ""),
    ("unknown", "Look first", "ls -l; frobnicate"),
    ("unknown", "Look first", "ls | xargs frobnicate"),
    ("unknown", "Look there", "ssh HOST frobnicate && ls"),
    ("delete", "Make room there", "ssh -p 22 HOST 'cd /tmp; rm -rf ray'"),
    ("delete", "Make room", "env LC_ALL=C sudo rm -r /tmp/ray"),
    ("delete", "Make room: `ssh HOST rm -rf /tmp/ray`", ""),
    ("delete", "Make room on each", 'for node in a b; do ssh "$node" rm -rf /tmp/ray; done'),
    ("restart", "Docker", "bash -c 'sleep 1 && reboot'"),
    ("unset", "In this shell", "true && unset LD_LIBRARY_PATH"),
    ("install", "After a look", "pip install --dry-run torch && pip install torch"),
)
HARMLESS = (
    ("Lower the share", "actor_rollout_ref.rollout.gpu_memory_utilization=0.5", "config"),
    ("Name the interface", "export NCCL_SOCKET_IFNAME=eth0", "env"),
    ("Leave the proxy out", 'export no_proxy="localhost,10.0.0.5,$no_proxy"', "env"),
    ("In both spellings", "export no_proxy=10.0.0.5,$no_proxy,$NO_PROXY\nexport NO_PROXY=$no_proxy", "env"),
    ("Put it first", "export LD_LIBRARY_PATH=$CONDA_PREFIX/lib:$LD_LIBRARY_PATH", "env"),
    ("Raise the limit of this shell", "ulimit -n 65536", "shell"),
    ("Move it away", "mv ~/.cache/torch_extensions ~/.cache/torch_extensions.old", "shell"),
    ("See what pip would do", "pip install --dry-run --upgrade torch", "look"),
    ("Look for a kill by the kernel", "dmesg -T | grep -i 'killed process'", "look"),
    ("Remove the option max_prompt_length from the script", "", "advice"),
    ("Go on after an upgrade of the driver", "", "advice"),
    ("Compare clocks, power and temperature", "", "advice"),
    ("Resume from the last checkpoint", "trainer.resume_mode=auto", "config"),
    ("Keep the token to yourself", "chmod 600 ~/.cache/huggingface/token", "shell"),
    ("In an agent loop, stop the clients first", "", "advice"),
    ("Clip observations and reset such environments", "", "advice"),
    ("Look at the MTU with `ip link`", "", "advice"),
    ("Look there", "ssh -N -L 8265:127.0.0.1:8265 head && echo 'a; frobnicate' | sort", "shell"),
)


@pytest.mark.parametrize(("deed", "title", "command"), HARMS)
def test_a_deed_is_found(deed: str, title: str, command: str) -> None:
    recipe = Recipe(title=title, kind="shell" if command else "advice", command=command)
    assert deed in [one.name for one in recipe.deeds]
    assert recipe.safety == "unsafe"
    assert recipe.harm


def test_each_deed_of_the_table_is_tried() -> None:
    assert {deed.name for deed in DEEDS} | {"unknown"} == {deed for deed, _, _ in HARMS}


@pytest.mark.parametrize(("title", "command", "kind"), HARMLESS)
def test_what_one_line_takes_back_is_safe(title: str, command: str, kind: str) -> None:
    assert deeds(title, command, kind) == ()


def test_one_command_has_one_label() -> None:
    """Whichever playbook offers it, and whatever stands above it."""
    library, labels = Library(), defaultdict[str, dict[str, list[str]]](lambda: defaultdict(list))
    for playbook_id in library.ids():
        for fix in library.get(playbook_id).fixes:
            if fix.command:
                labels[" ".join(fix.command.split())][fix.safety].append(playbook_id)
    assert {command: dict(found) for command, found in labels.items() if len(found) > 1} == {}


@pytest.mark.parametrize(("value", "safety"), [("True", "unsafe"), ("False", "safe")])
def test_an_override_is_judged_by_what_it_sets(value: str, safety: str) -> None:
    recipe = Recipe(title="Set the key that the finding names", kind="config", command="{{override}}")
    fix = fill(recipe, {"override": f"actor_rollout_ref.model.trust_remote_code={value}"})
    assert fix.safety == safety
    assert bool(fix.destroys) == (safety == "unsafe")


def test_a_report_names_the_harm_and_the_caution() -> None:
    install = Recipe(title="Install it", kind="package", command="pip install ninja", caution="on every node")
    assert caution(fill(install, {})) == "unsafe: changes installed packages; on every node"
    docker = Recipe(title="Again", kind="shell", command="docker start x", destroys="All that is only in it")
    assert caution(fill(docker, {})) == "unsafe: all that is only in it"
    test = Recipe(title="As a test", kind="env", command="export NCCL_IB_DISABLE=1", caution="slow")
    assert caution(fill(test, {})) == "safe, but slow"
    assert caution(fill(Recipe(title="Look", kind="look", command="ls"), {})) == ""
    assert caution(fill(Recipe(title="Reboot it", kind="advice"), {})).startswith("unsafe: restarts a machine")


PATTERNS = [(deed.name, *one) for deed in DEEDS for one in deed.patterns]


# What stands around a list defeats the walk; HARMS tries it.
@pytest.mark.parametrize(("signs", "pattern"), [one[1:] for one in PATTERNS if one[0] != "list"])
def test_what_a_pattern_matches_has_one_of_its_signs(signs: tuple[str, ...], pattern: str) -> None:
    texts = without(pattern, "\0")  # one for each way through the pattern
    assert texts
    dead = [text for text in texts if not any(sign in f"{text}\n".lower() for sign in signs)]
    assert not dead, "a deed that is not found; add a sign: " + repr(dead)


def test_signs_hide_no_deed_of_a_playbook() -> None:
    library = Library()
    texts = [f"{fix.title}\n{fix.command}" for id in library.ids() for fix in library.get(id).fixes]
    hidden = [
        (name, pattern, text)
        for name, signs, pattern in PATTERNS
        for text in texts
        if re.search(pattern, text, re.M) and not any(sign in f"{text}\n".lower() for sign in signs)
    ]
    assert len(texts) > 1000
    assert not hidden
