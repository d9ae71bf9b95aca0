"""What a fix may harm, read from its own words: nobody labels a fix by hand, and one command has one label.

A fix is safe when it only looks, or changes something that one line takes back: a variable, an override, a limit of
this shell. It is unsafe when its command or its title does one of the `Deed`s below.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple


class Deed(NamedTuple):
    """A kind of act that one line does not take back. `words` follow "unsafe: it …".

    Each of `patterns` is behind its signs: a text that it is found in has one of them in lower case. To compile all of
    them takes longer than a report of one finding.
    """

    name: str
    words: str
    patterns: tuple[tuple[tuple[str, ...], str], ...]

    def is_in(self, text: str) -> bool:
        """Whether TEXT, a title and the commands below it, does this."""
        lower = f"{text}\n".lower()
        return any(
            any(sign in lower for sign in signs) and _compiled(pattern).search(text) is not None
            for signs, pattern in self.patterns
        )


_TO = r"(?:^|(?<=[.:;,(/] )|\b(?i:or|and|then|to|first|else|otherwise|that|you|can|may|please|root) )"
"""Where a verb of a title is an imperative: "Install it", "or install it", but not "after an install"."""
_FILES = (
    r"(?:[^.;]{0,50}?(?:\bdirector(?:y|ies)\b|\bfiles?\b|\bcaches?\b|\bcheckpoints?\b|\bimages?\b|\bsession|\bmodels?\b"
    r"|\bpods?\b|\bsnapshot|\bcop(?:y|ies)\b|\bkernels\b|\bdownloads?\b|\block|\blogs?\b|\bold ones\b|\bdata sets?\b"
    r"|~/|/tmp|/dev/shm|\*\.|__pycache__|_cache\b|\.cache|\bwhat is yours\b|\bunfinished\b|\bpackages?\b"
    r"|\b(?:damaged|broken|incomplete|truncated|stale|half-built|left-?over) ones?\b|\bold \w+ config\b))"
)
_RUNNING = (
    r"(?:actors?|placement groups?|jobs?|runs?|pods?|process(?:es)?|sessions?|servers?|containers?|engines?|workers?"
    r"|programs?|daemons?|services?|clusters?|left-?overs?)\b"
)
_LISTS = "|".join(
    ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "LD_PRELOAD", "LIBRARY_PATH", "CPATH", "no_proxy", "NO_PROXY",
     "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
)  # fmt: skip


def _deed(name: str, words: str, *patterns: tuple[str, str]) -> Deed:
    return Deed(name, words, tuple((tuple(signs.split("|")), pattern) for signs, pattern in patterns))


DEEDS = (
    _deed(
        "install",
        "changes installed packages",
        ("install",
         r"\b(?:pip3?|uv|conda|mamba|apt|apt-get|dnf|yum|npm|brew|dkms)\b[^;\n]{0,40}? (?:-\S+ )*(?:un|re)?install\b"),
        ("conda ", r"\bconda (?:remove|update)\b"),
        ("uv sync", r"\buv sync\b"),
        ("wsl --", r"\bwsl --(?:install|update)\b"),
        ("pip ", r"\bpip [^;\n]*(?:-U|--upgrade)\b"),
        ("install|grade", rf"{_TO}(?i:(?:re)?install|upgrade|downgrade)\b"),
        ("newer |older ", rf"{_TO}(?i:(?:use|take) an? (?:newer|older)) (?!.{{0,20}}(?:GPU|node|model|checkpoint))"),
        ("update ", rf"{_TO}(?i:update) [^;:.]{{0,40}}\b(?:drivers?|toolkit|tokenizers|firmware|release)\b"),
        ("build it ", r"(?i:\bbuild it (?:again|from source)\b)"),
    ),
    _deed(
        "kill",
        "ends processes, and what they have not saved",
        ("kill|fuser|cancel", r"\b(?:kill|pkill|killall|fuser -k|scancel)\s+(?:-|\$|\{|<|\d|its PID|PID|JOB)"),
        ("ray stop|ray down", r"\bray (?:stop|down)\b"),
        ("docker ", r"\bdocker (?:stop|kill|rm|restart)\b"),
        ("kill|cancel", rf"{_TO}(?i:kill|cancel) (?!off)"),
        ("end ", rf"{_TO}(?i:end) (?:or \w+ )?(?:the|other|others|what|it|its|those|that|them|left|old|every|each)\b"),
        ("stop ", rf"{_TO}(?i:stop) (?!the clients)(?:the|other|what|it|its|those|that|them|left|every|each)\b"),
        ("end |stop |close other ", rf"{_TO}(?i:end|stop|close other) (?:(?!of|at|in|with)[\w-]+ ){{0,2}}{_RUNNING}"),
    ),
    _deed(
        "delete",
        "deletes files",
        ("rm|unlink|shred", r"(?:^|[;&|]\s*|sudo |-exec |xargs )(?:rm|rmdir|unlink|shred)\b"),
        ("delete|mkfs|truncate", r"\s-delete\b|\bmkfs|\btruncate -s"),
        ("delete|prune|cache ",
         r"\b(?:system|image|builder|volume|cache) prune\b|\bcache (?:purge|rm|delete)\b|\bdelete-cache\b"),
        ("delete|git ", r"\bkubectl delete\b|\bgit (?:clean|reset --hard)\b"),
        ("delete|purge|wipe", rf"{_TO}(?i:delete|wipe|purge) (?!the (?:key|option|override))"),
        ("remove|clear|empty", rf"{_TO}(?i:remove|clear|empty|have {_FILES} removed){_FILES}"),
        ("remove", r"(?i:\bremove their lock files\b)"),
    ),
    _deed(
        "mount",
        "changes what is mounted",
        ("mount|swapo", r"(?:^|[;&|]\s*|sudo )(?:mount|umount|swapon|swapoff)\b"),
        ("mount",
         rf"{_TO}(?i:(?:re|un)?mount) (?!points?\b|failed)|\b(?i:have|be) [^;.]{{0,40}}(?:re)?mounted\b|\bto mount\b"),
    ),
    _deed(
        "restart",
        "restarts a machine, a device, a service or a container",
        ("systemctl", r"\bsystemctl (?:stop|restart|start|enable|disable|mask|reboot|poweroff)\b"),
        ("reboot|poweroff|shutdown", r"(?:^|[;&|]\s*|sudo )(?:reboot|poweroff|shutdown)\b"),
        ("reset|nvidia-smi", r"--gpu-reset\b|\bnvidia-smi (?:\S+ )*-r\b|\bamd-smi reset\b|--gpureset\b"),
        ("docker|podman", r"(?:^|[;&|]\s*)(?:docker|podman) run\b"),
        ("reboot|reset|start|reseat|drain",
         rf"{_TO}(?i:restart|reboot|reset|reseat|drain)\b(?! (?:\w+ )?environments?\b)|\bneeds a (?:reset|reboot)\b"),
        ("start", rf"{_TO}(?i:start) (?:it|the (?:container|daemon|server|machine|node|cluster)) (?:again|anew)\b"),
        ("start", rf"{_TO}(?i:start) the container with\b"),
    ),
    _deed(
        "system",
        "changes the machine for all its users",
        ("modprobe|rmmod|insmod|ldconfig|setpci|usermod|timedatectl|"
         "chronyc|ip link |ip route |ip addr |nvidia-ctk|iptables|ufw|firewall",
         r"(?:^|[;&|]\s*|sudo )(?:modprobe|rmmod|insmod|ldconfig|setpci|usermod|timedatectl|chronyc"
         r"|ip (?:link|route|addr) (?:set|add|del|replace|change|flush)"
         r"|nvidia-modprobe|nvidia-ctk|iptables|ufw|firewall-cmd)\b"),
        ("sysctl", r"\bsysctl (?:-w |-p\b|\w+\.)"),
        ("-smi ", r"\bnvidia-smi (?:-i \S+ )?-(?:pm|mig|e|c|pl|lgc|ac) |\b(?:amd|rocm)-smi set\b"),
        ("/etc/|/sys/|/proc/",
         r"(?:^|[;&|]\s*)(?:printf|echo) [^\n]*> ?>? ?/(?:etc|sys|proc)/|\btee (?:-a )?/(?:etc|sys|proc)/"),
        ("firmware|iommu=", r"(?i:\b(?:off|on|it|ACS\)?) (?:and the IOMMU )?in the firmware\b|\biommu=)"),
        ("switch ", r"(?i:\bswitch (?:off )?(?:PCI )?(?:access control )?\(?ACS\b)"),
        ("/etc/|limits.conf|ld.so.conf", r"\bin (?:limits\.conf|/etc/hosts)\b|\bof /etc/ld\.so\.conf"),
        ("remove |take away ", rf"{_TO}(?i:remove|take away) \w+ (?:IP )?(?:address|route|bridge)\b"),
    ),
    _deed(
        "foreign code",
        "runs code of others",
        ("trust",
         r"(?i:trust[_-]remote[_-]code(?:\s*=\s*|\s*:\s*|\s+)true)|--trust-remote-code\b|\btrust_remote_code where\b"),
        ("weights_only|pickle=true|allow-insecure|insecure_serialization",
         r"(?i:weights_only\s*=\s*false)|WEIGHTS_ONLY_LOAD=1|\ballow[_-]pickle=True\b|--allow-insecure\S*"
         r"|INSECURE_SERIALIZATION=1"),
        ("curl|wget|sh\n|sh -s", r"\b(?:curl|wget)\b[^\n]*\|\s*(?:sudo )?(?:ba)?sh\b|^(?:ba)?sh(?: -s\b.*)?$"),
    ),
    _deed(
        "owner",
        "changes who may use files",
        ("chown|chgrp|setfacl|chmod", r"\b(?:chown|chgrp|setfacl)\b|\bchmod (?!\+x|u[+=-]|[67]00\b)"),
        ("open|mode 666|mode 766", r"(?i:\bopen(?:ed)? (?:them |it )?for (?:your|the|you)\b)|\bmode [67]66\b"),
    ),
    _deed(
        "protection",
        "takes a protection away",
        ("open |firewall", rf"{_TO}(?i:open) [^.;]{{0,30}}\b(?:ports?|firewall)\b|\bthrough the firewall\b"),
        ("allow all |dashboard-host", r"(?i:\ballow all (?:traffic|tcp|udp)\b)|--dashboard-host[= ]0\.0\.0\.0"),
        ("run-as-root|run_as_root", r"--allow-run-as-root\b|\bOMPI_ALLOW_RUN_AS_ROOT(?:_CONFIRM)?\b"),
        ("verify|trusted-host|safe.directory",
         r"(?i:\bssl_verify|verify)\s*=\s*(?:false|0)\b|\bSSL_NO_VERIFY=|--trusted-host\b|\bsafe\.directory '?\*"),
    ),
    _deed(
        "unset",
        "takes away what others may have set",
        ("unset", r"(?:^|[;&|]\s*)unset\b"),
        ("unset|remove the ",
         rf"{_TO}(?i:unset) (?:[A-Z]|\w+_proxy\b|\{{|it\b|the variable)|{_TO}(?i:remove) the (?:\w+ )?variables?\b"),
    ),
    _deed(
        "list",
        "replaces a list that others may have made",
        ("export ", rf"\bexport (?:[^\n;]* )?({_LISTS})=(?![^\n]*\$\{{?(?i:\1)\b)(?=\S)"),
    ),
)  # fmt: skip
_LOOKS = (
    r"(?:amd-smi|cat|cd|chmod|cp|df|dmesg|done|du|echo|env|export|fi|fi_info|find|for|free|getconf|grep"
    r"|head|hf|hostname|ibstat|ip|journalctl|ln|ls|lsof|lspci|mkdir|mlxlink|mv|ncclras|numactl|nvidia-smi|printenv"
    r"|printf|ps|pwd|python3?|rlcheck|rltrain|rocm-smi|sacct|sed|setsid|sinfo|sort|source|squeue|srun|ss|ssh|stat|tail|test|tmux"
    r"|top|torchrun|true|ulimit|umask|wc|conda (?:activate|create|info|run)|docker (?:info|logs|ps)"
    r"|git (?:config|lfs|log|status)|kubectl (?:describe|get|logs)|ray (?:get-auth-token|list|logs|memory|stack|start"
    r"|status|timeline)|scontrol show|uv venv|rocminfo|nvcc|\{\{\w+\}\})(?!\w)"
)
"""What a shell command may begin with to be known at all; what is not known is not called safe."""
_QUOTED = r"""'[^']*'|"(?:\\.|[^"\\])*"|\\."""
_SIMPLE = rf"(?s:(?:{_QUOTED}|[0-9]?[<>]&\S*|&>|[^;&|\n])+)"
_BEFORE = (
    rf"""\s*(?:(?:[\w.]+=(?:{_QUOTED}|[^\s'"])*(?=\s)|[({{!]|do\b|then\b|else\b|if\b|while\b|until\b"""
    r"|ssh (?:-[bcDEeFIiJLlmOopQRSWw] ?\S+ |-\w+ )*[^\s-]\S*(?= )|(?:sudo|env|exec|command|nice|nohup|setsid"
    r"|time|timeout|xargs|srun)(?: (?:-u \S+|-\S+|\d\S*))*(?= )|(?:ba)?sh -\w*c(?= )|docker exec (?:-\S+ )*\S+"
    r"|kubectl exec [^;&|]*? --)\s*)+"
)
"""What may stand before a command and does nothing by itself."""


