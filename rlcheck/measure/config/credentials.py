"""What loggers need to write where the config sends them: keys in the environment or in files. None is read out."""

from __future__ import annotations

import netrc
import os
from collections.abc import Mapping
from pathlib import Path

from rlcheck.facts.config import RunSpec
from rlcheck.measure.config.config import Config

_WANDB_HOST = "api.wandb.ai"
# wandb: `wandb login`, environment variables of its documentation (docs.wandb.ai, track/environment-variables).
_OFFLINE = ("offline", "disabled", "dryrun")


def lacking(config: Config, spec: RunSpec, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Each logger of SPEC with what it lacks, in words; "" where it has all it needs."""
    env = os.environ if environ is None else environ
    del config
    tests = {
        "wandb": _wandb,
        "mlflow": _mlflow,
        "swanlab": _swanlab,
        "vemlp_wandb": _vemlp,
        "clearml": _clearml,
        "trackio": _nothing,
    }
    return {logger: tests.get(logger, _nothing)(env) for logger in spec.loggers}


def _nothing(env: Mapping[str, str]) -> str:
    del env
    return ""


def _wandb(env: Mapping[str, str]) -> str:
    if env.get("WANDB_MODE", "").lower() in _OFFLINE or env.get("WANDB_DISABLED", "").lower() == "true":
        return ""
    if env.get("WANDB_API_KEY"):
        return ""
    host = env.get("WANDB_BASE_URL", "").split("//")[-1].split("/")[0] or _WANDB_HOST
    if _in_netrc(env, host):
        return ""
    return (
        f"no WANDB_API_KEY in the environment and no entry for {host} in ~/.netrc; without them, set WANDB_MODE=offline"
    )


def _in_netrc(env: Mapping[str, str], host: str) -> bool:
    path = Path(env.get("NETRC") or Path(env.get("HOME") or Path.home()) / ".netrc")
    try:
        return netrc.netrc(str(path)).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _mlflow(env: Mapping[str, str]) -> str:
    """Without a tracking URI mlflow writes to the working directory; a Databricks one needs a token."""
    uri = env.get("MLFLOW_TRACKING_URI", "")
    if uri.startswith("databricks") and not (env.get("DATABRICKS_TOKEN") or _home_file(env, ".databrickscfg")):
        return "MLFLOW_TRACKING_URI is Databricks', but there is no DATABRICKS_TOKEN and no ~/.databrickscfg"
    return ""


def _swanlab(env: Mapping[str, str]) -> str:
    if env.get("SWANLAB_MODE", "cloud") != "cloud" or env.get("SWANLAB_API_KEY") or _home_file(env, ".swanlab/.netrc"):
        return ""
    return "no SWANLAB_API_KEY in the environment and no login in ~/.swanlab; without them, set SWANLAB_MODE=local"


def _vemlp(env: Mapping[str, str]) -> str:
    missing = [
        name for name in ("VOLC_ACCESS_KEY_ID", "VOLC_SECRET_ACCESS_KEY", "MLP_TRACKING_REGION") if not env.get(name)
    ]
    return f"not in the environment: {', '.join(missing)}" if missing else ""


def _clearml(env: Mapping[str, str]) -> str:
    if env.get("CLEARML_OFFLINE_MODE") or _home_file(env, "clearml.conf") or env.get("CLEARML_CONFIG_FILE"):
        return ""
    if env.get("CLEARML_API_ACCESS_KEY") and env.get("CLEARML_API_SECRET_KEY"):
        return ""
    return "no ~/clearml.conf and no CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY in the environment"


def _home_file(env: Mapping[str, str], name: str) -> bool:
    return os.path.isfile(os.path.join(env.get("HOME") or os.path.expanduser("~"), name))
