"""The checks that catalogues are tested with find what they are there to find."""

from __future__ import annotations

from whale.testing import ToyDomain
from whale.testing.catalogues import smoke_faults, unused_names
from whale.types import Limits, Outcome


def test_the_harness_that_crashes_is_named_and_the_others_are_not() -> None:
    domain = ToyDomain()
    catalogue = domain.catalogue()
    sources = [catalogue.render(spec) for spec in ({}, {"parse": "crash"}, {"parse": "last_number"})]
    faults = smoke_faults(domain, sources, Limits(), (Outcome.SCORED, Outcome.NO_ANSWER))
    assert {number for number, _ in faults} == {1}
    assert all("RuntimeError" in rollout.detail for _, rollout in faults)


def test_dead_code_is_named() -> None:
    harness = "class Harness:\n    async def run(self, task, session):\n        return USED\n"
    source = f"import re\nUSED = 1\nLEFT = 2\n\n{harness}"
    assert unused_names(source) == {"re", "LEFT"}
