"""run_rollouts with real harness processes and scripted engines: waves, limits, faults and their owners."""

import asyncio
from dataclasses import replace
from typing import ClassVar

import pytest

from whale.archive import make_candidate
from whale.errors import EngineError, SandboxError, StaleWeightsError
from whale.rollout import Attempt, Listener, Setting, run_rollouts
from whale.scripted import ScriptedEngine
from whale.testing import ToyDomain
from whale.testing.toy import H0
from whale.types import Limits, Outcome, Sampling, Task, ToolSpec

TASKS = [Task(f"t{i}", {"problem": f"{i} + 1 ="}, str(i + 1)) for i in range(64)]


def setting(engine=None, domain=None, **changes):
    base = Setting(engine or ScriptedEngine(["1"]), domain or ToyDomain(), Sampling(), Limits(seconds=2.0), "contained")
    return replace(base, **changes)


def attempts_of(harness, count):
    return [Attempt(harness, task, 0, i) for i, task in enumerate(TASKS[:count])]


def roll(source, count=1, **changes):
    return run_rollouts(setting(**changes), attempts_of(make_candidate(1, source), count), 0)


class Counting(ScriptedEngine):
    """Remembers the waves it was given."""

    def __init__(self, reply=lambda context, seed: "1"):
        super().__init__(reply)
        self.waves = []

    def generate(self, requests, sampling):
        self.waves.append([bytes(i for i in r.context if i < 256).decode() for r in requests])
        return super().generate(requests, sampling)


TWO_TURNS = H0.replace(
    "return reply.text",
    "messages = [{'role': 'user', 'content': task.problem}, reply.message, {'role': 'user', 'content': 'again'}]\n"
    "        second = await session.chat(messages)\n        return reply.text + second.text",
)
GATHER = H0.replace("class Harness", "import asyncio\n\n\nclass Harness").replace(
    "return reply.text",
    "m = [{'role': 'user', 'content': task.problem}]\n"
    "        more = await asyncio.gather(*(session.chat(m) for _ in range(3)))\n"
    "        return ''.join(r.text for r in more)",
)


def test_calls_of_live_rollouts_are_answered_together_in_task_order():
    engine = Counting()
    roll(TWO_TURNS, 20, engine=engine)
    assert [len(wave) for wave in engine.waves] == [20, 20]
    assert engine.waves[0] == [f"user: {task.inputs['problem']}\nassistant: " for task in TASKS[:20]]


def test_waves_do_not_depend_on_timing():
    def waves():
        engine = Counting()
        roll(TWO_TURNS, 30, engine=engine, concurrent=7)
        return engine.waves

    first = waves()
    assert first == waves()
    assert max(map(len, first)) == 7
    assert sum(map(len, first)) == 60


def test_calls_made_together_share_a_wave():
    engine = Counting()
    rollouts = roll(GATHER, 8, engine=engine)
    assert [len(wave) for wave in engine.waves] == [8, 24]
    assert all(r.turns == 4 for r in rollouts)


def test_a_reply_passed_back_is_spliced_by_its_ids():
    """The next context is the last one, plus what was sampled (end token too), plus the new turn."""
    rollout = roll(TWO_TURNS)[0]
    first, second = rollout.calls
    assert second.context[: len(b"user: 0 + 1 =\nassistant: ")] == tuple(b"user: 0 + 1 =\nassistant: ")
    assert first.sampled == (49, 256)
    spliced = tuple(b"assistant: ") + first.sampled
    assert any(second.context[i : i + len(spliced)] == spliced for i in range(len(second.context)))


def test_a_changed_reply_is_new_context():
    source = TWO_TURNS.replace("reply.message,", "{**reply.message, 'content': 'forged'},")
    second = roll(source)[0].calls[1]
    assert 256 not in second.context
    assert b"forged" in bytes(second.context)


