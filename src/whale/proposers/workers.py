"""Which worker does the work of which kind of agentic proposer."""

from __future__ import annotations

from collections.abc import Callable

from whale.config import ProposerConfig
from whale.proposers.chat_worker import ChatWorker
from whale.proposers.file_tools import CheckSource
from whale.proposers.program_worker import ProgramWorker
from whale.proposers.session import Worker


def worker_of(
    settings: ProposerConfig,
    check: CheckSource = lambda source: None,
    say: Callable[[str], None] = lambda line: None,
) -> Worker:
    """The worker of an agentic kind (``openai``, ``claude-code``, ``codex``, ``command``).

    check: why a source must not be evaluated, or ``None``. say: takes lines for a person.
    """
    return ChatWorker(settings, check, say) if settings.kind == "openai" else ProgramWorker(settings, say)
