"""The contract of every rollout engine, on real ones (`conftest.CASES`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from rltrain.core.errors import RunFailure, UserError
from rltrain.workers.rollout.protocol import Completion, Request, Sampling
from rltrain.workers.rollout.sampling import token_log_probs
from rltrain.workers.sync import checksum, merge, plan, verify
from tests.trainer.workers.rollout.child import note_progress, noted_progress
from tests.trainer.workers.rollout.compare import PLAIN, differences, logits_of, requests, to_the_bit, tokens_of
from tests.trainer.workers.rollout.conftest import Bench
from tests.trainer.workers.rollout.tiny import DEVICE, EOS, MAX_MODEL_LEN, VOCAB, named_weights
from tests.trainer.workers.sync.local import LocalGroup

pytestmark = pytest.mark.timeout(400)
NUM_DRAWS = 800
STALE = 100 if DEVICE == "cpu" else 4
"""By how much more than rounding wrong weights show."""


def assert_same_policy(bench: Bench, sampling=PLAIN, count: int = 12) -> None:
    asked = requests(count)
    log_prob_diff, prob_diff = differences(bench.model, asked, bench.child.generate(asked, sampling), sampling)
    assert log_prob_diff <= bench.limits.log_prob
    assert prob_diff <= bench.limits.prob


@pytest.mark.parametrize(
    "change",
    [{}, {"temperature": 0.6}, {"top_k": 3}, {"top_p": 0.7, "temperature": 1.3}, {"min_tokens": 5}],
    ids=["plain", "temperature", "top_k", "top_p", "min_tokens"],
)
def test_log_probs_are_those_of_the_distribution_drawn_from(bench: Bench, change: dict[str, float]) -> None:
    assert_same_policy(bench, replace(PLAIN, **change))


def test_greedy_takes_the_likeliest_and_tells_the_models_own_log_prob(bench: Bench) -> None:
    sampling = replace(PLAIN, temperature=0.0, max_tokens=6)
    asked = requests(5)
    answers = bench.child.generate(asked, sampling)
    for request, answer in zip(asked, answers, strict=True):
        scores = logits_of(bench.model, request, answer).log_softmax(-1)
        taken = scores.gather(1, torch.from_numpy(answer.token_ids).long()[:, None])[:, 0]
        assert (scores.amax(-1) - taken).max() <= bench.limits.worst
    assert differences(bench.model, asked, answers, replace(PLAIN, temperature=1.0))[0] <= bench.limits.log_prob
    assert min(answer.log_probs[0] for answer in answers) < -1e-3


def test_log_probs_are_computed_only_where_they_are_asked_for(bench: Bench) -> None:
    asked = requests(4)
    some = [replace(one, log_probs=row == 2) for row, one in enumerate(asked)]
    answers, every = bench.child.generate(some, PLAIN), bench.child.generate(asked, PLAIN)
    assert [answer.log_probs is not None for answer in answers] == [False, False, True, False]
    assert tokens_of(answers) == tokens_of(every), "the draw is the same"
    assert np.abs(answers[2].log_probs - every[2].log_probs).max() < bench.limits.worst
    assert (every[0].token_ids.dtype, every[0].log_probs.dtype) == (np.int32, np.float32)


def test_a_call_repeats(bench: Bench) -> None:
    asked = requests(12)
    first, again = (bench.child.generate(asked, PLAIN) for _ in range(2))
    if not bench.is_served:
        assert to_the_bit(first) == to_the_bit(again)
    assert tokens_of(first) == tokens_of(again)
    assert max(np.abs(a.log_probs - b.log_probs).max() for a, b in zip(first, again, strict=True)) < bench.limits.worst


def test_tokens_depend_on_the_seed_alone(bench: Bench) -> None:
    """Not on the order of requests, nor on which others run beside them."""
    asked = requests(12)
    tokens = tokens_of(bench.child.generate(asked, PLAIN))
    assert tokens_of(bench.child.generate(asked[::-1], PLAIN)) == tokens[::-1]
    assert tokens_of(bench.child.generate(asked[3:5], PLAIN)) == tokens[3:5]


def test_samples_of_one_prompt_differ(bench: Bench) -> None:
    prompt = requests(1)[0].prompt_ids
    answers = bench.child.generate([Request(prompt, seed) for seed in range(8)], PLAIN)
    assert len(set(tokens_of(answers))) >= 7


def test_lengths_and_reasons(bench: Bench) -> None:
    # Hot, so that the end of sequence comes up now and then.
    hot = replace(PLAIN, temperature=2.0, max_tokens=24)
    asked = requests(80)
    answers = bench.child.generate(asked, hot)
    ended = [answer for answer in answers if answer.finish_reason == "stop"]
    assert any(len(answer.token_ids) < 8 for answer in ended)
    for answer in answers:
        assert (answer.token_ids[-1] == EOS) == (answer.finish_reason == "stop")
        assert EOS not in answer.token_ids[:-1]
        assert answer in ended or (answer.finish_reason, len(answer.token_ids)) == ("length", 24)
    late = bench.child.generate(asked, replace(hot, min_tokens=8))
    assert all(EOS not in answer.token_ids[:8] and len(answer.token_ids) > 8 for answer in late)
    full = bench.child.generate(asked, replace(hot, ignore_eos=True))
    assert {(answer.finish_reason, len(answer.token_ids)) for answer in full} == {("length", 24)}
    assert any(EOS in answer.token_ids[:-1] for answer in full)


def test_a_stop_string_ends_a_completion_and_stays_in_it(bench: Bench) -> None:
    asked = [Request(request.prompt_ids, request.seed) for request in requests(6)]
    plain = bench.child.generate(asked, replace(PLAIN, ignore_eos=True))
    pair = plain[0].token_ids[4:6].tolist()
    stop = "".join(VOCAB[token] for token in pair)
    stopped = bench.child.generate(asked, replace(PLAIN, ignore_eos=True, stop=(stop,)))[0]
    text = "".join(VOCAB[token] for token in stopped.token_ids)
    assert stopped.finish_reason == "stop"
    assert text.endswith(stop)
    assert tokens_of([stopped])[0] == tokens_of(plain)[0][: len(stopped.token_ids)]


def test_a_prompt_without_room_is_refused(bench: Bench) -> None:
    longest = Request((5,) * (MAX_MODEL_LEN - 1), 0)
    assert len(bench.child.generate([longest], PLAIN)[0].token_ids) == 1
    with pytest.raises(RunFailure, match=rf"prompt of {MAX_MODEL_LEN} tokens .*max_model_len={MAX_MODEL_LEN}"):
        bench.child.generate([Request((5,) * MAX_MODEL_LEN, 0)], PLAIN)


def test_progress_reaches_the_end(bench: Bench) -> None:
    bench.child.apply(note_progress)
    bench.child.generate(requests(7), PLAIN)
    noted = bench.child.apply(noted_progress)
    assert noted[0] == (0, 7)
    assert noted[-1] == (7, 7)
    assert noted == sorted(noted)


def test_stale_weights_are_seen_and_a_sync_mends_them(bench: Bench) -> None:
    asked = requests(12)
    bench.change()
    published = {name: checksum(tensor) for name, tensor in named_weights(bench.model)}
    stale = differences(bench.model, asked, bench.child.generate(asked, PLAIN))
    assert stale[0] > STALE * bench.limits.log_prob
    assert stale[1] > STALE * bench.limits.prob
    first = next(iter(published))
    assert f"'{first}'" in (verify(published, bench.child.checksums(list(published))) or "")
    bench.take()
    assert bench.child.has_weights()
    assert verify(published, bench.child.checksums(list(published))) is None
    assert_same_policy(bench)


def test_one_wrong_element_is_found(bench: Bench) -> None:
    published = {name: checksum(tensor) for name, tensor in named_weights(bench.model)}
    for name, tensor in named_weights(bench.model):
        if "k_proj" in name or "embed_tokens" in name or "norm" in name:
            kept = tensor.flatten()[-1].item()
            tensor.view(-1)[-1] += 0.1
            wrong = published | {name: checksum(tensor)}
            tensor.view(-1)[-1] = kept
            held = bench.child.checksums(list(published))
            assert f"1 of {len(published)} weights differ, the first is '{name}'" in (verify(wrong, held) or "")


def test_a_tensor_corrupted_on_its_way_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit of the buffer, after the trainer has summed it up."""
    publisher = bench.sync._train_group.workers[0].publisher
    name = next(name for name, _ in named_weights(bench.model) if "layers.1.self_attn.v_proj.weight" in name)
    send = publisher._sender.send

    def flip(num_bytes: int) -> dict[str, object]:
        (entry,) = [entry for entry in publisher._buckets[0].entries if entry.name == name]
        publisher._sender.staging(num_bytes)[entry.offset_bytes + 2] ^= 1
        return send(num_bytes)

    monkeypatch.setattr(publisher._sender, "send", flip)
    with pytest.raises(RunFailure, match=rf"engine 0: 1 of \d+ weights differ, the first is '{name}'"):
        bench.take()
    monkeypatch.undo()
    bench.take()


