"""One candidate and its rollouts: the contract, the faults of a harness, the faults of the host and the sandbox."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from test_harness_support import LEVELS, Handler, left_of, processes, reply, run_once, source, with_process

import whale
from whale.errors import EngineError, HarnessError, SandboxError
from whale.harness import LimitReached
from whale.harness.host import HarnessProcess, HarnessResult
from whale.harness.validate import check_source
from whale.types import Limits, Outcome

ONE_CHAT = source("return (await session.chat([{'role': 'user', 'content': task.problem}])).text")


# ---- the contract --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [*LEVELS, "off"])
def test_a_harness_asks_and_answers(level: str) -> None:
    handler = Handler()
    text = source("""
        ask = [{"role": "user", "content": task["problem"]}]
        first = await session.chat(ask, tools=["search", {"type": "function"}], max_tokens=5, stop="</a>")
        seen = await session.tools.search(query=first.text, k=1)
        second = await session.chat([*ask, first.message, {"role": "user", "content": seen}])
        session.mark(second)
        return f"{second.text} {second.usage['sampled']} {session.limits['turns']}"
    """)
    result = run_once(text, level, handler)
    assert result == HarnessResult(None, "1:search[('k', 1), ('query', '0:1 + 1')] 3 16")
    assert handler.requests[0].tools == ["search", {"type": "function"}]
    assert (handler.requests[0].max_tokens, handler.requests[0].stop) == (5, ["</a>"])
    assert handler.requests[1].messages[1] == {"role": "assistant", "content": "0:1 + 1", "reply": 0}
    assert handler.requests[1].tools is None
    assert handler.marks == [1]


def test_calls_overlap_and_replies_find_their_request() -> None:
    class Backwards(Handler):
        async def chat(self, request: Any) -> dict[str, Any]:
            body = await super().chat(request)
            await asyncio.sleep(0.05 * (5 - body["call"]))
            return body

    text = source("""
        import asyncio
        asked = [session.chat([{"role": "user", "content": str(i)}]) for i in range(5)]
        return " ".join(reply.text for reply in await asyncio.gather(*asked))
    """)
    start = time.monotonic()
    assert run_once(text, handler=Backwards()).answer == "0:0 1:1 2:2 3:3 4:4"
    assert time.monotonic() - start < 2


def test_randomness_comes_from_the_seed_and_sets_keep_their_order() -> None:
    text = source("import random\nreturn f\"{random.random()} {list({'a', 'b', 'c', 'd'})}\"")

    async def use(process: HarnessProcess) -> list[str | None]:
        return [(await process.run({}, seed, Handler())).answer for seed in (1, 1, 2)]

    first, second = with_process(text, use), with_process(text, use)
    assert first == second
    assert first[0] == first[1] != first[2]


def test_prints_become_a_capped_log() -> None:
    result = run_once(source("print('hello')\nprint('x' * 10**6)\nreturn 'a'"))
    assert result.answer == "a"
    assert result.log.startswith("hello\nxxx")
    assert len(result.log) == 4096


def test_text_of_all_kinds_arrives() -> None:
    class Odd(Handler):
        async def chat(self, request: Any) -> dict[str, Any]:
            assert request.messages[0]["content"] == "é\n\0 😀 ?"
            return reply(0, "ü \ud800 \u2028 \n")

    text = source("return (await session.chat([{'role': 'user', 'content': 'é\\n\\0 😀 \\ud800'}])).text")
    assert run_once(text, handler=Odd()).answer == "ü ? \u2028 \n"


def test_a_large_message_passes_and_a_larger_one_does_not() -> None:
    text = source("return (await session.chat([{'role': 'user', 'content': 'x' * task.size}])).text")
    answer = run_once(text, inputs={"size": 900_000}).answer
    assert answer is not None
    assert len(answer) == 900_002
    result = run_once(text, inputs={"size": 1_100_000})
    assert result.outcome is Outcome.HARNESS_ERROR
    assert "over 1048576 bytes" in result.detail


def test_dataclasses_and_annotations_work_in_a_harness() -> None:
    top = """
        from dataclasses import dataclass, field

        @dataclass
        class Memory:
            notes: list[str] = field(default_factory=list)
    """
    assert run_once(source("m = Memory()\nm.notes.append('n')\nreturn m.notes[0]", top)).answer == "n"


def test_the_documented_example_is_a_harness_and_runs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "harness.md").read_text()
    example = text.split("```python\n")[1].split("```")[0]
    check_source(example)

    class Calls(Handler):
        async def chat(self, request: Any) -> dict[str, Any]:
            call = len(self.requests)
            self.requests.append(request)
            if request.messages[-1]["role"] == "user":
                wish = {"name": "calculator", "arguments": {"expression": "1 + 1"}, "id": "", "error": ""}
                return reply(call, "", tool_calls=[wish])
            return reply(call, "It is \\boxed{2}")

    handler = Calls()
    assert run_once(example, handler=handler).answer == "\\boxed{2}"
    assert handler.tools == [("calculator", {"expression": "1 + 1"})] * 3
    assert sorted(handler.marks) == [3, 4, 5]


# ---- files that do not load ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("class Harness(:", "SyntaxError"),
        ("x = 1\nraise ValueError('no')\n", r"line 2, in <module>: raise ValueError\('no'\)\nValueError: no"),
        ("import numpy\n", "No module named 'numpy'"),
        ("import sys\nsys.exit()\n", "SystemExit"),
        ("x = 1\n", "no class Harness"),
        ("Harness = 3\n", "no class Harness"),
        ("class Harness:\n    pass\n", "no method"),
        ("class Harness:\n    def run(self, task, session):\n        return ''\n", "async def run"),
    ],
)
def test_a_file_that_does_not_load_is_a_harness_error(text: str, complaint: str) -> None:
    async def never(process: HarnessProcess) -> None:
        raise AssertionError("it started")

    with pytest.raises(HarnessError, match=complaint):
        with_process(text, never)


@pytest.mark.slow
def test_an_endless_import_is_a_harness_error() -> None:
    async def main() -> None:
        async with HarnessProcess("while True: pass", isolation="contained", limits=Limits(), load_seconds=1):
            pass

    start = time.monotonic()
    with pytest.raises(HarnessError, match="did not finish loading within 1 s"):
        asyncio.run(main())
    assert time.monotonic() - start < 10


# ---- faults of the harness -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "outcome", "detail"),
    [
        ("return 3", Outcome.HARNESS_ERROR, "returned int, it must return str"),
        ("pass", Outcome.HARNESS_ERROR, "returned NoneType"),
        ("return 1 / 0", Outcome.HARNESS_ERROR, "in run: return 1 / 0\nZeroDivisionError: division by zero"),
        ("return task.answer", Outcome.HARNESS_ERROR, "no input 'answer'; it has ['problem']"),
        ("import sys; sys.exit(0)", Outcome.HARNESS_ERROR, "SystemExit"),
        ("import os; os._exit(0)", Outcome.HARNESS_ERROR, "ended without an answer (exit code 0)"),
        ("import ctypes; ctypes.string_at(0)", Outcome.HARNESS_ERROR, "signal SIGSEGV"),
        ("x = 'a' * (4 << 30); return x", Outcome.HARNESS_ERROR, "MemoryError"),
        ("def f(n): return f(n) + 1\nreturn f(0)", Outcome.HARNESS_ERROR, "RecursionError"),
        ("await session.chat([{'role': 'user', 'content': {1, 2}}])", Outcome.HARNESS_ERROR, "TypeError"),
        ("await session.tools.look(at={1, 2})", Outcome.HARNESS_ERROR, "TypeError"),
        ("await session.chat([])", Outcome.HARNESS_ERROR, "messages must be"),
        ("await session.chat([{'role': 'user'}], max_tokens=0)", Outcome.HARNESS_ERROR, "max_tokens is 0"),
        ("await session.chat([{'role': 'user'}], stop=[3])", Outcome.HARNESS_ERROR, "stop must be"),
    ],
)
def test_faults_of_the_harness_are_its_outcome(body: str, outcome: Outcome, detail: str) -> None:
    result = run_once(source(body))
    assert result.outcome is outcome
    assert result.answer is None
    assert detail in result.detail
    assert "/" not in result.detail.replace("1 / 0", "").replace("n/a", ""), "no path of the machine"


@pytest.mark.parametrize("level", LEVELS)
def test_a_memory_bomb_hits_its_own_limit(level: str) -> None:
    result = run_once(source("kept = []\nwhile True: kept.append(bytearray(1 << 20))"), level, memory_mb=256)
    assert result.outcome is Outcome.HARNESS_ERROR
    assert "MemoryError" in result.detail


@pytest.mark.slow
@pytest.mark.parametrize(
    "body", ["while True: pass", "import time; time.sleep(3600)", "await __import__('asyncio').sleep(9999)"]
)
@pytest.mark.parametrize("level", LEVELS)
def test_loops_and_sleeps_are_timed_out(level: str, body: str) -> None:
    start = time.monotonic()
    result = run_once(source(body), level, seconds=0.5)
    assert result.outcome is Outcome.HARNESS_TIMEOUT
    assert "over 0.5 s of its own" in result.detail
    assert time.monotonic() - start < 8


@pytest.mark.slow
def test_waiting_for_the_host_is_not_own_time() -> None:
    class Slow(Handler):
        async def chat(self, request: Any) -> dict[str, Any]:
            await asyncio.sleep(1.0)
            return await super().chat(request)

        async def tool(self, name: str, arguments: dict[str, Any]) -> str:
            time.sleep(1.0)  # a host that does not even look
            return "seen"

    text = source("""
        import time
        time.sleep(0.1)
        await session.chat([{"role": "user", "content": "a"}])
        time.sleep(0.1)
        return await session.tools.look()
    """)
    assert run_once(text, handler=Slow(), seconds=0.4).answer == "seen"


def test_limits_can_be_caught_or_not() -> None:
    class Refuses(Handler):
        async def chat(self, request: Any) -> dict[str, Any]:
            raise LimitReached("turns: 16 used of 16")

    ask = "await session.chat([{'role': 'user', 'content': ''}])"
    result = run_once(source(ask), handler=Refuses())
    assert result.outcome is Outcome.LIMIT
    assert "turns: 16 used of 16" in result.detail
    caught = source(f"try:\n    {ask}\nexcept LimitReached as limit:\n    return f'best so far, {{limit}}'")
    assert run_once(caught, handler=Refuses()).answer == "best so far, turns: 16 used of 16"
    grouped = source(f"import asyncio\nasync with asyncio.TaskGroup() as g:\n    g.create_task({ask[6:]})")
    assert run_once(grouped, handler=Refuses()).outcome is Outcome.LIMIT
    endless = source(f"while True:\n    try:\n        {ask}\n    except LimitReached:\n        pass")
    assert run_once(endless, handler=Refuses()).outcome is Outcome.LIMIT


@pytest.mark.parametrize(
    "junk",
    [b"junk\\n", b"[]\\n", b'{"op": "nonsense", "n": 1}\\n', b'{"op": "chat", "n": true}\\n', b'{"op": "mark"}\\n'],
)
def test_malformed_protocol_bytes_end_one_rollout_only(junk: bytes) -> None:
    text = source(f"""
        if task.bad:
            import os
            os.write(3, b'{junk.decode()}')
            await __import__('asyncio').sleep(60)
        return (await session.chat([{{"role": "user", "content": "a"}}])).text
    """)

    async def use(process: HarnessProcess) -> list[HarnessResult]:
        return await asyncio.gather(*[process.run({"bad": i == 1}, i, Handler()) for i in range(4)])

    results = with_process(text, use)
    assert [r.outcome for r in results] == [None, Outcome.HARNESS_ERROR, None, None]
    assert "broken protocol" in results[1].detail


def test_one_crash_among_64() -> None:
    """The block completes with 63 answers and one error."""
    text = source("""
        reply = await session.chat([{"role": "user", "content": str(task.i)}])
        if task.i == 17:
            raise RuntimeError("seventeen")
        return reply.text
    """)

    async def use(process: HarnessProcess) -> list[HarnessResult]:
        return await asyncio.gather(*[process.run({"i": i}, i, Handler()) for i in range(64)])

    results = with_process(text, use)
    assert [r.answer for r in results] == [None if i == 17 else f"0:{i}" for i in range(64)]
    assert results[17].outcome is Outcome.HARNESS_ERROR
    assert "seventeen" in results[17].detail


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_hundreds_of_rollouts_wait_at_the_same_time(level: str) -> None:
    """All of them are alive when the first reply is given, as the wave engine needs it; none is timed out by load."""
    count = 300
    gate = asyncio.Event()
    waiting = 0

    class Wave(Handler):
        async def chat(self, request: Any) -> dict[str, Any]:
            nonlocal waiting
            waiting += 1
            if waiting == count:
                gate.set()
            await gate.wait()
            return await super().chat(request)

    async def use(process: HarnessProcess) -> list[HarnessResult]:
        return await asyncio.gather(*[process.run({"problem": str(i)}, i, Wave()) for i in range(count)])

    results = with_process(ONE_CHAT, use, level, seconds=2.0)
    assert [r.answer for r in results] == [f"0:{i}" for i in range(count)]


# ---- faults of the host and the sandbox ----------------------------------------------------------------------


def test_what_the_handler_raises_comes_out_and_the_rollout_is_over() -> None:
    class Broken(Handler):
        async def chat(self, request: Any) -> dict[str, Any]:
            raise EngineError("the engine is gone")

    async def use(process: HarnessProcess) -> HarnessResult:
        with pytest.raises(EngineError, match="the engine is gone"):
            await process.run({"problem": ""}, 1, Broken())
        return await process.run({"problem": "x"}, 1, Handler())

    assert with_process(ONE_CHAT, use).answer == "0:x"


def test_a_cancelled_run_ends_its_process() -> None:
    marker = source("await __import__('asyncio').sleep(3600)")

    async def use(process: HarnessProcess) -> int:
        task = asyncio.create_task(process.run({}, 1, Handler()))
        await asyncio.sleep(0.3)
        assert len(process._server._forks) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(100):
            if not process._server._forks:
                break
            await asyncio.sleep(0.02)
        return len(process._server._forks)

    assert with_process(marker, use) == 0


@pytest.mark.parametrize("level", LEVELS)
def test_a_dead_sandbox_is_a_fault_of_its_own_and_is_started_again_once(level: str) -> None:
    hang = source("if task.hang:\n    await __import__('asyncio').sleep(3600)\nreturn 'fine'")

    async def use(process: HarnessProcess) -> None:
        for _ in range(2):
            waiting = asyncio.create_task(process.run({"hang": True}, 1, Handler()))
            await asyncio.sleep(0.5)
            assert process._server._sandbox is not None
            os.killpg(process._server._sandbox.process.pid, signal.SIGKILL)
            with pytest.raises(SandboxError):
                await waiting
        with pytest.raises(SandboxError, match="died twice"):
            await process.run({"hang": False}, 1, Handler())

    with_process(hang, use, level)


def test_a_restart_that_works_is_forgiven() -> None:
    async def use(process: HarnessProcess) -> list[str | None]:
        answers = []
        for _ in range(3):
            answers.append((await process.run({"problem": "p"}, 1, Handler())).answer)
            await asyncio.sleep(0.2)  # its proper end is reported
            assert process._server._sandbox is not None
            process._server._sandbox.process.kill()
            await asyncio.sleep(0.2)
        return answers

    assert with_process(ONE_CHAT, use) == ["0:p"] * 3


@pytest.mark.parametrize("level", LEVELS)
def test_nothing_survives_close(level: str) -> None:
    async def use(process: HarnessProcess) -> set[int]:
        running = [asyncio.create_task(process.run({}, i, Handler())) for i in range(5)]
        await asyncio.sleep(0.5)
        alive = processes()
        await process.close()
        outcomes = await asyncio.gather(*running, return_exceptions=True)
        assert all(isinstance(outcome, SandboxError) for outcome in outcomes)
        return alive

    alive = with_process(source("await __import__('asyncio').sleep(3600)"), use, level)
    assert len(alive) >= 6  # the warm parent and five rollouts
    assert not left_of(alive)


@pytest.mark.parametrize("level", LEVELS)
def test_nothing_survives_a_host_that_is_killed(level: str) -> None:
    script = textwrap.dedent("""
        import asyncio, sys
        from whale.harness.host import HarnessProcess
        from whale.types import Limits
        SOURCE = "class Harness:\\n    async def run(self, task, session):\\n        while True: pass"
        async def main():
            async with HarnessProcess(SOURCE, isolation=sys.argv[1], limits=Limits()) as process:
                runs = [asyncio.create_task(process.run({}, i, None)) for i in range(3)]
                await asyncio.sleep(0.5)
                print("running", flush=True)
                await asyncio.gather(*runs)
        asyncio.run(main())
    """)
    path = str(Path(whale.__file__ or "").parents[1])
    argv, environment = [sys.executable, "-c", script, level], {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"running\n"
        alive = processes()
        host.kill()
    assert len(alive) >= 5  # the host, the warm parent, three rollouts
    assert not left_of(alive, 5.0)


def test_no_descriptor_is_left_behind() -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def use(process: HarnessProcess) -> tuple[int, int]:
        await process.run({"problem": ""}, 1, Handler())
        before = count()
        await asyncio.gather(*[process.run({"problem": ""}, i, Handler()) for i in range(50)])
        await asyncio.sleep(0.2)
        return before, count()

    before, after = with_process(ONE_CHAT, use)
    assert before == after
