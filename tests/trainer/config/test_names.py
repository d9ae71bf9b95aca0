"""The tables of names agree with the schema and with each other."""

from __future__ import annotations

from rltrain.config.names import aliases, leaf_above, leaves, nearest, sections, verl_keys


def test_every_alias_leads_to_a_key_that_is_there_and_from_one_that_is_not() -> None:
    for old, new in aliases().moved.items():
        assert new in leaves() or new in sections() or leaf_above(new) is not None, new
        assert leaf_above(old) is None, f"{old} is a key of its own"
        assert old not in sections()


def test_advice_is_for_keys_that_are_not_there() -> None:
    for key in [*aliases().instead, *aliases().accepted]:
        assert leaf_above(key) is None, key
    for key in aliases().accepted:
        assert key in verl_keys(), key


def test_most_keys_are_verls() -> None:
    own = {key for key in leaves() if key not in verl_keys() and not key.startswith(("toy.", "sft_warmup."))}
    assert len(own) < len(set(leaves()) & set(verl_keys()))
    assert "trainer.total_epochs" not in own


def test_a_leaf_knows_what_it_takes() -> None:
    assert leaves()["data.seed"].types == (int,)
    assert leaves()["data.seed"].nullable
    assert not leaves()["trainer.seed"].nullable
    assert [key for key, leaf in leaves().items() if leaf.required] == ["actor_rollout_ref.rollout.name"]
    assert leaf_above("toy.model.hidden_size") == "toy.model"


def test_nothing_is_near_to_nonsense() -> None:
    assert nearest("zzz.qqq") == []
    assert nearest("actor_rollout_ref.actor.megatron") == []
    assert nearest("trainer.n_gpu_per_node")[0] == "trainer.n_gpus_per_node"