def test_buckets_of_any_size_bring_the_same_weights(bench: Bench) -> None:
    rank = bench.sync._train_group.workers[0]
    manifest = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in named_weights(bench.model)]
    whole = rank.publisher._buckets
    try:
        rank.publisher._buckets = plan(manifest, 20_000)
        assert len(rank.publisher._buckets) > 5
        bench.change()
        bench.take()
    finally:
        rank.publisher._buckets = whole
    assert_same_policy(bench)


@contextmanager
def publishing(bench: Bench, wanted: Sequence[tuple[str, Tensor]]) -> Iterator[None]:
    """In the block the trainer sends WANTED in place of its weights."""
    publisher = bench.sync._train_group.workers[0].publisher
    before = publisher._weights, publisher._buckets
    publisher._weights = lambda: iter(wanted)
    publisher._buckets = plan([(name, tuple(tensor.shape), tensor.dtype) for name, tensor in wanted], 1 << 20)
    try:
        yield
    finally:
        publisher._weights, publisher._buckets = before
        publisher.close()


def test_a_weight_that_does_not_come_is_named(bench: Bench) -> None:
    kept = [pair for pair in named_weights(bench.model) if "layers.1.self_attn.v_proj.weight" not in pair[0]]
    words = r"1 weights (of the engine )?did not come.*1\.self_attn\.(qkv|v)_proj"
    with publishing(bench, kept), pytest.raises(RunFailure, match=words):
        bench.take()
    bench.take()
    assert_same_policy(bench)


