"""The root cause before its echoes; several incidents; what nobody knows."""

from __future__ import annotations

from tests.diagnose.reading import diagnosed, ranked, small_index

TRACE = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\n'
INDEX = small_index(
    full="No space left on device; specific",
    memory="CUDA out of memory",
    logits="in entropy_from_logits; specific; near:out of memory; pattern:in (?P<where>entropy_from_logits)",
    engine="Engine core initialization failed; wraps",
    watchdog="Watchdog caught collective operation timeout; after:*",
    reset="Connection reset by peer; after:watchdog,memory",
    driver="driver is too old; warn",
    kl="kl_mean: ; warn; pattern:kl_mean: (?P<kl>[\\d.,]+); where:kl > 10",
    benign="metrics exporter agent; info",
    stall="NCCL INFO Bootstrap; warn; unless:Init COMPLETE",
)


def test_what_came_first_is_the_root() -> None:
    ids, answer = ranked(INDEX, "x\nNo space left on device\n" + "y\n" * 30 + "CUDA out of memory")
    assert ids == ["full", "memory"]
    assert answer.diagnoses == ()  # no playbook of that name: nothing is made up


def test_the_more_specific_of_one_event_names_it() -> None:
    text = TRACE + "    in entropy_from_logits\ntorch.OutOfMemoryError: CUDA out of memory"
    assert ranked(INDEX, "CUDA out of memory\n" + text)[0] == ["logits", "memory"]


def test_a_warning_of_each_step_is_one_problem_of_the_last() -> None:
    steps = "".join(f"step:{step} - actor/pg_loss:0.1\nkl_mean: {20 + step}\n" for step in range(1, 6))
    assert ranked(INDEX, steps)[0] == ["kl"]
    assert ranked(INDEX, steps + "CUDA out of memory\n")[0] == ["memory", "kl"]


def test_a_wrapper_is_an_echo_of_all_else_and_alone_it_is_all_there_is() -> None:
    wrapper = "RuntimeError: Engine core initialization failed. See root cause above."
    assert ranked(INDEX, wrapper)[0] == ["engine"]
    assert ranked(INDEX, wrapper + "\nlater: CUDA out of memory")[0] == ["memory", "(engine)"]
    ids, answer = ranked(INDEX, TRACE + "KeyError: 'mine'\n" + wrapper)
    assert ids == ["(engine)"]
    assert answer.unknown is not None
    assert answer.unknown.evidence[0].text[-1] == "KeyError: 'mine'"


def test_a_consequence_needs_what_explains_it() -> None:
    assert ranked(INDEX, "Connection reset by peer")[0] == ["reset"]
    assert ranked(INDEX, "Connection reset by peer\nCUDA out of memory")[0] == ["memory", "(reset)"]
    assert ranked(INDEX, "Watchdog caught collective operation timeout")[0] == ["watchdog"]
    after = "No space left on device\nWatchdog caught collective operation timeout"
    assert ranked(INDEX, after)[0] == ["full", "(watchdog)"]
    before = "Watchdog caught collective operation timeout\n" + "z\n" * 20 + "No space left on device"
    assert ranked(INDEX, before)[0] == ["watchdog", "full"]


def test_an_exception_of_another_rank_that_nobody_knows_is_no_watchdog() -> None:
    other = "[rank3]: Traceback (most recent call last):\n[rank3]: MyError: bad luck"
    ids, answer = ranked(INDEX, "[rank0]: Watchdog caught collective operation timeout", other)
    assert ids == ["(watchdog)"]
    assert answer.unknown is not None
    assert (answer.unknown.evidence[0].file, answer.unknown.evidence[0].rank) == ("1.log", "3")


def test_what_was_survived_comes_after_what_ended_the_run() -> None:
    step = "(TaskRunner pid=1) step:7 - actor/kl_loss:0.001 - critic/score/mean:0.4\n"
    ids, _ = ranked(INDEX, "No space left on device\n" + step + "CUDA out of memory")
    assert ids == ["memory", "full"]


