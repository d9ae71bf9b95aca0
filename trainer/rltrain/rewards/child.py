"""The process that computes rewards: started by `rltrain.rewards.process`, ended by it, or by its death."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
from types import FrameType
from typing import Any

from rltrain.core.errors import UserError
from rltrain.rewards.custom import BadReward
from rltrain.rewards.request import Failure, RewardRequest, RewardResult
from rltrain.rewards.scorer import Scorer
from rltrain.rewards.spec import ScorerSpec
from rltrain.rewards.wire import Inbox, Progress, pack

F_SETSIG = 10  # Linux; the fcntl module does not name it
READ_BYTES = 1 << 20


def main(channel: int, progress: int, lifeline: int) -> None:
    """Serve until the pool closes the channel. The numbers are file descriptors.

    CHANNEL: the socket of requests and replies. PROGRESS: memory that holds what is being worked on. LIFELINE: the
    reading end of a pipe whose other end only the pool holds.
    """
    die_with_pool(lifeline)
    outlive_signals()
    with socket.socket(fileno=channel) as connection:
        serve(connection, Progress(progress))
    # A function may have left threads that never end: do not wait for them.
    os._exit(0)


def outlive_signals() -> None:
    """Leave what asks a run to stop to the pool's process, which ends this one; Slurm signals every process of a job.

    By handlers, and not in forks: what a user's function starts is to die of its `terminate`.
    """
    before = {number: signal.signal(number, _pass) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    os.register_at_fork(after_in_child=lambda: [signal.signal(*pair) for pair in before.items()])


def _pass(_number: int, _frame: FrameType | None) -> None:
    """Nothing."""


def die_with_pool(lifeline: int) -> None:
    """Have the kernel kill this process group when the pool's process ends, however it ends.

    The pipe's closing raises a signal of our choice to the group; no thread of ours must run for that, so that a
    function that hangs in C code dies too (fcntl(2), F_SETSIG).
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    os.set_blocking(lifeline, False)
    try:
        gone = os.read(lifeline, 1) == b""
    except BlockingIOError:  # the other end is open, as it should be
        gone = False
    if gone:
        os._exit(0)


def serve(connection: socket.socket, progress: Progress) -> None:
    """Answer the first message, a ScorerSpec, by None or words of what is wrong; then lists of requests by results."""
    inbox = Inbox()
    spec = receive(connection, inbox)
    if not isinstance(spec, ScorerSpec):
        return
    try:
        scorer = Scorer(spec)
    except UserError as error:
        connection.sendall(pack(str(error)))
        return
    connection.sendall(pack(None))
    while (requests := receive(connection, inbox)) is not None:
        connection.sendall(pack(score_all(scorer, requests, len(spec.part_names), progress)))


def receive(connection: socket.socket, inbox: Inbox) -> Any:
    """The next message; None at the end."""
    while (message := inbox.take()) is None:
        data = connection.recv(READ_BYTES)
        if not data:
            return None
        inbox.add(data)
    return message[0]


def score_all(
    scorer: Scorer, requests: list[RewardRequest], num_parts: int, progress: Progress
) -> list[RewardResult | Failure]:
    """The results in order, up to the first sample that fails."""
    results: list[RewardResult | Failure] = []
    me = os.getpid()
    for index, request in enumerate(requests):

        def on_part(part: int, first: int = 1 + index * num_parts) -> None:
            progress.value = first + part

        try:
            results.append(scorer.score(request, on_part))
        except BadReward as error:
            results.append(Failure(str(error)))
        if os.getpid() != me:  # a function forked, and its copy came back from the call as well
            os._exit(0)
        if isinstance(results[-1], Failure):
            break
    return results
