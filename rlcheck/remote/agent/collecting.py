"""What rlcheck says of this machine, where it is installed: a full facts document, or a look at a job."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any, Dict, List

TIMEOUT_S = 60.0


def collect(options: Dict[str, Any], request: Dict[str, Any]) -> Dict[str, Any]:
    """Run `python -m rlcheck collect` and hand its document on.

    Raises:
        RuntimeError: rlcheck is not there, failed, or did not end in time.
    """
    return {"facts": _ran(options, ["rlcheck", "collect"], float(request.get("timeout_s", TIMEOUT_S)))}


def hang(options: Dict[str, Any], request: Dict[str, Any]) -> Dict[str, Any]:
    """Look at the job on this machine with `python -m rlcheck.measure.hang`, and hand on what was seen.

    Raises:
        RuntimeError: as of `collect`.
    """
    words = ["rlcheck.measure.hang", str(request.get("for_s", 6.0)), str(request.get("target", ""))]
    return {"hang": _ran(options, words, float(request.get("timeout_s", TIMEOUT_S)))}


def _ran(options: Dict[str, Any], words: List[str], timeout_s: float) -> Any:
    """The JSON that a module of rlcheck prints."""
    command = list(options.get("python") or [sys.executable])
    process = subprocess.Popen(
        [*command, "-m", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    what = " ".join(words[:2]) if words[0] == "rlcheck" else "rlcheck's look"
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise RuntimeError("%s did not end within %g s" % (what, timeout_s)) from None
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        last = (err.decode("utf-8", "replace").strip().splitlines() or ["nothing on standard error"])[-1]
        if "No module named" in last and "rlcheck" in last:
            raise RuntimeError("rlcheck is not installed for %s" % command[0])
        raise RuntimeError("%s failed: %s" % (what, last[:300]))
    return json.loads(out.decode("utf-8", "replace"))