def test_logs_of_several_ranks_are_read_by_their_clocks() -> None:
    first = "2026-01-02 03:04:05,100 CUDA out of memory"
    later = "2026-01-02 03:04:09,100 No space left on device"
    assert ranked(INDEX, later, first)[0] == ["memory", "full"]
    assert ranked(INDEX, later.split(" ", 2)[2], first)[0] == ["full", "memory"]  # one clock cannot be compared


def test_errors_before_warnings_before_remarks() -> None:
    ids, answer = ranked(INDEX, "the driver is too old\nmetrics exporter agent\n" + "q\n" * 20 + "CUDA out of memory")
    assert ids == ["memory", "driver", "benign"]
    assert answer.remarks == ("benign",)


def test_bounds_of_numbers() -> None:
    assert ranked(INDEX, "kl_mean: 1,568.2")[0] == ["kl"]
    assert ranked(INDEX, "kl_mean: 9.99")[0] == []


def test_unless_takes_a_hit_back() -> None:
    assert ranked(INDEX, "NCCL INFO Bootstrap : eth0")[0] == ["stall"]
    assert ranked(INDEX, "NCCL INFO Bootstrap : eth0\ncomm Init COMPLETE")[0] == []


def test_a_line_that_a_terminal_broke_is_read_as_one() -> None:
    index = small_index(killed="killed due to; pattern:killed due to memory pressure")
    assert ranked(index, "2 workers killed due to\nmemory pressure")[0] == ["killed"]
    assert ranked(index, "2 workers killed due to mem\nory pressure")[0] == ["killed"]


def test_the_first_of_a_chain_of_exceptions_is_the_unknown_one() -> None:
    text = (
        TRACE + "bank.NoFunds: 12\n\nDuring handling of the above exception, another exception occurred:\n\n"
        + TRACE + "bank.Frozen: 3"
    )  # fmt: skip
    _, answer = ranked(INDEX, text)
    assert answer.unknown is not None
    assert answer.unknown.evidence[0].text == ('  File "a.py", line 3, in f', "bank.NoFunds: 12")
    assert answer.unknown.evidence[0].line == 2


STEP = "(TaskRunner pid=1) step:7 - actor/kl_loss:0.001 - critic/score/mean:0.4\n"


def test_a_warning_does_not_explain_an_exception() -> None:
    text = "the driver is too old\n" + "x\n" * 20 + TRACE + "KeyError: 'mine'"
    _, answer = ranked(INDEX, text)
    assert answer.unknown is not None
    assert answer.unknown.evidence[0].text[-1] == "KeyError: 'mine'"
    assert answer.remarks == ("driver",)


def test_what_a_run_has_survived_is_no_failure_of_it() -> None:
    survived = STEP + TRACE + "KeyError: 'once'\n" + STEP
    assert ranked(INDEX, survived)[1].unknown is None
    _, answer = ranked(INDEX, survived + TRACE + "KeyError: 'last'")
    assert answer.unknown is not None
    assert answer.unknown.evidence[0].text[-1] == "KeyError: 'last'"


def test_a_known_failure_that_was_survived_does_not_explain_the_last_one() -> None:
    failed = "Traceback (most recent call last):\nOSError: [Errno 28] No space left on device\n"
    last = TRACE + "KeyError: 'last'"
    assert [found.id for found in diagnosed(failed + STEP + last).diagnoses] == ["disk-full"]
    answer = diagnosed(failed + STEP + STEP + last)
    assert answer.unknown is not None
    assert answer.unknown.evidence[0].text[-1] == "KeyError: 'last'"
    answer = diagnosed(failed + STEP)
    assert [(found.id, found.status) for found in answer.diagnoses] == [("disk-full", "warn")]
    assert not answer.failed


def test_the_numbers_of_a_step_are_not_survived_with_the_next() -> None:
    step = "step:{} - actor/ppo_kl:{} - critic/score/mean:0.4\n"
    answer = diagnosed(step.format(1, 5000.0) + step.format(2, 0.001))
    assert answer.failed