def deeds(title: str, command: str = "", kind: str = "advice") -> tuple[Deed, ...]:
    """Return the deeds of a fix, in the order of the table: none where it is safe.

    >>> [deed.name for deed in deeds("Take the build for this CUDA", "pip install --force-reinstall torch", "package")]
    ['install']
    >>> deeds("Lower the share of memory", "actor_rollout_ref.rollout.gpu_memory_utilization=0.5", "config")
    ()
    """
    parts = _parts(command)
    quoted = [part for found in re.findall(r"`([^`]+)`", title) for part in _parts(found)]
    text = "\n".join((title, *quoted, *parts))
    found = tuple(deed for deed in DEEDS if deed.is_in(text))
    first = parts[:1] if "<<" in command else parts
    if not found and kind == "shell" and not all(map(_compiled(_LOOKS).match, first)):
        return (_UNKNOWN,)
    return found


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile when first asked: most reports show no fix."""
    return re.compile(pattern, re.M)


_UNKNOWN = Deed("unknown", "is not known to be harmless", ())


def _parts(text: str) -> list[str]:
    """The simple commands of a shell text, without what only stands before them; none that is a dry run.

    >>> _parts("cd /tmp && env A=1 rm -r x; ssh HOST 'sudo reboot' | pip install --dry-run torch")
    ['cd /tmp', 'rm -r x', 'reboot']
    """
    found: list[str] = []
    for part in _compiled(_SIMPLE).findall(text.replace("\\\n", " ")):
        before = _compiled(_BEFORE).match(part)
        rest = part[before.end() :].strip() if before else part.strip()
        if before and before.group().strip() and re.fullmatch(_QUOTED, rest):
            found += _parts(rest[1:-1])
        elif rest and not rest.startswith("#") and "--dry-run" not in rest:
            found += [rest, *(inner for one in re.findall(r"\$\(([^()]*)\)", rest) for inner in _parts(one))]
    return found
