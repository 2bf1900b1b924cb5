"""What a harness file imports: ``from whale.harness import LimitReached, Reply, Session, Task``.

Inside a sandbox the same names come from the runtime itself; this module gives them to editors, type checkers and
tests. The host's side lives in ``whale.harness.host``, ``interpreter``, ``validate`` and ``sandbox``.
"""

from whale.harness.runtime import LimitReached, Reply, Session, Task, ToolCall

__all__ = ["LimitReached", "Reply", "Session", "Task", "ToolCall"]