def test_a_weight_that_the_engine_does_not_know_is_named(bench: Bench) -> None:
    odd = [(name.replace("embed_tokens", "embed_things"), tensor) for name, tensor in named_weights(bench.model)]
    with publishing(bench, odd), pytest.raises((RunFailure, RuntimeError), match="embed_things"):
        bench.take()
    bench.take()
    assert_same_policy(bench)


def test_only_the_last_bucket_gives_a_version(bench: Bench) -> None:
    publisher = bench.sync._train_group.workers[0].publisher
    manifest = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in named_weights(bench.model)]
    buckets = publisher._buckets
    try:
        publisher._buckets = plan(manifest, 60_000)
        bench.child.load_bucket(merge([publisher.publish_bucket(0)]))
        assert not bench.child.has_weights()
        with pytest.raises(RunFailure, match="no weights"):
            bench.child.generate(requests(1), PLAIN)
        for index in range(1, len(publisher._buckets)):
            bench.child.load_bucket(merge([publisher.publish_bucket(index)]))
        assert bench.child.has_weights()
    finally:
        publisher.close()
        publisher._buckets = buckets


def test_sleep_and_wake(bench: Bench) -> None:
    """On a CPU they change nothing; on a GPU weights are forgotten, and come with the next sync."""
    forgotten = DEVICE == "cuda" and bench.name[:2] != "hf"
    assert bench.child.sleep() is forgotten
    bench.child.wake("weights")
    assert bench.child.has_weights() is not forgotten
    if forgotten:
        bench.take()
    bench.child.wake("kv_cache")
    assert_same_policy(bench)


