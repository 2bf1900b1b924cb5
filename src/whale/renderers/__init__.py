"""Renderers by template family."""

from __future__ import annotations

from typing import Any

from whale.errors import EngineError
from whale.protocols import Renderer
from whale.renderers.chatml import ChatML


def for_tokenizer(tokenizer: Any) -> Renderer:
    """The renderer of a transformers tokenizer, chosen by its chat template.

    Raises EngineError, naming the way out, if the template is of no family that whale renders exactly.
    """
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        raise EngineError("renderer: the tokenizer has no chat template; use an instruction-tuned model")
    if "<|im_start|>" in str(template):
        return ChatML(tokenizer)
    raise EngineError(
        "renderer: the chat template is not of a known family (ChatML); pass an object with "
        "the methods of whale.protocols.Renderer to the engine"
    )
