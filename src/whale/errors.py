"""Every error whale raises on purpose.

One root, one class per boundary that can break. A message names the field or file, the value found and
the way out, so that it can be printed to a user as it is. Harness code raises plain Python errors; what
escapes from a harness becomes data (an outcome on the rollout), never one of these.
"""


class WhaleError(Exception):
    """Root of all errors raised on purpose. The command line prints its message without a traceback."""


class ConfigError(WhaleError, ValueError):
    """A recipe, an override or a run folder does not fit: wrong key, type, value or combination."""


class EngineError(WhaleError, RuntimeError):
    """The engine cannot load a model or cannot sample from it."""


class TrainerError(WhaleError, RuntimeError):
    """The trainer cannot load, update, save or restore the policy."""


class StaleWeightsError(EngineError):
    """A completion was sampled from another policy version than the one that was asked for."""


class NoIdsError(EngineError):
    """The engine answered without the ids it sampled: there is nothing to train on and nothing to splice."""


class HarnessError(WhaleError, ValueError):
    """A harness file cannot be accepted: syntax, forbidden import, no ``Harness.run``, wrong return type."""


class SandboxError(WhaleError, RuntimeError):
    """The sandbox cannot be started or broke down. An infrastructure fault: never counted against a harness."""


class ProposerError(WhaleError, RuntimeError):
    """A proposer could not run at all (a missing program, a refused key, no permission to write)."""


class DomainError(WhaleError, ValueError):
    """Tasks cannot be used: unreadable row, duplicate id, overlapping splits, missing data."""


class StoreError(WhaleError, RuntimeError):
    """A run folder cannot be read, written or continued."""
