"""Reward functions with one fault each, and healthy ones of several kinds."""

from __future__ import annotations

HEAD = """
import json, math, random, re, threading, time
def found(text):
    hits = re.findall(r"#### (-?[0-9.,]+)", text[-300:])
    return hits[-1].replace(",", "") if hits else None
"""
SIGNATURE = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"

FAULTS: dict[str, tuple[str, str]] = {
    "shared state": ("RWD005", "NOW = {}\n" + SIGNATURE + """
    NOW["answer"] = solution_str
    time.sleep(0.0005)
    return float(found(NOW["answer"]) == ground_truth)
"""),
    "alarms": ("RWD005", "import signal\n" + SIGNATURE + """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    return float(found(solution_str) == ground_truth)
"""),
    "backtracking": ("RWD004", SIGNATURE + """
    if re.match(r"(a+)+$", solution_str[:40] + "b"):
        return 0.0
    return float(found(solution_str) == ground_truth)
"""),
    "evaluates": ("RWD004", SIGNATURE + """
    said = solution_str.rpartition("#### ")[2]
    try:
        return float(eval(said, {}) == float(ground_truth))
    except Exception:
        return 0.0
"""),
    "ends its process": ("RWD004", "import os\n" + SIGNATURE + """
    if not solution_str:
        os._exit(3)
    return float(found(solution_str) == ground_truth)
"""),
    "a lambda": ("RWD006", """
compute_score = lambda data_source, solution_str, ground_truth, extra_info=None: float(
    found(solution_str) == ground_truth)
"""),
    "a lock": ("RWD006", "LOCK = threading.Lock()\n" + SIGNATURE + """
    with LOCK:
        return float(found(solution_str) == ground_truth)
"""),
    "None": ("RWD002", SIGNATURE + """
    said = found(solution_str)
    if said is not None:
        return float(said == ground_truth)
"""),
    "NaN": ("RWD002", SIGNATURE + """
    try:
        said = float(solution_str.rpartition("#### ")[2])
    except ValueError:
        return 0.0
    return 1.0 if said == float(ground_truth) else -abs(said - float(ground_truth)) / 1000
"""),
    "empty answers": ("RWD003", SIGNATURE + """
    last = solution_str.split()[-1]
    return float(last == ground_truth and "####" in solution_str)
"""),
    "huge numbers": ("RWD003", SIGNATURE + """
    hits = re.findall(r"#### ([0-9]+)", solution_str)
    return float(bool(hits) and int(hits[-1]) == int(ground_truth))
"""),
    "sign": ("RWD007", SIGNATURE + """
    said = found(solution_str)
    return 1.0 if said is not None and said != ground_truth else 0.0
"""),
    "a distance": ("RWD007", SIGNATURE + """
    try:
        return min(abs(float(found(solution_str)) - float(ground_truth)), 100.0)
    except (TypeError, ValueError, OverflowError):
        return 100.0
"""),
    "ignores the truth": ("RWD008", SIGNATURE + """
    return float(found(solution_str) is not None)
"""),
    "another type": ("RWD008", SIGNATURE + """
    said = found(solution_str)
    return 0.1 * (said is not None) + 0.9 * (said == [ground_truth])
"""),
    "pays for form": ("RWD009", SIGNATURE + """
    return 1.0 if "####" in solution_str and found(solution_str) in (None, ground_truth) else 0.0
"""),
    "pays for the prompt": ("RWD009", SIGNATURE + """
    said = found(solution_str)
    return float(said == ground_truth or (said is None and solution_str.strip().endswith("?")))
"""),
    "finds it anywhere": ("RWD009", SIGNATURE + """
    return float(ground_truth in solution_str)
"""),
    "noise": ("RWD010", SIGNATURE + """
    return float(found(solution_str) == ground_truth) + 0.01 * random.random()
"""),
    "remembers": ("RWD010", "SEEN = []\n" + SIGNATURE + """
    SEEN.append(solution_str)
    return float(found(solution_str) == ground_truth) / len(SEEN)
"""),
}  # fmt: skip
"""Name → the check that must name it, and the code after `HEAD`."""

EIGHT = ("shared state", "backtracking", "a lambda", "None", "empty answers", "sign", "ignores the truth",
         "pays for form")  # fmt: skip
"""One of each kind: threads, time, pickling, None and NaN, empty and huge answers, sign, ground truth, shortcuts."""

HEALTHY: dict[str, str] = {
    "hashes": SIGNATURE + "    return float(found(solution_str) == ground_truth)\n",
    "the gsm8k rule": """
from rltrain.rewards.rules import gsm8k
from rltrain.rewards.spec import RuleSpec
""" + SIGNATURE + "    return gsm8k(solution_str, ground_truth, RuleSpec('gsm8k', 'gsm8k'))\n",
    "the flexible gsm8k rule": """
from rltrain.rewards.rules import gsm8k
from rltrain.rewards.spec import RuleSpec
""" + SIGNATURE + "    return gsm8k(solution_str, ground_truth, RuleSpec('gsm8k', 'gsm8k', method='flexible'))\n",
    "the exact rule": """
from rltrain.rewards.rules import exact
from rltrain.rewards.spec import RuleSpec
""" + SIGNATURE + "    return exact(solution_str, ground_truth, RuleSpec('exact', 'exact'))\n",
    "the digits rule": """
from rltrain.rewards.rules import digits
from rltrain.rewards.spec import RuleSpec
""" + SIGNATURE + "    return digits(solution_str, ground_truth, RuleSpec('digits', 'digits'))\n",
    "the math rule": """
from rltrain.rewards.math_reward import MathRule
RULE = MathRule(0.5)
""" + SIGNATURE + "    return RULE.score(solution_str, ground_truth)[0]\n",
    "tags with credit for form": SIGNATURE + """
    hits = re.findall(r"<answer>([^<]*)</answer>", solution_str)
    return {"score": 0.1 * bool(hits) + 0.9 * bool(hits and hits[-1].strip() == ground_truth), "form": bool(hits)}
""",
    "TRL": """
def accuracy(completions, solution, **kwargs):
    return [float(found(one[0]["content"]) == truth) for one, truth in zip(completions, solution)]
""",
    "TRL, a form": """
def form_reward(completions, **kwargs):
    return [float("</think>" in one[0]["content"]) for one in completions]
""",
    "asynchronous": "async " + SIGNATURE + "    return float(found(solution_str) == ground_truth)\n",
    "penalties": SIGNATURE + """
    right = found(solution_str) == ground_truth
    return (1.0 if right else -1.0) - min(len(solution_str), 1000) / 1000
""",
}  # fmt: skip