def test_what_is_aborted_is_forgotten_and_the_rest_goes_on(bench: Bench) -> None:
    asked = requests(4)
    sampling = replace(PLAIN, ignore_eos=True)
    whole = tokens_of(bench.child.generate(asked, sampling))
    bench.child.submit(list(enumerate(asked)), sampling)
    bench.child.abort([1])
    found = dict(bench.child.collect(0.0))
    bench.child.abort([3])
    found |= dict(bench.child.collect(60.0))
    assert {0, 2} <= found.keys() <= {0, 2, 3}
    assert all(tokens_of([answer])[0] == whole[number] for number, answer in found.items())
    assert bench.child.collect(60.0) == [], "nothing is left"


def test_answers_go_on_from_their_tokens_so_far_with_new_weights(bench: Bench) -> None:
    """Each part has the log-probabilities of its own weights, given all tokens before it: no old key is used again."""
    asked, sampling = requests(6), replace(PLAIN, ignore_eos=True)
    bench.child.submit(list(enumerate(asked)), sampling)
    if bench.is_served:
        with pytest.raises(UserError, match="max_staleness=1, or choose another engine"):
            bench.child.interrupt()
        bench.child.abort(range(6))
        return
    assert bench.passes(6) == {}
    versions, models = [bench.version], list[torch.nn.Module]()
    for _ in range(2):
        bench.child.interrupt()
        assert bench.child.collect(60.0) == [], "nothing runs"
        models.append(deepcopy(bench.model))
        bench.change()
        bench.take()
        versions.append(bench.version)
        bench.child.resume()
        assert bench.passes(3) == {}
    found = dict(bench.child.collect(60.0))
    answers = [found[number] for number in range(6)]
    models.append(bench.model)
    for request, answer in zip(asked, answers, strict=True):
        assert (len(answer.token_ids), len(answer.log_probs), answer.finish_reason) == (16, 16, "length")
        assert tuple(answer.prompt_ids) == request.prompt_ids
        assert [version for _, version in answer.versions] == versions
        starts = [first for first, _ in answer.versions]
        assert starts[0] == 0 < starts[1] < starts[2] < 16
        for model, first, end in zip(models, starts, [*starts[1:], 16], strict=True):
            taken = logits_of(model, request, answer).log_softmax(-1)[range(16), answer.token_ids.tolist()]
            assert np.abs(taken.numpy() - answer.log_probs)[first:end].mean() <= 5 * bench.limits.log_prob
    assert len({answer.token_ids.tobytes() for answer in answers}) == 6


def test_an_answer_in_parts_has_the_length_that_was_asked_for(bench: Bench) -> None:
    if bench.is_served:
        pytest.skip("it does not go on with answers")
    asked = [replace(one, log_probs=row % 2 == 0) for row, one in enumerate(requests(30))]
    hot = replace(PLAIN, temperature=2.0, max_tokens=24, min_tokens=8)
    bench.child.submit(list(enumerate(asked)), hot)
    found: dict[int, Completion] = {}
    for count in (3, 0, 9, 20):
        found |= bench.passes(count)
        bench.child.interrupt()
        bench.child.resume()
    found |= dict(bench.child.collect(60.0))
    for number, answer in found.items():
        assert EOS not in answer.token_ids[:8]
        assert 8 < len(answer.token_ids) <= 24
        assert (answer.token_ids[-1] == EOS) == (answer.finish_reason == "stop")
        assert answer.versions == ((0, bench.version),), "the same weights: one part"
        assert (answer.log_probs is not None) == (number % 2 == 0)
    assert {"stop", "length"} == {answer.finish_reason for answer in found.values()}
    assert found.keys() == set(range(30))


def test_the_sync_makes_two_calls_per_bucket(bench: Bench) -> None:
    trainers, engines = LocalGroup(*bench.sync._train_group.workers), LocalGroup(bench.child)
    type(bench.sync)(trainers, engines, 60.0).sync(bench.version)
    assert trainers.calls == ["publish_bucket", "finish_publish"]
    assert engines.calls == ["load_bucket", "checksums"]


