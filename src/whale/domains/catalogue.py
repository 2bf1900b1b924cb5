"""The offline source of candidates: checks specs, renders them, and proposes the next ones from what failed.

A domain's catalogue is its pieces, its axes and one template that turns a checked spec into a flat harness file.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from whale.errors import DomainError

Spec = Mapping[str, Any]

Template = Callable[[Mapping[str, str], Mapping[str, Any]], str]
"""Source of the harness from axis -> piece name (checked, in the order of the axes) and the pieces' parameters."""

_UNRELATED = 0.25  # chance of a piece that addresses none of the failures seen, against one that does
_TRIED_BEFORE = 0.1  # factor for a piece that was already tried with the same leading piece


@dataclass(frozen=True)
class Piece:
    """One mechanism.

    addresses: failure reasons and outcomes it may cure. requires, conflicts: axis -> piece names, where ``""`` is
    the axis left as in h0. prior: how much is expected of it, a factor of the chance to be drawn. defaults: its
    parameters.
    """

    axis: str
    name: str
    hypothesis: str
    addresses: tuple[str, ...]
    requires: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    conflicts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prior: int = 1
    defaults: Mapping[str, Any] = field(default_factory=dict)


class PieceCatalogue:
    """Implements ``whale.protocols.Catalogue`` for a domain's pieces and template.

    A spec maps an axis to a piece: its name, or ``{"piece": name, parameter: value}`` to set its parameters. The first
    of ``axes`` leads: what was tried under another piece of it says little, so it is worth trying again.
    """

    def __init__(self, axes: Sequence[str], pieces: Sequence[Piece], template: Template) -> None:
        self.axes = tuple(axes)
        self.pieces = tuple(pieces)
        self._template = template
        self._by_name = {(piece.axis, piece.name): piece for piece in pieces}

    def render(self, spec: Spec) -> str:
        """Source of the harness. Raises DomainError for a spec that names unknown or incompatible pieces."""
        problem = self.problem(spec)
        if problem:
            raise DomainError(f"spec {dict(spec)}: {problem}")
        names = {axis: _name(spec[axis]) for axis in self.axes if axis in spec}
        settings: dict[str, Any] = {}
        for axis, name in names.items():
            settings |= self._by_name[axis, name].defaults
            settings |= _parameters(spec[axis])
        return self._template(names, settings)

    def problem(self, spec: Spec) -> str:
        """What is wrong with ``spec`` in one line, or ``""``."""
        for axis, value in spec.items():
            piece = self._by_name.get((axis, _name(value)))
            if piece is None:
                return f"axis {axis!r} has no piece {_name(value)!r}"
            unknown = [name for name in _parameters(value) if name not in piece.defaults]
            if unknown:
                return f"piece {axis}/{piece.name} has no parameter {unknown[0]!r}"
            for other, allowed in piece.requires.items():
                if _name(spec.get(other, "")) not in allowed:
                    return f"{axis}/{piece.name} requires {other} to be one of {', '.join(map(repr, allowed))}"
            for other, forbidden in piece.conflicts.items():
                if _name(spec.get(other, "")) in forbidden:
                    return f"{axis}/{piece.name} conflicts with {other}/{_name(spec[other])}"
        return ""

    def propose(
        self, parent: Spec, tried: Sequence[Spec], reasons: Mapping[str, int], slots: int, seed: int
    ) -> list[dict[str, Any]]:
        """Up to ``slots`` proposals on different axes; ``[]`` when every neighbour of ``parent`` was tried.

        A piece is drawn with a chance that grows with the share of the failures it addresses; pieces that were
        not yet tried with the parent's form go first. A proposal brings along the pieces its mechanism requires and
        drops those of the parent that no longer fit.
        """
        rng = random.Random(f"{seed}/{_key(parent)}/{len(tried)}")
        seen = {_key(spec) for spec in [parent, *tried]}
        options = []
        for piece in self.pieces:
            spec = self._with(parent, piece)
            if spec is not None and _key(spec) not in seen:
                options.append((piece, spec, self._weight(piece, spec, tried, reasons)))
        proposals: list[dict[str, Any]] = []
        while options and len(proposals) < slots:
            piece, spec, _ = rng.choices(options, [weight for _, _, weight in options])[0]
            proposals.append(
                {"spec": spec, "axis": piece.axis, "mechanism": piece.name, "hypothesis": piece.hypothesis}
            )
            options = [option for option in options if option[0].axis != piece.axis and option[1] != spec]
        return proposals

    def _with(self, parent: Spec, piece: Piece) -> dict[str, Any] | None:
        """The parent's spec with ``piece``: required pieces added, misfits dropped; ``None`` if it changes nothing."""
        if _name(parent.get(piece.axis, "")) == piece.name:
            return None
        spec = {**parent, piece.axis: piece.name}
        for axis, allowed in piece.requires.items():
            if _name(spec.get(axis, "")) not in allowed:
                spec.pop(axis, None)
                if "" not in allowed:
                    spec[axis] = allowed[0]
        kept = {piece.axis, *piece.requires}
        for axis in [axis for axis in self.axes if axis in kept and axis in spec]:
            spec = {
                other: value for other, value in spec.items() if other in kept or not self._clash(spec, axis, other)
            }
        # Dropping one misfit can make another of what required it, hence once per axis.
        for _ in self.axes:
            spec = {axis: value for axis, value in spec.items() if axis in kept or self._fits(spec, axis)}
        return None if self.problem(spec) else {axis: spec[axis] for axis in self.axes if axis in spec}

    def _fits(self, spec: Spec, axis: str) -> bool:
        """True if the piece on ``axis`` has what it requires and meets no conflict of its own."""
        piece = self._by_name[axis, _name(spec[axis])]
        has_required = all(_name(spec.get(other, "")) in allowed for other, allowed in piece.requires.items())
        return has_required and not any(self._clash(spec, axis, other) for other in piece.conflicts)

    def _clash(self, spec: Spec, axis: str, other: str) -> bool:
        """True if the piece on ``axis`` names the one on ``other`` as a conflict."""
        return _name(spec.get(other, "")) in self._by_name[axis, _name(spec[axis])].conflicts.get(other, ())

    def _weight(self, piece: Piece, spec: Spec, tried: Sequence[Spec], reasons: Mapping[str, int]) -> float:
        total = sum(count for reason, count in reasons.items() if reason != "right")
        met = sum(count for reason, count in reasons.items() if reason in piece.addresses)
        share = met / total if total else 1.0
        weight = piece.prior * (_UNRELATED + share)
        leading = _name(spec.get(self.axes[0], ""))
        known = any(
            _name(other.get(piece.axis, "")) == piece.name and _name(other.get(self.axes[0], "")) == leading
            for other in tried
        )
        return weight * _TRIED_BEFORE if known else weight


def _name(value: Any) -> str:
    return str(value.get("piece", "")) if isinstance(value, Mapping) else str(value)


def _parameters(value: Any) -> dict[str, Any]:
    return {name: item for name, item in value.items() if name != "piece"} if isinstance(value, Mapping) else {}


def _key(spec: Spec) -> str:
    return json.dumps({axis: spec[axis] for axis in sorted(spec)}, sort_keys=True)
