"""A full facts document of this machine, where rlcheck is installed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any, Dict

TIMEOUT_S = 60.0


def collect(options: Dict[str, Any], request: Dict[str, Any]) -> Dict[str, Any]:
    """Run `python -m rlcheck collect` and hand its document on.

    Raises:
        RuntimeError: rlcheck is not there, failed, or did not end in time.
    """
    timeout_s = float(request.get("timeout_s", TIMEOUT_S))
    command = list(options.get("python") or [sys.executable])
    process = subprocess.Popen(
        [*command, "-m", "rlcheck", "collect"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise RuntimeError("rlcheck collect did not end within %g s" % timeout_s) from None
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        last = (err.decode("utf-8", "replace").strip().splitlines() or ["nothing on standard error"])[-1]
        if "No module named" in last and "rlcheck" in last:
            raise RuntimeError("rlcheck is not installed for %s" % command[0])
        raise RuntimeError("rlcheck collect failed: " + last[:300])
    return {"facts": json.loads(out.decode("utf-8", "replace"))}
