"""A capsule that keeps a part: some rows, some numbers, one role's model; what cannot be judged says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from rlcheck.facts.capsule import Origin
from rltrain.proof.plugin import run
from tests.trainer.proof.make import make
from tests.trainer.proof.plan import Plan

Links = dict[str, dict[str, Any]]
TWO = Plan(step=3, minis=2, ranks=2, kl_loss="k3")
CRITIC = Plan(estimator="gae", step=1)


def links_of(place: Path, checkpoint: Path | None = None) -> Links:
    found = run({"capsules": [str(place)], "checkpoint": checkpoint and str(checkpoint)}, lambda _: None)
    assert "failure" not in found, found["failure"]
    return {link["name"]: {"said": "", "where": (), **link} for link in found["capsules"][0]["links"]}


def head_of(place: Path, **changed: Any) -> None:
    head = msgspec.json.decode((place / "capsule.json").read_bytes())
    (place / "capsule.json").write_bytes(msgspec.json.encode({**head, **changed}))


def keep_rows(place: Path, rows: list[int]) -> None:
    batch = load_file(place / "batch.safetensors")
    save_file({name: field[rows].clone() for name, field in batch.items()}, place / "batch.safetensors")
    lines = (place / "rows.jsonl").read_bytes().splitlines()
    (place / "rows.jsonl").write_bytes(b"\n".join(lines[row] for row in rows))
    head_of(place, kept_rows=rows)


@pytest.mark.parametrize("rows", [[*range(8)], [*range(4, 16)]])
def test_rows_that_were_left_out_are_no_error(tmp_path: Path, rows: list[int]) -> None:
    place = make(tmp_path / "step_3", TWO)
    keep_rows(place, rows)
    links = links_of(place)
    assert not [link for link in links.values() if link["status"] == "differs" and link["name"] != "prompts"], links
    assert not [link["said"] for link in links.values() if "could not be recomputed: " in link["said"]]
    for name in ("old-log-probs", "rewards", "advantages", "update-log-probs", "loss"):
        assert links[name]["status"] == "same", links[name]
    assert "passes of the actor were kept whole" in links["loss"]["said"]
    # The first mini batch is rows 0 to 7.
    whole = rows[0] == 0
    assert links["gradient"]["status"] == ("same" if whole else "unknown"), links["gradient"]
    assert whole or "4 of the 8 rows of the actor's mini batch 0" in links["gradient"]["said"]
    assert "rows" in links["optimizer"]["said"]


def test_a_fault_in_kept_rows_is_found(tmp_path: Path) -> None:
    place = make(tmp_path / "step_3", replace(TWO, hooks={"loss_advantages": lambda x: -x}))
    keep_rows(place, [*range(4, 16)])
    links = links_of(place)
    assert next(name for name, link in links.items() if link["status"] == "differs" and name != "prompts") == "loss"


def test_whitening_needs_all_rows(tmp_path: Path) -> None:
    place = make(tmp_path / "step_3", replace(TWO, estimator="reinforce_plus_plus"))
    keep_rows(place, [*range(8)])
    links = links_of(place)
    assert "statistics are of all" in links["advantages"]["said"]
    assert links["prompts"]["status"] == "same", links["prompts"]


def test_one_role_that_cannot_be_built_hides_no_other(tmp_path: Path) -> None:
    place = make(tmp_path / "step_1", CRITIC)
    weights = load_file(place / "weights.safetensors")
    save_file({n: t for n, t in weights.items() if not n.startswith("critic.before/")}, place / "weights.safetensors")
    links = links_of(place)
    assert links["values"]["status"] == "unknown"
    for name in ("update-log-probs", "gradient", "optimizer"):
        assert links[name]["status"] == "same", links[name]
        assert "critic: " in links[name]["said"], links[name]


def test_a_critic_of_another_model_is_built_from_its_own_config(tmp_path: Path) -> None:
    place = make(tmp_path / "step_1", CRITIC)
    config = msgspec.json.decode((place / "capsule.json").read_bytes())["model_config"]
    head_of(place, critic_config={**config, "rope_parameters": {"rope_type": "default", "rope_theta": 17.0}})
    assert links_of(place)["values"]["status"] == "differs"  # the capsule's was made with the actor's config
    head_of(place, critic_config=config)
    assert links_of(place)["values"]["status"] == "same"


def test_a_critic_that_the_config_asks_for_must_be_there(tmp_path: Path) -> None:
    place = make(tmp_path / "step_3", Plan(step=3))
    config = msgspec.json.decode((place / "capsule.json").read_bytes())["config"]
    assert links_of(place)["values"]["status"] == "absent"
    head_of(place, config={**config, "critic": {**config["critic"], "enable": True}})
    assert "asks for a critic" in links_of(place)["values"]["said"]


def test_ranks_and_log_probs_are_those_of_the_config(tmp_path: Path) -> None:
    place = make(tmp_path / "step_3", Plan(step=3))
    head = msgspec.json.decode((place / "capsule.json").read_bytes())
    config = head["config"]
    head_of(place, config={**config, "trainer": {**config["trainer"], "device": "cpu", "num_cpu_ranks": 2}})
    assert "1 ranks learnt, the config asks for 2" in links_of(place)["update-rows"]["said"]
    lines = [msgspec.json.decode(line) for line in (place / "rows.jsonl").read_bytes().splitlines()]
    (place / "rows.jsonl").write_bytes(b"\n".join(msgspec.json.encode({**row, "log_probs": None}) for row in lines))
    batch = load_file(place / "batch.safetensors")
    save_file({k: v for k, v in batch.items() if k != "rollout_log_probs"}, place / "batch.safetensors")
    assert links_of(place)["engine-log-probs"]["status"] == "absent"
    settings = {**config["actor_rollout_ref"]["rollout"], "calculate_log_probs": True}
    head_of(place, config={**config, "actor_rollout_ref": {**config["actor_rollout_ref"], "rollout": settings}})
    assert "there are none" in links_of(place)["engine-log-probs"]["said"]


def test_an_adaptive_coefficient_is_held_within_its_reach(tmp_path: Path) -> None:
    place = make(tmp_path / "step_3", Plan(estimator="gae", step=3, kl_reward="k1"))
    config = msgspec.json.decode((place / "capsule.json").read_bytes())["config"]
    control = {"type": "adaptive", "kl_coef": 0.1, "target_kl": 0.1, "horizon": 10000}
    head_of(place, config={**config, "algorithm": {**config["algorithm"], "kl_ctrl": control}})
    assert links_of(place)["advantages"]["status"] == "same"
    head_of(place, kl_coef=0.2)
    assert "at this step" in links_of(place)["advantages"]["said"]


def test_moments_that_are_gone_are_not_the_same(tmp_path: Path) -> None:
    place = make(tmp_path / "step_3", Plan(step=3))
    weights = load_file(place / "weights.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("actor.exp_avg_sq.after/")}
    save_file(kept, place / "weights.safetensors")
    link = links_of(place)["optimizer"]
    assert (link["status"], "second moments" in link["where"][0]) == ("differs", True), link


def test_a_resumed_run_may_have_had_other_mini_batches(tmp_path: Path) -> None:
    """Step 3 of a run that was resumed after step 2, with 2 optimizer steps by then."""
    place = make(tmp_path / "step_3", Plan(step=3))
    steps = msgspec.json.decode((place / "capsule.json").read_bytes())["actor"][0]["optimizer_steps"]
    assert steps == 2
    config = msgspec.json.decode((place / "capsule.json").read_bytes())["config"]
    epochs = {**config["actor_rollout_ref"]["actor"], "ppo_epochs": 1, "ppo_mini_batch_size": 4}
    head_of(place, start_step=2, start_optimizer_steps={"actor": 2},
            config={**config, "actor_rollout_ref": {**config["actor_rollout_ref"], "actor": epochs}})  # fmt: skip
    assert links_of(place)["optimizer"]["status"] == "same"
    head_of(place, start_optimizer_steps={"actor": 1})
    assert "optimizer steps before step 3" in links_of(place)["optimizer"]["said"]


def test_a_checkpoint_of_another_step_is_not_taken(tmp_path: Path) -> None:
    place = make(tmp_path / "step_3", Plan(step=3))
    weights = load_file(place / "weights.safetensors")
    saved = {n.partition("/")[2]: t + 0.1 for n, t in weights.items() if n.startswith("actor.before/")}
    (tmp_path / "other").mkdir()
    save_file(saved, tmp_path / "other" / "model.safetensors")
    links = links_of(place, tmp_path / "other")
    assert links["old-log-probs"]["status"] == "unknown"
    assert "other weights than this step began with" in links["old-log-probs"]["said"]


def files_of(place: Path, directory: Path, change: float = 0.0) -> None:
    weights = load_file(place / "weights.safetensors")
    directory.mkdir(exist_ok=True)
    saved = {n.partition("/")[2]: t + change for n, t in weights.items() if n.startswith("actor.before/")}
    save_file(saved, directory / "model.safetensors")


def test_files_are_read_where_they_are(tmp_path: Path) -> None:
    """Without their checksums too; other files than those of the run are no evidence."""
    place, directory = make(tmp_path / "step_1", Plan()), tmp_path / "model"
    head_of(place, origins=[msgspec.to_builtins(Origin("actor", "files", str(directory)))])
    assert links_of(place)["start-weights"]["status"] == "unknown"
    files_of(place, directory)
    assert links_of(place)["start-weights"]["status"] == "same"
    files_of(place, directory, 0.01)
    link = links_of(place)["start-weights"]
    assert link["status"] == "differs"
    assert "its model's files" in link["said"]
    files = {"model.safetensors": "0" * 64}
    head_of(place, origins=[msgspec.to_builtins(Origin("actor", "files", str(directory), files=files))])
    link = links_of(place)["start-weights"]
    assert link["status"] == "unknown"
    assert "not those of the run" in link["said"]


def test_groups_that_dynamic_sampling_drops_are_no_part_of_a_step(tmp_path: Path) -> None:
    place = make(tmp_path / "step_3", Plan(step=3, n=8))
    head = msgspec.json.decode((place / "capsule.json").read_bytes())
    algorithm = head["config"]["algorithm"] | {"filter_groups": {"enable": True, "metric": "score"}}
    head_of(place, config=head["config"] | {"algorithm": algorithm})
    assert links_of(place)["rewards"]["status"] == "same"
    algorithm["filter_groups"]["metric"] = "short"
    head_of(place, config=head["config"] | {"algorithm": algorithm})
    link = links_of(place)["rewards"]
    assert link["status"] == "differs"
    assert "'short' is the same for all answers of 3 of 4 groups" in link["said"]


@pytest.mark.parametrize(("horizon", "status"), [(10**9, "same"), (100, "differs")])
def test_an_adaptive_coefficient_follows_from_the_step_before(tmp_path: Path, horizon: int, status: str) -> None:
    """Both have 0.1, which is in reach: only the KL of the step before says that it is not due."""
    for step in (2, 3):
        place = make(tmp_path / f"step_{step}", Plan(estimator="gae", step=step, kl_reward="k1"))
        head = msgspec.json.decode((place / "capsule.json").read_bytes())
        control = {"type": "adaptive", "kl_coef": 0.1, "target_kl": 0.1, "horizon": horizon}
        algorithm = head["config"]["algorithm"] | {"kl_ctrl": control}
        head_of(place, config=head["config"] | {"algorithm": algorithm}, begun="2026-11-01T00:00:00")
    link = links_of(place)["advantages"]
    assert link["status"] == status, link
    assert status == "same" or "of the 0.1 before" in link["said"]


def test_a_step_begins_with_what_the_step_before_left(tmp_path: Path) -> None:
    """Weights and moments, of the same run alone."""
    before, place = make(tmp_path / "step_2", Plan(step=2)), make(tmp_path / "step_3", Plan(step=3))
    head_of(place, begun="2026-11-01T00:00:00")
    assert links_of(place)["start-weights"]["status"] == "absent"
    head_of(before, begun="2026-11-01T00:00:00")
    assert links_of(place)["start-weights"]["status"] == "differs"
    held = {n: t for n, t in load_file(place / "weights.safetensors").items() if ".before/" in n}
    left = {name.replace(".before/", ".after/"): tensor for name, tensor in held.items()}
    save_file(left, before / "weights.safetensors")
    assert links_of(place)["start-weights"]["status"] == "same"
    gone = {name: tensor for name, tensor in left.items() if not name.startswith("actor.exp_avg_sq.after/model.norm")}
    save_file(gone, before / "weights.safetensors")
    link = links_of(place)["start-weights"]
    assert (link["status"], link["where"]) == ("differs", ("actor.exp_avg_sq.model.norm.weight",))
    assert "that step 2 left" in link["said"]


def test_a_run_goes_on_with_the_moments_that_it_stopped_with(tmp_path: Path) -> None:
    place, directory = make(tmp_path / "step_3", Plan(step=3)), tmp_path / "model"
    files_of(place, directory)
    origin = msgspec.to_builtins(Origin("actor", "files", str(directory)))
    head_of(place, origins=[origin], start_step=2, start_optimizer_steps={"actor": 2})
    assert "no capsule of step 2 is beside this" in links_of(place)["start-weights"]["said"]
    before, held = make(tmp_path / "step_2", Plan(step=2)), load_file(place / "weights.safetensors")
    assert "is not of the checkpoint" in links_of(place)["start-weights"]["said"]
    left = {name.replace(".before/", ".after/"): tensor for name, tensor in held.items() if ".before/" in name}
    save_file(left, before / "weights.safetensors")
    link = links_of(place)["start-weights"]
    assert (link["status"], link["said"]) == ("same", "those that step 2 left")
    other = {name: tensor * (1.01 if "exp_avg.after" in name else 1) for name, tensor in left.items()}
    save_file(other, before / "weights.safetensors")
    link = links_of(place)["start-weights"]
    assert link["status"] == "differs"
    assert all(name.startswith("actor.exp_avg.") for name in link["where"])


def test_a_large_model_is_read_from_its_files_at_the_first_step(tmp_path: Path) -> None:
    place, directory = make(tmp_path / "step_1", Plan()), tmp_path / "model"
    files_of(place, directory)
    weights = load_file(place / "weights.safetensors")
    save_file({name: tensor.flatten()[:40].clone() for name, tensor in weights.items()}, place / "weights.safetensors")
    head_of(place, tensors="the first 40 numbers of each",
            origins=[msgspec.to_builtins(Origin("actor", "files", str(directory)))])  # fmt: skip
    links = links_of(place)
    assert links["start-weights"]["status"] == links["old-log-probs"]["status"] == links["gradient"]["status"] == "same"


def test_a_reference_that_nothing_anchors_is_unknown(tmp_path: Path) -> None:
    place = make(tmp_path / "step_3", Plan(step=3, kl_loss="k3"))
    head_of(place, origins=[])
    link = links_of(place)["reference-log-probs"]
    assert (link["status"], "right model" in link["said"]) == ("unknown", True), link


def test_at_the_first_step_the_reference_is_the_actor(tmp_path: Path) -> None:
    """The test's capsule has two models: without files that say otherwise, that is a difference."""
    place = make(tmp_path / "step_1", Plan(kl_loss="k3"))
    head_of(place, origins=[])
    link = links_of(place)["reference-log-probs"]
    assert link["status"] == "differs"
    assert "the actor that the run began with" in link["said"]


