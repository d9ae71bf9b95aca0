"""Answers to score: right and wrong ones in every usual form, odd ones, and ones that solve nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rltrain.measure.reward.calls import Call, Sample

OWN = "the row's own solution"
FORMS = (
    "{}",
    "The answer is {}.",
    "I work it out step by step.\n#### {}",
    "The answer is $\\boxed{{}}$.",
    "<answer>{}</answer>",
    "<answer> {} </answer>",
    "<think>\nI work it out step by step.\n</think>\n<answer>{}</answer>",
    "<think>\nI work it out step by step.\n</think>\n<answer>\n{}\n</answer>",
    "<think>\nI work it out step by step.\n</think>\n\nThe answer is $\\boxed{{}}$.",
    "<think>\nI work it out step by step.\n</think>\n{}",
    "<reasoning>\nI work it out step by step.\n</reasoning>\n<answer>\n{}\n</answer>\n",
    "Answer: {}",
    "```python\n{}\n```",
)
"""`{}` stands for what is answered."""
_MARKS = "<think></think><answer></answer> \\boxed{} #### The answer is"
_HUGE = 100_000


def filled(form: str, text: str) -> str:
    """FORM with TEXT in it."""
    return form.replace("{}", text, 1)


def pairs(samples: Sequence[Sample], own_form: str = "") -> Iterator[tuple[str, Call, Call]]:
    """For each form and row: the form, a right answer, and one with the ground truth of another row."""
    usable = [sample for sample in samples if sample.truth_text]
    forms = (*((own_form,) if own_form else ()), *FORMS)
    for number, sample in enumerate(usable):
        other = usable[(number + 1) % len(usable)]
        if other.truth_text == sample.truth_text:
            continue
        for form in forms:
            shown = repr(form)[1:-1]
            right = Call(f"the ground truth as {shown}", filled(form, sample.truth_text), sample)
            yield form, right, Call(f"a wrong answer as {shown}", filled(form, other.truth_text), sample)
        if sample.solution and other.solution:
            yield OWN, Call(OWN, sample.solution, sample), Call("another row's solution", other.solution, sample)


def odd(sample: Sample, form: str) -> Iterator[Call]:
    """What a model writes now and then, and what breaks a careless parser. FORM: that in which answers are found."""
    form = "{}" if form == OWN else form
    bare = {
        "an empty answer": "",
        "white space alone": " \n\t\n",
        "one character": "x",
        "an unclosed tag": "<answer>",
        "tags in the wrong order": "</answer></think><answer><think>",
        "an unclosed brace": "The answer is \\boxed{",
        "marks without content": _MARKS,
        "four hashes at the end": "So it is ####",
        "a NUL and half an emoji": "\0\ufffd",
        f"{_HUGE} letters": "a" * _HUGE,
        f"{_HUGE} spaces": "x" + " " * _HUGE + "x",
        f"{_HUGE} digits": "7" * _HUGE,
        f"{_HUGE // 10} opening braces": "\\boxed{" * (_HUGE // 10),
        f"{_HUGE // 10} numbers": " ".join(map(str, range(_HUGE // 10))),
        "the same form a thousand times": (filled(form, "1") + "\n") * 1000,
    }
    answered = {
        "no number": "nan", "infinity": "inf", "a number beyond floats": "1e999", "minus infinity": "-inf",
        "a division by zero": "1/0", "a fraction over zero": "\\frac{1}{0}", "a raised two": "\u00b2",
        "an Arabic digit": "\u0663", "several points": "1.2.3", "commas alone": ",,,", "a minus alone": "-",
        "nothing": "", "a word": "seven", "None": "None", "a tower of powers": "9**9**9**9",
        "5000 digits": "9" * 5000, "brackets without an end": "(" * 500, "an open string": "'",
        "JSON": '{"answer": null}', "a list": "[]",
    }  # fmt: skip
    for text, solution in bare.items():
        yield Call(text, solution, sample)
    for text, answer in answered.items():
        yield Call(f"{text} as the answer", filled(form, answer), sample)


def shortcuts(samples: Sequence[Sample], form: str) -> Iterator[tuple[bool, Call]]:
    """Answers that solve nothing, and whether they hedge; those that would be right by chance are left out."""
    form = "{}" if form == OWN else form
    usable = [sample for sample in samples if sample.truth_text]
    for sample in usable:
        others = [one.truth_text for one in usable if one.truth_text != sample.truth_text]
        alone = {
            "an empty answer": "",
            "the form without an answer": filled(form, ""),
            "the marks of every form, without an answer": _MARKS,
            "the prompt again": sample.question,
            "the prompt again, in the form of an answer": filled(form, sample.question),
            "`None` as the answer": filled(form, "None"),
            "`0` as the answer": filled(form, "0"),
            "words of agreement": "Yes, this is correct. The answer is correct, verified and final.",
        }
        for text, solution in alone.items():
            if sample.truth_text not in solution:
                yield False, Call(text, solution, sample)
        if len(others) > 1:
            middle = [others[0], sample.truth_text, *others[1:]]
            yield True, Call("a list of candidates", ", ".join(middle), sample)
            yield True, Call("a list of candidates in the form of an answer", filled(form, ", ".join(middle)), sample)
            several = "\n".join(filled(form, one) for one in middle)
            yield True, Call("several answers, the right one in the middle", several, sample)