def text_of(tokens: Sequence[int]) -> str:
    return "".join(VOCAB[token] for token in tokens)


@pytest.mark.parametrize(
    "change",
    [{}, {"temperature": 0.6}, {"temperature": 1.4, "top_p": 0.8}, {"top_k": 4}, {"min_tokens": 1}],
    ids=["plain", "temperature", "top_p", "top_k", "min_tokens"],
)
def test_tokens_are_drawn_from_the_distribution_that_is_told(bench: Bench, change: dict[str, float]) -> None:
    sampling = replace(PLAIN, max_tokens=1, **change)
    prompt = requests(1)[0].prompt_ids
    answers = bench.child.generate([Request(prompt, seed) for seed in range(NUM_DRAWS)], sampling)
    logits = logits_of(bench.model, Request(prompt, 0), answers[0])
    banned = torch.zeros_like(logits, dtype=torch.bool)
    banned[:, EOS] = sampling.min_tokens > 0
    expected = token_log_probs(logits, sampling, banned)[0].exp().double() * NUM_DRAWS
    counts = torch.tensor([int(answer.token_ids[0]) for answer in answers]).bincount(minlength=len(VOCAB)).double()
    assert counts[expected == 0].sum() == 0
    often = expected >= 5
    rest = torch.stack([counts[~often].sum(), expected[~often].sum()])
    seen, wanted = torch.cat([counts[often], rest[:1]]), torch.cat([expected[often], rest[1:].clamp(min=1e-9)])
    chi_square = ((seen - wanted) ** 2 / wanted)[wanted > 1].sum().item()
    # Seeds are fixed: this is a number, not a chance. Mean of the distribution: often.sum() degrees of freedom.
    assert chi_square < often.sum() + 5 * (2 * often.sum()).sqrt(), (seen, wanted)


def test_a_stop_token_ends_a_completion_and_stays_in_it(bench: Bench) -> None:
    asked = requests(40)
    free = replace(PLAIN, ignore_eos=True)
    plain = bench.child.generate(asked, free)
    stop = (int(plain[0].token_ids[3]), int(plain[1].token_ids[5]))
    stopped = bench.child.generate(asked, replace(free, stop_token_ids=stop))
    for whole, cut in zip(plain, stopped, strict=True):
        ends = [place for place, token in enumerate(whole.token_ids) if token in stop]
        length = ends[0] + 1 if ends else len(whole.token_ids)
        assert tokens_of([cut])[0] == tokens_of([whole])[0][:length]
        assert cut.finish_reason == ("stop" if ends else "length")
    late = bench.child.generate(asked, replace(free, stop_token_ids=stop, min_tokens=8))
    assert all(not set(stop) & set(answer.token_ids[:8].tolist()) for answer in late)
    assert any(answer.finish_reason == "stop" for answer in late)


def test_a_stop_string_within_min_tokens_does_not_count(bench: Bench) -> None:
    asked = requests(1)
    free = replace(PLAIN, ignore_eos=True, min_tokens=9)
    whole = bench.child.generate(asked, free)[0]
    sampling: Sampling = replace(free, stop=(text_of(whole.token_ids[2:4]),))
    late = bench.child.generate(asked, sampling)[0]
    cut = text_of(late.token_ids)
    assert len(late.token_ids) > 9
    assert tokens_of([late])[0] == tokens_of([whole])[0][: len(late.token_ids)]
    assert (late.finish_reason == "stop") == (sampling.stop[0] in cut[8:])


def test_max_tokens_and_the_models_length_are_limits(bench: Bench) -> None:
    asked = requests(6)
    for most in (1, 5):
        answers = bench.child.generate(asked, replace(PLAIN, ignore_eos=True, max_tokens=most))
        assert {(answer.finish_reason, len(answer.token_ids)) for answer in answers} == {("length", most)}
        assert {answer.versions for answer in answers} == {((0, bench.version),)}, "what the engine says that it holds"
