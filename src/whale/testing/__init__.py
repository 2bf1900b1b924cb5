"""Public fakes, so that code built on whale is tested in seconds without a model: a policy that learns, a toy domain,
a proposer that follows a script. ``whale.testing.models`` builds tiny real models (needs torch)."""

from whale.scripted import ScriptedEngine
from whale.testing.fakes import FakeEngine, FakeTrainer, FakeWeights
from whale.testing.proposers import ScriptedProposer
from whale.testing.toy import ToyCatalogue, ToyDomain

__all__ = [
    "FakeEngine",
    "FakeTrainer",
    "FakeWeights",
    "ScriptedEngine",
    "ScriptedProposer",
    "ToyCatalogue",
    "ToyDomain",
]