def test_other_ranks_have_not_survived_what_ended_one() -> None:
    _, answer = ranked(INDEX, STEP + STEP, TRACE + "KeyError: 'mine'")
    assert answer.unknown is not None


def test_samples_of_a_model_are_quotations() -> None:
    sample = f"[prompt] what is this?\n[response] No space left on device\n{TRACE}KeyError: 'x'\n"
    answer = diagnosed(sample + "[score] 0.0\nbye")
    assert (answer.diagnoses, answer.unknown) == ((), None)
    assert diagnosed(sample).failed  # where it ends is not said: it may be the run's own
    record = '{"step": 1, "prompt": "why?", "response": "torch.OutOfMemoryError: CUDA out of memory", "score": 0}'
    assert diagnosed(record).diagnoses == ()


def test_several_exceptions_together_are_shown_by_the_first_of_them() -> None:
    text = "  | ExceptionGroup: two\n  +-+---- 1 ----\n    | Traceback (most recent call last):\n    | KeyError: 'x'"
    _, answer = ranked(INDEX, text)
    assert answer.unknown is not None
    assert answer.unknown.evidence[0].text == ("    | KeyError: 'x'",)


def test_failures_that_are_no_exceptions_are_unknown_too() -> None:
    for line in (
        "thread 'main' panicked at src/a.rs:3:1:",
        "./run.sh: line 8: 311 Aborted                 ./tool",
        "panic: runtime error: index out of range",
        "[judge] 2026-05-04 02:11:09 FATAL quorum not reached",
        '{"level": "error", "msg": "no grader"}',
        "make: *** [all] Error 2",
        "process exited with code 3",
        "play.sh: line 61: 50133 Exit 7                  ./board --seed 4",
        "[1]+  Exit 3                  ./board --seed 4",
        "[2]-  4711 Done(2)            ./board --seed 4",
        "worker 4 exited with 9",
        "driver: exit 3",
        "+ exit 64",
        "unit tests of candidate 9: FAILED (2 of 14)",
        "judge.client.Refused: answer 77",
        '{"error": {"kind": "conflict"}}',
        "re.error: unterminated character set at position 3",
        "socket.gaierror: [Errno -2] Name or service not known",
        "grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with:",
        "grade.rb:41:in `fetch': key not found: :rubric (KeyError)",
        "PHP Fatal error:  Uncaught Exception: no rubric in /srv/grade.php:41",
        "lua: grade.lua:41: attempt to index a nil value",
        "run.sh: line 41: syntax error near unexpected token `done'",
        "python3: can't open file '/srv/trian.py': [Errno 2] No such file or directory",
        "F1121 00:20:11.101101       1 main.go:41] arena lost",
        "2026-11-21T00:20:11.101Z\tERROR\tarena/main.go:41\tarena lost",
    ):
        _, answer = ranked(INDEX, f"all is well\n{line}\nbye")
        assert answer.unknown is not None, line
        assert answer.unknown.evidence[0].text == (line,)


def test_a_log_without_failure_is_healthy() -> None:
    for line in (
        "DeprecationWarning: x",
        "UserWarning: ERROR_ON_X is set",
        "exit code 0: healthy",
        "errors: 0",
        "tests FAILED: 0",
        "my.module.DeprecationWarning: gone soon",
        "exit 0",
        "step:3 - val/error:0.2",
        "INFO 01-02 03:04:05 [core.py:3] log level ERROR= off",
        "  File handles: 12",
        "StopIteration handling enabled",
        "error rate: 0.12",
        "Log level set to ERROR",
        "fatal: not a git repository (or any of the parent directories): .git",
        f"Exception ignored in: <function Pool.__del__ at 0x7f>\n{TRACE}OSError: [Errno 9] Bad file descriptor",
    ):
        ids, answer = ranked(INDEX, line)
        assert (ids, answer.unknown) == ([], None), line