@pytest.mark.parametrize(
    ("limits", "outcome"),
    [
        ({"turns": 1}, Outcome.LIMIT),
        ({"assistant_tokens": 2}, Outcome.LIMIT),
        ({"context_tokens": 5}, Outcome.LIMIT),
        ({}, Outcome.SCORED),
    ],
)
def test_limits_are_the_hosts(limits, outcome):
    rollout = roll(TWO_TURNS, limits=Limits(**limits))[0]
    assert rollout.outcome == outcome
    assert rollout.reward == 0.0


def test_a_caught_limit_still_allows_an_answer():
    source = TWO_TURNS.replace(
        "second = await session.chat(messages)", "second = await self.more(session, messages)"
    ) + (
        "\n    async def more(self, session, messages):\n        try:\n            return await session.chat(messages)\n"  # noqa: E501
        "        except Exception:\n            return type('R', (), {'text': ''})\n"
    )
    rollout = roll(source, limits=Limits(turns=1))[0]
    assert (rollout.outcome, rollout.reward) == (Outcome.SCORED, 1.0)


def test_call_tokens_are_clamped_and_the_cut_is_seen():
    rollout = roll(
        H0.replace("}])", "}], max_tokens=1000)"), engine=ScriptedEngine(["a long reply"]), limits=Limits(call_tokens=4)
    )[0]
    assert rollout.truncated
    assert rollout.sampled_tokens == 4


