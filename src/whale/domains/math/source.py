"""Tasks from reasoning-gym, generated on the spot: several families, short wording, disjoint splits."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain, zip_longest
from typing import Any

from whale.domains.base import content_key
from whale.errors import DomainError
from whale.types import SPLITS, Split, Task

Entry = Mapping[str, Any]

FAMILIES: dict[str, dict[str, Any]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 1},
    "products": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
    "basic_arithmetic": {
        "min_terms": 2,
        "max_terms": 3,
        "min_digits": 1,
        "max_digits": 1,
        "operators": ["+", "-", "*"],
        "allow_negation": False,
    },
    "gcd": {"min_numbers": 2, "max_numbers": 2, "min_value": 2, "max_value": 24},
    "decimal_chain_sum": {
        "min_terms": 2,
        "max_terms": 2,
        "min_digits": 1,
        "max_digits": 1,
        "min_decimal_places": 1,
        "max_decimal_places": 1,
    },
    "leg_counting": {"min_animals": 1, "max_animals": 1, "min_instances": 2, "max_instances": 12},
}
"""Default families and their reasoning-gym configuration; any other reasoning-gym dataset may be named too."""

UNSEEN_FAMILY = "lcm"
UNSEEN_CONFIG: dict[str, Any] = {"min_numbers": 2, "max_numbers": 2, "min_value": 2, "max_value": 30}

SIZES: dict[Split, int] = {"weights": 600, "search": 48, "test": 48, "unseen": 16}

# Test first: its tasks then stay the same when another split grows.
_ORDER: tuple[Split, ...] = ("test", "search", "weights")
_LARGEST_DRAW = 40  # draws per wanted task before a family counts as too small


def generate(
    seed: int,
    families: Mapping[str, Mapping[str, Any]],
    unseen: Mapping[str, Mapping[str, Any]],
    sizes: Mapping[Split, int],
    excluded: Collection[str] = (),
) -> dict[Split, list[Task]]:
    """Tasks of every split, the same for the same arguments.

    seed: any integer. families: dataset name -> configuration, shared by weights, search and test in equal
    parts. unseen: the same for split ``unseen``. sizes: tasks per split. excluded: problems no split may hold
    (those that demonstrations show). Raises DomainError where a family
    does not hold enough distinct questions or reasoning-gym refuses its configuration.
    """
    splits: dict[Split, list[Task]] = {split: [] for split in SPLITS}
    quotas = {split: _quotas(sizes[split], list(families)) for split in _ORDER}
    taken = {content_key(Task("", {"problem": problem}, "")) for problem in excluded}
    columns: dict[Split, list[list[Task]]] = {split: [] for split in _ORDER}
    for name, config in families.items():
        stream = _distinct(seed, name, config, taken, sum(quotas[split][name] for split in _ORDER))
        for split in _ORDER:
            columns[split].append([next(stream) for _ in range(quotas[split][name])])
    for split in _ORDER:
        splits[split] = _interleave(columns[split])
    quota = _quotas(sizes["unseen"], list(unseen))
    rest = [list(_distinct(seed, name, config, taken, quota[name])) for name, config in unseen.items()]
    splits["unseen"] = _interleave(rest)
    return splits


def _quotas(size: int, names: list[str]) -> dict[str, int]:
    """``size`` split over the families as evenly as it goes, the first ones taking what is left over."""
    return {name: size // len(names) + (i < size % len(names)) for i, name in enumerate(names)}


def _interleave(columns: list[list[Task]]) -> list[Task]:
    """One task of each family in turn, so that any leading part of a split is balanced."""
    return [task for task in chain.from_iterable(zip_longest(*columns)) if task is not None]


def _distinct(seed: int, family: str, config: Mapping[str, Any], taken: set[str], wanted: int) -> Iterator[Task]:
    """Exactly ``wanted`` tasks whose questions nobody else has; what was taken is added to ``taken``."""
    if not wanted:
        return
    dataset, found = _dataset(seed, family, config, wanted * _LARGEST_DRAW), 0
    for index in range(wanted * _LARGEST_DRAW):
        entry = dataset[index]
        task = Task(f"{family}-{index}", {"problem": phrase(family, entry)}, str(entry["answer"]), family)
        key = content_key(task)
        if key in taken:
            continue
        taken.add(key)
        found += 1
        yield task
        if found == wanted:
            return
    raise DomainError(
        f"family {family!r} holds only {found} distinct questions under {dict(config)} but {wanted} are needed: "
        "widen its configuration or ask for smaller splits"
    )


def _dataset(seed: int, family: str, config: Mapping[str, Any], size: int) -> Any:
    try:
        import reasoning_gym
    except ImportError as error:
        raise DomainError("the math domain needs reasoning-gym: pip install 'whale-learn[math]'") from error
    own_seed = zlib.crc32(f"{seed}/{family}".encode())
    try:
        return reasoning_gym.create_dataset(family, seed=own_seed, size=size, **config)
    except Exception as error:  # reasoning-gym raises assertions, type and value errors alike
        raise DomainError(f"family {family!r}: reasoning-gym refuses {dict(config)}: {error}") from error


def phrase(family: str, entry: Entry) -> str:
    """The question in few words where the family is known, else reasoning-gym's own text."""
    wording = _WORDINGS.get(family)
    return wording(entry["metadata"]) if wording else str(entry["question"]).strip()


def _tidy(expression: str) -> str:
    return expression.replace("( ", "(").replace(" )", ")")


def _chain_sum(meta: Entry) -> str:
    return f"What is {_tidy(meta['expression'])}?"


def _products(meta: Entry) -> str:
    return f"What is {meta['expression'].replace(' * ', ' times ')}?"


def _basic_arithmetic(meta: Entry) -> str:
    return f"Calculate {_tidy(meta['expression'])}."


def _gcd(meta: Entry) -> str:
    return f"What is gcd({', '.join(map(str, meta['numbers']))})?"


def _lcm(meta: Entry) -> str:
    return f"What is lcm({', '.join(map(str, meta['numbers']))})?"


def _leg_counting(meta: Entry) -> str:
    animals = [f"{count} {_plural(name) if count != 1 else name}" for name, count in meta["animals"].items()]
    verb, total = ("does", "") if animals[0].startswith("1 ") and len(animals) == 1 else ("do", " in total")
    return f"How many legs {verb} {_listing(animals)} have{total if len(animals) > 1 else ''}?"


def _plural(noun: str) -> str:
    if noun in _PLURALS:
        return _PLURALS[noun]
    if noun.endswith("y"):
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("ch", "s")) else "s")


_PLURALS = {same: same for same in ("deer", "sheep", "starfish", "jellyfish", "shrimp")} | {"woodlouse": "woodlice"}


def _simple_geometry(meta: Entry) -> str:
    angles = [f"{angle:g}" for angle in meta["known_angles"]]
    shape = {3: "triangle", 4: "quadrilateral"}.get(meta["n_sides"], f"polygon with {meta['n_sides']} sides")
    return f"All angles of a {shape} but one are {_listing(angles)} degrees. How many degrees is the last angle?"


def _listing(items: list[Any]) -> str:
    words = [str(item) for item in items]
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else words[0]


_WORDINGS: dict[str, Callable[[Entry], str]] = {
    "chain_sum": _chain_sum,
    "decimal_chain_sum": _chain_sum,
    "products": _products,
    "basic_arithmetic": _basic_arithmetic,
    "gcd": _gcd,
    "lcm": _lcm,
    "leg_counting": _leg_counting,
    "simple_geometry": _simple_geometry,
}
