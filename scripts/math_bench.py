"""How fast and how right the verifier of the math domain is on real answers, and how fast the interpreter is.

    python scripts/math_bench.py DATA [--pairs FILE]

DATA: a folder with ``dapo*``, ``math_500*`` and ``math_train*`` files as ``whale data prepare math`` reads them. Prints
figures, and every reference that does not score 1 against itself; ``--pairs`` writes 200 perturbed answers with their
verdicts as a table to be read. Everything is deterministic but the times.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from whale.domains.data.files import is_data_file, read_rows
from whale.domains.data.source import RowError
from whale.domains.math.checks import junk, near_misses
from whale.domains.math.judging import Judge
from whale.domains.math.prepare import MathPreparer
from whale.types import Task

Perturb = Callable[[str, random.Random], str]


def tasks(folder: Path, name: str) -> list[Task]:
    """Tasks of one source; rows that are none are printed."""
    preparer, found = MathPreparer(), []
    source = next(source for source in preparer.sources if source.name == name)
    files = sorted(path for path in folder.iterdir() if path.name.startswith(name) and is_data_file(path))
    for number, row in enumerate(row for path in files for row in read_rows(path)):
        try:
            if isinstance(row, RowError):
                raise row
            found.append(preparer.task(source, number, row))
        except RowError as error:
            print(f"  {name}, row {number}: {error}")
    return found


def boxed(text: str) -> str:
    return f"So the answer is \\boxed{{{text}}}."


async def golds(judge: Judge, found: Sequence[Task], label: str) -> None:
    began, wrong = time.perf_counter(), []
    for task in found:
        verdict = await judge(boxed(str(task.reference)), task.reference)
        if verdict.reward != 1:
            wrong.append((task.id, task.reference, verdict.reason))
    print(
        f"{label}: {len(found)} references against themselves, {len(wrong)} not 1, {time.perf_counter() - began:.1f} s"
    )
    for row in wrong:
        print("  ", *row)


async def near(judge: Judge, found: Sequence[Task], label: str) -> None:
    began, total, right = time.perf_counter(), 0, []
    for task in found:
        for miss in near_misses(str(task.reference)):
            total += 1
            if (await judge(boxed(miss), task.reference)).reward != 0:
                right.append((task.reference, miss))
    print(f"{label}: {total} near misses, {len(right)} not 0, {time.perf_counter() - began:.1f} s")
    for row in right[:20]:
        print("  ", *row)


async def junk_answers(judge: Judge, found: Sequence[Task], label: str) -> None:
    began, total, right, reasons = time.perf_counter(), 0, [], Counter[str]()
    for task in found:
        for answer in junk(task):
            verdict = await judge(answer, task.reference)
            total += 1
            reasons[verdict.reason] += 1
            if verdict.reward != 0:
                right.append((task.reference, answer))
    print(f"{label}: {total} junk answers, {len(right)} not 0, {time.perf_counter() - began:.1f} s, {dict(reasons)}")
    for row in right[:40]:
        print("  ", *row)


# ---- perturbed answers -----------------------------------------------------------------------------------------------


def _digit(text: str, rng: random.Random) -> str:
    places = [match.start() for match in re.finditer("[0-9]", text)]
    if not places:
        return text
    at = rng.choice(places)
    return text[:at] + str((int(text[at]) + rng.randint(1, 8)) % 10) + text[at + 1 :]


def _swap_digits(text: str, rng: random.Random) -> str:
    places = [
        match.start() for match in re.finditer("[0-9](?=[0-9])", text) if text[match.start()] != text[match.end()]
    ]
    if not places:
        return text
    at = rng.choice(places)
    return text[:at] + text[at + 1] + text[at] + text[at + 2 :]


def _sign(text: str, rng: random.Random) -> str:
    places = [match.start() for match in re.finditer(r"[+-](?=.*[0-9a-z])", text)]
    if not places:
        return "-" + text
    at = rng.choice(places)
    return text[:at] + ("-" if text[at] == "+" else "+") + text[at + 1 :]


def _turned_fraction(text: str, _: random.Random) -> str:
    return re.sub(r"\\d?frac\{([^{}]*)\}\{([^{}]*)\}", r"\\frac{\2}{\1}", text, count=1)


def _bracket(text: str, rng: random.Random) -> str:
    pairs = {"(": "[", "[": "(", ")": "]", "]": ")"}
    places = [index for index, sign in enumerate(text) if sign in pairs and ("," in text or "cup" in text)]
    if not places:
        return text
    at = rng.choice(places)
    return text[:at] + pairs[text[at]] + text[at + 1 :]


def _shorter(text: str, _: random.Random) -> str:
    return text.rpartition(",")[0] + (text[-1] if text[-1] in ")]}" else "") if "," in text else text


def _turned_list(text: str, _: random.Random) -> str:
    match = re.fullmatch(r"(\W*?)([^,()]+), ?([^,()]+)(\W*)", text)
    return f"{match[1]}{match[3]}, {match[2]}{match[4]}" if match else text


def _same_value(text: str, rng: random.Random) -> str:
    """Another way to write the same: must stay right."""
    ways = [
        text.replace("\\frac", "\\dfrac"),
        f"  {text} ",
        text.replace("\\left", "").replace("\\right", ""),
        re.sub(r" (?![A-Za-z])", "", text),
        f"${text}$",
        f"x = {text}" if not re.search("[=a-z]", text) and "," not in text else text,
        re.sub(r"\\frac\{([0-9]+)\}\{([0-9]+)\}", lambda m: f"\\frac{{{3 * int(m[1])}}}{{{3 * int(m[2])}}}", text),
        re.sub(r"\\sqrt\{([0-9]+)\}", r"{\1}^{1/2}", text),
        re.sub(r"^-?[0-9]+$", lambda m: f"{m[0]}.0", text),
    ]
    changed = [way for way in ways if way != text]
    return rng.choice(changed or ways)


KINDS: dict[str, Perturb] = {
    "digit": _digit,
    "digits swapped": _swap_digits,
    "sign": _sign,
    "fraction turned": _turned_fraction,
    "bracket": _bracket,
    "part missing": _shorter,
    "order": _turned_list,
    "same value": _same_value,
}


def perturbed(found: Sequence[Task], count: int, seed: int = 0) -> Iterator[tuple[str, str, str]]:
    """(kind, reference, answer), kinds in turn, each on a reference that it changes."""
    rng, made, seen = random.Random(seed), 0, set[tuple[str, str]]()
    while made < count:
        for kind, change in KINDS.items():
            for _ in range(1000):
                reference = str(rng.choice(found).reference)
                answer = change(reference, rng)
                if answer != reference and (reference, answer) not in seen:
                    break
            seen.add((reference, answer))
            made += 1
            yield kind, reference, answer
            if made == count:
                return


async def pairs(judge: Judge, found: Sequence[Task], path: Path) -> None:
    lines, verdicts = [], Counter[str]()
    for kind, reference, answer in perturbed(found, 200):
        verdict = await judge(boxed(answer), reference)
        verdicts[f"{kind}: {verdict.reason}"] += 1
        lines.append(f"{verdict.reward:g} {verdict.reason:8} {kind:16} {reference}   ->   {answer}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"perturbed answers: {dict(sorted(verdicts.items()))}, written to {path}")


async def interpreter(level: str) -> None:
    from whale.harness.interpreter import PythonPool

    async with PythonPool(4, level, seconds=30, memory_mb=1024) as pool:
        await pool.run("1")
        began = time.perf_counter()
        results = await asyncio.gather(*[pool.run(f"print({number})") for number in range(256)])
        seconds = time.perf_counter() - began
    wrong = sum(result != str(number) for number, result in enumerate(results))
    print(f"interpreter, {level}: 256 calls at once, {wrong} wrong, {256 / seconds:.0f} a second")


async def main(data: Path, table: Path | None) -> None:
    judge = Judge("strict", formulas=True)
    dapo, hard, school = tasks(data, "dapo"), tasks(data, "math_500"), tasks(data, "math_train")
    await golds(judge, dapo, "DAPO")
    await near(judge, dapo, "DAPO")
    await golds(judge, hard, "MATH-500")
    await golds(judge, school, "MATH training problems")
    await junk_answers(judge, [*dapo[:100], *hard[:100]], "DAPO and MATH-500")
    if table:
        unlike = [task for task in [*hard, *school] if not re.fullmatch("-?[0-9]+", str(task.reference))]
        await pairs(judge, unlike, table)
    judge.close()
    for level in ("sealed", "contained"):
        await interpreter(level)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the data files")
    parser.add_argument("--pairs", type=Path, help="file for the perturbed answers and their verdicts")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.data, arguments.pairs))
