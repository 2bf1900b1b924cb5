"""Runs one program to its end or to its limit, with signs of life, and leaves none of its processes behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from whale.errors import ProposerError

MAX_LOG_BYTES = 256 << 20
"""A program that writes more than this to its standard output or error is ended as at its time limit."""

_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Run:
    """How a program ended. code: its exit status (negative: a signal). timed_out: ended by us at the time limit.
    flooded: ended by us because of what it wrote."""

    code: int
    seconds: float
    timed_out: bool = False
    flooded: bool = False


def run_program(
    argv: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    text: str,
    log: Path,
    seconds: float,
    heartbeat: float,
    beat: Callable[[float], None],
) -> Run:
    """Run ``argv`` in ``folder`` with ``text`` on its standard input.

    log: standard output goes there, standard error beside it with the ending ``.err``. seconds: after so many it is
    killed with its process group and all descendants. beat: called every ``heartbeat`` seconds with the seconds so
    far. Raises ProposerError if the program cannot be started.
    """
    began = time.monotonic()
    errors = log.with_suffix(".err")
    given = log.with_suffix(".in")
    given.write_text(text, encoding="utf-8")
    with given.open("rb") as source, log.open("wb") as output, errors.open("wb") as complaints:
        try:
            process = subprocess.Popen(
                argv, cwd=folder, env=dict(environment), stdin=source, stdout=output, stderr=complaints,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise ProposerError(f"search.proposer: {argv[0]} could not be started: {error}") from None
        try:
            timed_out, flooded = _watch(process, began, seconds, heartbeat, beat, (log, errors))
        finally:
            end(process)
            given.unlink(missing_ok=True)
    return Run(process.returncode, round(time.monotonic() - began, 3), timed_out, flooded)


def _watch(
    process: subprocess.Popen[bytes],
    began: float,
    seconds: float,
    heartbeat: float,
    beat: Callable[[float], None],
    logs: Sequence[Path],
) -> tuple[bool, bool]:
    next_beat = began + heartbeat
    while True:
        left = began + seconds - time.monotonic()
        if left <= 0:
            return True, False
        with suppress(subprocess.TimeoutExpired):
            process.wait(min(left, _POLL_SECONDS))
            return False, False
        if any(path.stat().st_size > MAX_LOG_BYTES for path in logs):
            return False, True
        if time.monotonic() >= next_beat:
            next_beat += heartbeat
            beat(time.monotonic() - began)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a program: its group, and descendants that made a group of their own. Then reap it."""
    descendants: list[psutil.Process] = []
    with suppress(psutil.Error):
        descendants = psutil.Process(process.pid).children(recursive=True)
    # A group lives on while any of its processes does, so its number cannot have been given to others.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for child in descendants:
        with suppress(psutil.Error):
            child.kill()
    process.wait()
