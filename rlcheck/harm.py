"""What a fix may harm, read from its own words: nobody labels a fix by hand, and one command has one label.

A fix is safe when it only looks, or changes something that one line takes back: a variable, an override, a limit of
this shell. It is unsafe when its command or its title does one of the `Deed`s below.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Deed(NamedTuple):
    """A kind of act that one line does not take back. `words` follow "unsafe: it …"."""

    name: str
    words: str
    pattern: re.Pattern[str]


_TO = r"(?:^|(?<=[.:;,(/] )|\b(?i:or|and|then|to|first|else|otherwise|that|you|can|may|please|root) )"
"""Where a verb of a title is an imperative: "Install it", "or install it", but not "after an install"."""
_FILES = (
    r"(?:[^.;]{0,50}?(?:\bdirector(?:y|ies)\b|\bfiles?\b|\bcaches?\b|\bcheckpoints?\b|\bimages?\b|\bsession|\bmodels?\b"
    r"|\bpods?\b|\bsnapshot|\bcop(?:y|ies)\b|\bkernels\b|\bdownloads?\b|\block|\blogs?\b|\bold ones\b|\bdata sets?\b"
    r"|~/|/tmp|/dev/shm|\*\.|__pycache__|_cache\b|\.cache|\bwhat is yours\b|\bunfinished\b|\bpackages?\b))"
)
_LISTS = "|".join(
    ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "LD_PRELOAD", "LIBRARY_PATH", "CPATH", "no_proxy", "NO_PROXY",
     "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
)  # fmt: skip


def _deed(name: str, words: str, *patterns: str) -> Deed:
    return Deed(name, words, re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.M))


DEEDS = (
    _deed(
        "install",
        "changes installed packages",
        r"\b(?:pip3?|uv|conda|mamba|apt|apt-get|dnf|yum|npm|brew|dkms)\b[^;\n]{0,40}? (?:-\S+ )*(?:un|re)?install\b",
        r"\bconda (?:remove|update)\b",
        r"\buv sync\b",
        r"\bwsl --(?:install|update)\b",
        r"\bpip [^;\n]*(?:-U|--upgrade)\b",
        rf"{_TO}(?i:(?:re)?install|upgrade|downgrade)\b",
        rf"{_TO}(?i:(?:use|take) an? (?:newer|older)) (?!.{{0,20}}(?:GPU|node|model|checkpoint))",
        rf"{_TO}(?i:update) [^;:.]{{0,40}}\b(?:drivers?|toolkit|tokenizers|firmware|release)\b",
        r"(?i:\bbuild it (?:again|from source)\b)",
    ),
    _deed(
        "kill",
        "ends processes, and what they have not saved",
        r"\b(?:kill|pkill|killall|fuser -k|scancel)\s+(?:-|\$|\{|<|\d|its PID|PID|JOB)",
        r"\bray (?:stop|down)\b",
        r"\bdocker (?:stop|kill|rm|restart)\b",
        rf"{_TO}(?i:kill|cancel) (?!off)",
        rf"{_TO}(?i:end) (?:the|other|others|what|it|its|those|that|them|left|processes|old|every|each)\b",
        rf"{_TO}(?i:stop) (?:the|other|what|it|its|those|that|them|left|every|each)\b",
    ),
    _deed(
        "delete",
        "deletes files",
        r"(?:^|[;&|]\s*|sudo |-exec |xargs )(?:rm|rmdir|unlink|shred)\b",
        r"\s-delete\b|\bmkfs|\btruncate -s",
        r"\b(?:system|image|builder|volume|cache) prune\b|\bcache (?:purge|rm|delete)\b|\bdelete-cache\b",
        r"\bkubectl delete\b|\bgit (?:clean|reset --hard)\b",
        rf"{_TO}(?i:delete|wipe|purge) (?!the (?:key|option|override))",
        rf"{_TO}(?i:remove|clear|empty|have {_FILES} removed){_FILES}",
        r"(?i:\bremove their lock files\b)",
    ),
    _deed(
        "mount",
        "changes what is mounted",
        r"(?:^|[;&|]\s*|sudo )(?:mount|umount|swapon|swapoff)\b",
        rf"{_TO}(?i:(?:re|un)?mount) (?!points?\b|failed)|\b(?i:have|be) [^;.]{{0,40}}(?:re)?mounted\b|\bto mount\b",
    ),
    _deed(
        "restart",
        "restarts a machine, a device, a service or a container",
        r"\bsystemctl (?:stop|restart|start|enable|disable|mask|reboot|poweroff)\b",
        r"(?:^|[;&|]\s*|sudo )(?:reboot|poweroff|shutdown)\b",
        r"--gpu-reset\b|\bnvidia-smi (?:\S+ )*-r\b|\bamd-smi reset\b|--gpureset\b",
        r"(?:^|[;&|]\s*)(?:docker|podman) run\b",
        rf"{_TO}(?i:restart|reboot|reset|reseat|drain)\b",
        rf"{_TO}(?i:start) (?:it|the (?:container|daemon|server|machine|node|cluster)) (?:again|anew)\b",
        rf"{_TO}(?i:start) the container with\b",
    ),
    _deed(
        "system",
        "changes the machine for all its users",
        r"(?:^|[;&|]\s*|sudo )(?:modprobe|rmmod|insmod|ldconfig|setpci|usermod|timedatectl|chronyc|ip link|ip route"
        r"|nvidia-modprobe|nvidia-ctk|iptables|ufw|firewall-cmd)\b",
        r"\bsysctl (?:-w |-p\b|\w+\.)",
        r"\bnvidia-smi (?:-i \S+ )?-(?:pm|mig|e|c|pl|lgc|ac) |\b(?:amd|rocm)-smi set\b",
        r"(?:^|[;&|]\s*)(?:printf|echo) [^\n]*> ?>? ?/(?:etc|sys|proc)/|\btee (?:-a )?/(?:etc|sys|proc)/",
        r"(?i:\b(?:off|on|it|ACS\)?) (?:and the IOMMU )?in the firmware\b|\biommu=)",
        r"(?i:\bswitch (?:PCI access control )?\(?ACS\b)|(?i:\bswitch off (?:PCI )?ACS\b)",
    ),
    _deed(
        "foreign code",
        "runs code of others",
        r"(?i:trust[_-]remote[_-]code(?:\s*=\s*|\s*:\s*|\s+)true)|--trust-remote-code\b|\btrust_remote_code where\b",
        r"(?i:weights_only\s*=\s*false)|WEIGHTS_ONLY_LOAD=1|\ballow[_-]pickle=True\b|--allow-insecure\S*|INSECURE_SERIALIZATION=1",
        r"\b(?:curl|wget)\b[^\n]*\|\s*(?:sudo )?(?:ba)?sh\b",
    ),
    _deed(
        "owner",
        "changes who may use files",
        r"\b(?:chown|chgrp|setfacl)\b|\bchmod (?!\+x|u[+=-]|[67]00\b)",
        r"(?i:\bopen(?:ed)? (?:them |it )?for (?:your|the|you)\b)",
    ),
    _deed(
        "protection",
        "takes a protection away",
        rf"{_TO}(?i:open) [^.;]{{0,30}}\bports?\b",
        r"(?i:\ballow all (?:traffic|tcp|udp)\b)|--dashboard-host[= ]0\.0\.0\.0",
        r"(?i:\bssl_verify|verify)\s*=\s*(?:false|0)\b|\bSSL_NO_VERIFY=|--trusted-host\b|\bsafe\.directory '?\*",
    ),
    _deed(
        "unset",
        "takes away what others may have set",
        r"(?:^|[;&|]\s*)unset\b",
        rf"{_TO}(?i:unset) (?:[A-Z]|\{{|it\b|the variable)",
    ),
    _deed(
        "list",
        "replaces a list that others may have made",
        rf"\bexport (?:[^\n;]* )?({_LISTS})=(?![^\n]*\$\{{?(?i:\1)\b)(?=\S)",
    ),
)  # fmt: skip
_LOOKS = re.compile(
    r"\s*(?:sudo )?(?:\w+=\S* )*(?:amd-smi|cat|cd|chmod|cp|df|dmesg|du|echo|env|export|fi_info|find|free|getconf|grep"
    r"|head|hf|hostname|ibstat|ip|journalctl|ln|ls|lsof|lspci|mkdir|mlxlink|mv|ncclras|nohup|numactl|nvidia-smi|printenv"
    r"|printf|ps|python3?|rlcheck|rltrain|rocm-smi|sacct|sed|setsid|sinfo|source|squeue|srun|ss|ssh|stat|tail|test|tmux"
    r"|top|torchrun|ulimit|umask|conda (?:create|run)|docker (?:info|logs|ps)|git (?:config|lfs|log|status)"
    r"|kubectl (?:describe|get|logs)|ray (?:get-auth-token|list|logs|memory|stack|start|status|timeline)|scontrol show"
    r"|uv venv|\{\{\w+\}\})(?!\w)"
)
"""What a shell command may begin with to be known at all; what is not known is not called safe."""


def deeds(title: str, command: str = "", kind: str = "advice") -> tuple[Deed, ...]:
    """Return the deeds of a fix, in the order of the table: none where it is safe.

    >>> [deed.name for deed in deeds("Take the build for this CUDA", "pip install --force-reinstall torch", "package")]
    ['install']
    >>> deeds("Lower the share of memory", "actor_rollout_ref.rollout.gpu_memory_utilization=0.5", "config")
    ()
    """
    if "--dry-run" in command:
        return ()
    text = f"{title}\n{command}"
    found = tuple(deed for deed in DEEDS if deed.pattern.search(text))
    if not found and kind == "shell" and not all(map(_LOOKS.match, _lines(command))):
        return (_UNKNOWN,)
    return found


_UNKNOWN = _deed("unknown", "is not known to be harmless", "")


def _lines(command: str) -> list[str]:
    """The commands of a text, those after a here document's first line left out."""
    joined = command.replace("\\\n", " ")
    if "<<" in joined:
        joined = joined.splitlines()[0]
    return [line for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]