def test_greedy_baselines_are_scored_again(tmp_path: Path) -> None:
    place = make(tmp_path / "step_1", Plan(estimator="remax", n=1, prompts=4))
    assert "taken as recorded" in links_of(place)["rewards"]["said"]
    lines = [msgspec.json.decode(line) for line in (place / "rows.jsonl").read_bytes().splitlines()]
    rows = [msgspec.json.encode({**row, "baseline_text": row["text"]}) for row in lines]
    (place / "rows.jsonl").write_bytes(b"\n".join(rows))
    assert "baselines of greedy answers differ" in links_of(place)["rewards"]["said"]  # these were drawn
    batch = load_file(place / "batch.safetensors")
    scores = torch.tensor([row["score"] for row in lines])
    save_file({**batch, "reward_baselines": scores}, place / "batch.safetensors")
    assert links_of(place)["rewards"]["status"] == "same"


def test_a_template_writes_the_date_of_the_run(tmp_path: Path) -> None:
    place = make(tmp_path / "step_1", Plan())
    config = msgspec.json.decode((place / "capsule.json").read_bytes())["config"]
    template = ("{% for m in messages %}<user>{% if strftime_now('%Y') == '2020' %}{{ m['content'] }}{% endif %}"
                "{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}")  # fmt: skip
    model = {**config["actor_rollout_ref"]["model"], "custom_chat_template": template}
    head_of(place, config={**config, "actor_rollout_ref": {**config["actor_rollout_ref"], "model": model}})
    assert links_of(place)["prompt-ids"]["status"] == "unknown"
    head_of(place, begun="2020-02-29T12:00:00")
    assert links_of(place)["prompt-ids"]["status"] == "same"
    head_of(place, begun="2021-02-28T12:00:00")
    assert links_of(place)["prompt-ids"]["status"] == "differs"


def test_links_that_were_proven_are_told_at_once(tmp_path: Path) -> None:
    place, told = make(tmp_path / "step_1", Plan(prompts=1, n=2)), list[Any]()
    run({"capsules": [str(place)], "checkpoint": None}, lambda about: told.append(about.get("partial")))
    chains = [part["capsules"][0]["links"] for part in told if part]
    statuses = [[link["status"] for link in chain] for chain in chains]
    assert len({len(chain) for chain in chains}) == 1
    assert statuses[0][0] == "same"
    assert chains[0][1]["said"] == "it was not reached"
    assert statuses[-1].count("unknown") == 0
