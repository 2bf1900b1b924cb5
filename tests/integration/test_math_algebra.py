"""Judging real answers with algebra processes behind the comparison: what is slow or dies costs one answer only."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from whale.domains.base import StatelessEpisode
from whale.domains.math import MathDomain
from whale.domains.math.algebra import AlgebraError, AlgebraPool, AlgebraTimeout
from whale.domains.math.judging import Judge
from whale.errors import ConfigError
from whale.types import Outcome, Task, Verdict

pytest.importorskip("math_verify")

TOWER = "\\boxed{9^{9^{9^{9}}}}"
COT = ("\\frac{\\cos x}{\\sin x}", "\\cot x")


def boxed(text: str) -> str:
    return f"Hence \\boxed{{{text}}}."


def judge_all(pairs: Sequence[tuple[str, str]], mode: str = "strict", **options: float) -> list[Verdict]:
    """Verdicts of (answer, reference), all at once."""

    async def main() -> list[Verdict]:
        judge = Judge(mode, formulas=True, **options)  # type: ignore[arg-type]
        try:
            return await asyncio.gather(*[judge(answer, reference) for answer, reference in pairs])
        finally:
            judge.close()

    return asyncio.run(main())


BY_ALGEBRA = [
    ("\\frac{\\cos x}{\\sin x}", "\\cot x", 1),
    ("\\tan x", "\\cot x", 0),
    ("(1+i)^2", "2i", 1),
    ("(1-i)^2", "2i", 0),
    ("\\frac{1}{5} - \\frac{2}{5}i", "\\frac{1-2i}{5}", 1),
    ("1 - \\cos^2 t", "\\sin^2 t", 1),
    ("3\\sin x - 4\\sin^3 x", "\\sin 3x", 1),
    ("\\frac{\\sqrt6+\\sqrt2}{2}", "2\\cos 15^{\\circ}", 1),
    ("\\frac{\\sqrt6-\\sqrt2}{2}", "2\\cos 15^{\\circ}", 0),
    ("\\log 2007 - \\log 2006", "\\log\\left(\\frac{2007}{2006}\\right)", 1),
    ("y - \\sin x = 0", "y = \\sin x", 1),
    ("\\sin x = \\sin x", "y = \\sin x", 0),
    ("0 = 0", "y = \\sin x", 0),
    ("R \\sin t", "r \\sin t", 0),
    ("e^{i\\pi}", "-1", 1),
    ("\\cot x, (1+i)^2", "2i, \\frac{\\cos x}{\\sin x}", 1),
    ("(\\cot x, 2i)", "(2i, \\cot x)", 0),
    ("\\begin{pmatrix} \\cos x \\\\ 1 \\end{pmatrix}", "\\begin{pmatrix} \\sin x \\\\ 1 \\end{pmatrix}", 0),
]


@pytest.mark.slow
def test_what_only_algebra_decides() -> None:
    verdicts = judge_all([(boxed(given), gold) for given, gold, _ in BY_ALGEBRA])
    for (given, gold, reward), verdict in zip(BY_ALGEBRA, verdicts, strict=True):
        assert (verdict.reward, verdict.outcome) == (reward, Outcome.SCORED), (given, gold)


@pytest.mark.slow
def test_an_endless_formula_costs_its_author_only() -> None:
    ordinary = [(boxed(f"\\frac{{{n}}}{{2}}"), str(n / 2)) for n in range(100)]
    ordinary += [(boxed(f"\\sin^2 x + {n}\\cos x"), f"{n}\\cos x + \\sin^2 x") for n in range(100)]
    verdicts = judge_all([(TOWER, "5"), *ordinary], seconds=2)
    assert verdicts[0] == Verdict(0.0, "verifier_timeout", Outcome.VERIFIER_TIMEOUT)
    assert [verdict.reward for verdict in verdicts[1:]] == [1.0] * 200


@pytest.mark.slow
def test_the_process_of_an_endless_formula_is_killed_and_replaced() -> None:
    async def main() -> None:
        pool = AlgebraPool(workers=1, seconds=1)
        with pytest.raises(AlgebraTimeout):
            await pool.decide([("9^{9^{9^{9}}}", "5")])
        assert not pool._idle
        assert await pool.decide([COT]) == {COT: True}
        assert pool.started == 2
        process = pool._idle[0].process
        pool.close()
        pool.close()
        assert process.returncode == -signal.SIGKILL
        assert await pool.decide([COT]) == {COT: True}  # starts again when asked
        pool.close()

    asyncio.run(main())


@pytest.mark.slow
def test_a_process_that_dies_is_tried_again_once() -> None:
    async def main() -> None:
        pool = AlgebraPool(workers=1, seconds=5)
        await pool.decide([COT])
        worker = pool._idle[0]
        worker.process.kill()  # while it is idle: noticed before it is asked
        worker.process.wait()
        assert await pool.decide([COT]) == {COT: True}
        os.kill(pool._idle[0].process.pid, signal.SIGSTOP)
        asked = asyncio.create_task(pool.decide([COT]))
        await asyncio.sleep(0.2)
        (first,) = pool.busy
        os.kill(first, signal.SIGSEGV)
        os.kill(first, signal.SIGCONT)
        assert await asked == {COT: True}
        assert pool.started == 3
        pool.close()

    asyncio.run(main())


@pytest.mark.slow
def test_a_process_that_dies_twice_is_a_fault_of_the_verifier(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "dies.py"
    program.write_text(
        "import os, socket, sys\n"
        "s = socket.socket(fileno=int(sys.argv[1]))\n"
        "s.sendall(b'{\"ready\": true}\\n')\n"
        "s.recv(1000)\n"
        "os._exit(3)\n"
    )
    monkeypatch.setattr("whale.domains.math.algebra._PROGRAM", program)
    (verdict,) = judge_all([(boxed("\\tan x"), "\\cot x")])
    assert verdict == Verdict(None, "verifier_error", Outcome.VERIFIER_ERROR)
    program.write_text("raise SystemExit(1)\n")

    async def main() -> None:
        with pytest.raises(AlgebraError, match="ended at once"):
            await AlgebraPool().decide([COT])

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="the kernel does not show limits")
def test_memory_and_processor_time_are_bounded() -> None:
    async def main() -> None:
        pool = AlgebraPool(workers=1, seconds=3, memory_mb=1024)
        assert await pool.decide([COT]) == {COT: True}
        limits = Path(f"/proc/{pool._idle[0].process.pid}/limits").read_text()
        assert f"Max address space         {1024 << 20}" in limits
        assert "Max cpu time              unlimited" not in limits
        pool.close()

    asyncio.run(main())


@pytest.mark.slow
def test_from_another_thread_and_loop_after_loop() -> None:
    rewards: list[float | None] = []
    domain = MathDomain(formulas=True)
    task = Task("t", {"problem": "?"}, "\\cot x")

    def work() -> None:
        for _ in range(2):
            rewards.append(asyncio.run(score(domain.open(task), boxed(COT[0]))).reward)

    async def score(episode: StatelessEpisode, answer: str) -> Verdict:
        return await episode.score(answer)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    work()
    assert rewards == [1.0] * 4
    asyncio.run(domain.close())


def test_numbers_start_no_process() -> None:
    async def main() -> None:
        judge = Judge("strict", formulas=True)
        assert (await judge(boxed("\\frac{1}{3}"), "1/3")).reward == 1
        assert (await judge(boxed("3\\sqrt{13}"), "\\sqrt{117}")).reward == 1
        assert (await judge(boxed("x"), "5")) == Verdict(0.0, "not_a_number")
        assert (await judge(boxed("\\sqrt{2}"), "5")) == Verdict(0.0, "wrong")
        assert judge._pool is not None
        assert judge._pool.started == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("mode", "answer", "gold", "reward", "reason"),
    [
        ("strict", "It is 5.", "5", 0, "no_box"),
        ("strict", "\\boxed{8}. Wait, recheck: \\boxed{9}", "9", 1, "right"),
        ("strict", "\\boxed{7", "7", 0, "unclosed_box"),
        ("strict", "\\boxed{}", "7", 0, "empty_box"),
        ("strict", "\\boxed{Traceback (most recent call last): x}", "7", 0, "code_failed"),
        ("flexible", "It is 5 or so.", "5", 1, "right"),
        ("flexible", "The answer is 5, because 2 + 3.", "5", 0, "wrong"),
        ("lenient", "The answer is 5. I added 2 and 3.", "5", 1, "right"),
        ("lenient", "Answer: **\\frac{1}{2}** of 7", "0.5", 1, "right"),
        ("lenient", "The final answer is $x = 5$ in this case", "5", 1, "right"),
        ("lenient", "so\n#### 1,200", "1200", 1, "right"),
        ("lenient", "The answer is 4. No: the answer is 5.", "5", 1, "right"),
        ("lenient", "The answer is 5. \\boxed{4}", "5", 0, "wrong"),
        ("lenient", "2 and 3 make 5", "5", 1, "right"),
        ("lenient", "none", "5", 0, "no_box"),
    ],
)
def test_modes(mode: str, answer: str, gold: str, reward: float, reason: str) -> None:
    (verdict,) = judge_all([(answer, gold)], mode)
    assert (verdict.reward, verdict.reason) == (reward, reason)
    if mode == "lenient" and "frac" not in answer and "x =" not in answer:  # the same without formulas
        plain = asyncio.run(_plain(mode, answer, gold))
        assert plain.reward == reward


async def _plain(mode: str, answer: str, gold: str) -> Verdict:
    return await Judge(mode, formulas=False)(answer, gold)


@pytest.mark.parametrize("gold", ["", " ", None])
def test_an_empty_reference_is_a_data_fault(gold: str | None) -> None:
    (verdict,) = judge_all([(boxed(""), gold)])  # type: ignore[list-item]
    assert (verdict.reward, verdict.outcome) == (None, Outcome.UNSCORABLE)


def test_bad_options() -> None:
    with pytest.raises(ConfigError, match="formula_seconds"):
        MathDomain(formula_seconds=0)
    with pytest.raises(ConfigError, match="formula_memory_mb"):
        MathDomain(formula_memory_mb=64)


DATA = Path(os.environ.get("WHALE_TEST_DATA", "/nonexistent")) / "math"


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="WHALE_TEST_DATA is not set")
@pytest.mark.parametrize("file", ["dapo_math_17k.jsonl.gz", "math_500.jsonl", "math_train_8k.jsonl.gz"])
def test_real_references_are_right_and_junk_is_not(file: str) -> None:
    opener = gzip.open if file.endswith(".gz") else open
    with opener(DATA / file, "rt", encoding="utf-8") as stream:
        references = [reference for line in stream if (reference := json.loads(line)["answer"])]
    domain = MathDomain(formulas=True)
    tasks = [Task(str(i), {"problem": "?"}, reference) for i, reference in enumerate(references)]

    async def main() -> None:
        for task in tasks:
            assert (await domain.submit(domain.open(task), domain.gold(task))).reward == 1, task.reference
        for task in tasks[:60]:
            for answer in domain.junk(task):
                verdict = await domain.submit(domain.open(task), answer)
                assert verdict.reward == 0, (task.reference, answer, verdict)
        await domain.close()

    asyncio.run(main())
