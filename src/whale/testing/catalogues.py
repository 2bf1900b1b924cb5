"""Checks for the tests of any catalogue of pieces: every combination that fits, and dead code in what it renders."""

from __future__ import annotations

import ast
import itertools

from whale.domains.catalogue import Piece, PieceCatalogue


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
