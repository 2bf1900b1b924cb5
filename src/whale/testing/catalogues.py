"""Checks for the tests of any catalogue of pieces: every combination that fits, and dead code in what it renders."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace

from whale.archive import make_candidate
from whale.domains.catalogue import Piece, PieceCatalogue
from whale.protocols import Domain
from whale.rollout import Attempt, Setting, run_rollouts
from whale.scripted import ScriptedEngine
from whale.types import Limits, Outcome, Rollout, Sampling


def with_requirements(catalogue: PieceCatalogue, *pieces: Piece) -> dict[str, str] | None:
    """The pieces together with the first choice of what they require; ``None`` if they cannot go together."""
    spec: dict[str, str] = {}
    for piece in pieces:
        if spec.get(piece.axis, piece.name) != piece.name:
            return None
        spec[piece.axis] = piece.name
    for piece in pieces:
        for axis, allowed in piece.requires.items():
            if spec.get(axis, "") not in allowed:
                if axis in spec or "" in allowed:
                    return None
                spec[axis] = allowed[0]
    return None if catalogue.problem(spec) else spec


def compatible_specs(catalogue: PieceCatalogue) -> list[dict[str, str]]:
    """Every piece alone and every pair of pieces on different axes, with what they require; no spec twice."""
    specs = [with_requirements(catalogue, piece) for piece in catalogue.pieces]
    pairs = itertools.combinations(catalogue.pieces, 2)
    specs += [with_requirements(catalogue, a, b) for a, b in pairs if a.axis != b.axis]
    return [dict(items) for items in {tuple(sorted(spec.items())) for spec in specs if spec}]


def unused_names(source: str) -> set[str]:
    """Module names and methods that are defined and never read: dead code of pieces that are not in use."""
    tree = ast.parse(source)
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            defined |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {alias.name for alias in node.names}
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    read |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return defined - read - {"run"}


_BUNDLE = """
SOURCES = {sources!r}


class Harness:
    async def run(self, task, session):
        space = {{"__name__": "harness"}}
        exec(compile(SOURCES[task.rendered], "harness.py", "exec"), space)
        return await space["Harness"]().run(task, session)
"""


def smoke_faults(
    domain: Domain, sources: Sequence[str], limits: Limits, allowed: Collection[Outcome]
) -> list[tuple[int, Rollout]]:
    """(number of the source, rollout) for every toy task that a harness did not end in one of ``allowed`` outcomes.

    What ``whale.smoke.smoke_run`` does, for hundreds of harnesses at the price of one sandbox: they are bundled into
    one file, which runs the one that a task names, in a fork of its own as ever.
    """
    tasks, replies = domain.smoke()
    bundle = make_candidate(0, _BUNDLE.format(sources=list(sources)))
    attempts = [
        Attempt(bundle, replace(task, id=f"{number}/{task.id}", inputs={**task.inputs, "rendered": number}), 0, 0)
        for number in range(len(sources))
        for task in tasks
    ]
    setting = Setting(ScriptedEngine(replies), domain, Sampling(), limits, isolation="contained", retries=0)
    rollouts = run_rollouts(setting, attempts, 0)
    return [
        (attempt.task.inputs["rendered"], rollout)
        for attempt, rollout in zip(attempts, rollouts, strict=True)
        if rollout.outcome not in allowed
    ]
