"""`rlcheck config`: read a run's config, judge it without starting anything, and show every finding at once."""

from __future__ import annotations

import os

from rlcheck.cli.facts_files import document, recorded_with
from rlcheck.cli.front_door import begin
from rlcheck.cli.hydra_options import named
from rlcheck.cli.requests.configs import ConfigRequest
from rlcheck.errors import UserError
from rlcheck.facts.base import Fact, known
from rlcheck.facts.document import Facts

# Of these, none holds a secret: whether models may be fetched (CFG030), how torch allocates (CFG064).
_VARIABLES = (
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
)


def run(request: ConfigRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that cannot be used, or a config that cannot be read at all.
    """
    examination = begin(request.report, "config", alone=True)
    nodes = _recorded(request) if request.report.facts is not None else (_facts(request),)
    return examination.conclude(nodes)


def _recorded(request: ConfigRequest) -> tuple[Facts, ...]:
    if named(request.source)[0]:
        raise UserError("--facts judges a record; leave CONFIG out")
    assert request.report.facts is not None
    lacking = "no config in it; `rlcheck config CONFIG --record` writes one"
    return recorded_with(request.report.facts, ("config",), lacking)


def _facts(request: ConfigRequest) -> Facts:
    """A document with the run in it and, if it is for this machine, the variables that its checks read."""
    from rlcheck.measure.config.whole import read_whole

    config, overrides = named(request.source)
    if not config:
        raise UserError("give a CONFIG: a YAML, a recipe, a script, - for standard input, or --facts RECORD")
    look = not request.no_fs
    found = read_whole(config, overrides, framework=request.framework, look=look, model_shape=request.model_shape)
    environ: Fact[dict[str, str]] = (
        known({name: os.environ[name] for name in _VARIABLES if name in os.environ}) if look else Fact()
    )
    return document(config=known(found), environ=environ)