def test_harnesses_share_waves_and_a_file_that_does_not_load_harms_nobody():
    """Two files with a class of the same name, in one block."""
    one, two = (make_candidate(i, H0.replace("return reply.text", f"return '{i}'")) for i in (1, 2))
    broken = make_candidate(3, H0 + "\nraise KeyError('at import')\n")
    engine = Counting()
    attempts = [*attempts_of(one, 2), *attempts_of(broken, 2), *attempts_of(two, 2)]
    rollouts = run_rollouts(setting(engine), attempts, 0)
    assert [r.answer for r in rollouts] == ["1", "1", None, None, "2", "2"]
    assert [r.reward for r in rollouts] == [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    assert rollouts[2].outcome == Outcome.HARNESS_ERROR
    assert "at import" in rollouts[2].detail
    assert [len(wave) for wave in engine.waves] == [4]


def test_one_crash_leaves_the_others_alone():
    """63 scored, one error, nobody waits for the dead."""
    source = H0.replace(
        "return reply.text",
        "if task.problem.startswith('17 '):\n            raise KeyError('17')\n        return reply.text",
    )
    rollouts = roll(source, 64)
    assert [r.task_id for r in rollouts if r.outcome == Outcome.HARNESS_ERROR] == ["t17"]
    assert sum(r.outcome == Outcome.SCORED for r in rollouts) == 63
    crashed = rollouts[17]
    assert crashed.reward == 0.0
    assert "KeyError" in crashed.detail


def test_empty_answer_is_no_answer():
    rollout = roll(H0.replace("return reply.text", "return '  '"))[0]
    assert (rollout.outcome, rollout.reward) == (Outcome.NO_ANSWER, 0.0)


class Flaky(ScriptedEngine):
    """Fails the first ``fail`` waves."""

    def __init__(self, fail):
        super().__init__(["1"])
        self.fail = fail

    def generate(self, requests, sampling):
        self.fail -= 1
        if self.fail >= 0:
            raise EngineError("device lost")
        return super().generate(requests, sampling)


class Starts(Listener):
    def __init__(self):
        self.count = 0
        self.done = []

    def started(self, count):
        self.count += count

    def finished(self, order, rollout):
        self.done.append(order)


def test_infrastructure_faults_are_retried_then_unknown():
    """Never a wrong answer."""
    attempts = attempts_of(make_candidate(1, H0), 4)
    starts = Starts()
    rollouts = run_rollouts(setting(Flaky(1)), attempts, 0, starts)
    assert [r.outcome for r in rollouts] == [Outcome.SCORED] * 4
    assert starts.count == 8, "the retry is paid for and counted"
    assert sorted(starts.done) == [0, 1, 2, 3], "each is reported once"
    rollouts = run_rollouts(setting(Flaky(2)), attempts, 0)
    assert [(r.outcome, r.reward) for r in rollouts] == [(Outcome.INFRA_ERROR, None)] * 4
    assert "device lost" in rollouts[0].detail


class Forgetful(ScriptedEngine):
    """Answers every second request without what it sampled, as a server does that parses replies and drops ids."""

    def generate(self, requests, sampling):
        completions = super().generate(requests, sampling)
        return [replace(c, ids=(), logprobs=()) if n % 2 else c for n, c in enumerate(completions)]


def test_a_reply_without_ids_is_neither_wrong_nor_trained_on():
    rollouts = run_rollouts(setting(Forgetful(["1"]), retries=0), attempts_of(make_candidate(1, H0), 4), 0)
    assert [r.outcome for r in rollouts] == [Outcome.SCORED, Outcome.NO_IDS] * 2
    lost = rollouts[1]
    assert (lost.reward, lost.calls) == (None, ())
    assert "0 ids" in lost.detail


def test_a_harness_cannot_choose_the_model():
    """Which policy answers is the run's to say: the contract has no place for a model's name."""
    rollout = roll(H0.replace("}])", "}], model='base')"))[0]
    assert (rollout.outcome, rollout.calls) == (Outcome.HARNESS_ERROR, ())
    assert "model" in rollout.detail


def test_stale_weights_stop_the_block():
    with pytest.raises(StaleWeightsError, match="asked for policy 0, the engine sampled from 3"):
        roll(H0, engine=ScriptedEngine(["1"], version=3))


class WithTools(ToyDomain):
    """The toy domain with three tools: one works, one refuses its arguments, one is out of order."""

    tool_specs: ClassVar = {name: ToolSpec(name, name) for name in ("good", "picky", "broken")}

    def open(self, task):
        episode = super().open(task)

        async def good(text: str) -> str:
            await asyncio.sleep(0.01)
            return text.upper()

        async def picky(text: str) -> str:
            raise ValueError("text is too short")

        async def broken(text: str) -> str:
            raise SandboxError("no interpreter")

        return replace(episode, tools={"good": good, "picky": picky, "broken": broken})


def with_tool(call):
    return H0.replace("return reply.text", f"return await session.tools.{call}")


def test_tools_answer_and_stand_in_the_trace():
    rollout = roll(with_tool("good(text='abc')"), domain=WithTools())[0]
    assert rollout.answer == "ABC"
    assert (rollout.tools[0].name, rollout.tools[0].result, rollout.tools[0].after_call) == ("good", "ABC", 1)


@pytest.mark.parametrize("call", ["picky(text='a')", "good(wrong=1)", "none(text='a')"])
def test_faults_provoked_by_arguments_are_observations(call):
    rollout = roll(with_tool(call), domain=WithTools())[0]
    assert rollout.outcome == Outcome.SCORED
    assert rollout.answer.startswith("Error:")


def test_a_broken_tool_is_infrastructure():
    rollout = roll(with_tool("broken(text='a')"), domain=WithTools(), retries=0)[0]
    assert (rollout.outcome, rollout.reward) == (Outcome.TOOL_INFRA_ERROR, None)


def test_a_broken_verifier_is_no_wrong_answer():
    class Broken(ToyDomain):
        def open(self, task):
            return replace(super().open(task), judge=lambda answer: 1 / 0)

    rollout = roll(H0, domain=Broken(), retries=0)[0]
    assert (rollout.outcome, rollout.reward) == (Outcome.VERIFIER_ERROR, None)


def test_unknown_tool_schema_is_the_harnesss_fault():
    rollout = roll(H0.replace("}])", "}], tools=['nope'])"), retries=0)[0]
    assert rollout.outcome == Outcome.HARNESS_ERROR
    assert rollout.reward == 0.0
