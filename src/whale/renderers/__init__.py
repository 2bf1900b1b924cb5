"""Renderers by template family."""

from __future__ import annotations

from typing import Any, Literal

from whale.errors import EngineError
from whale.protocols import Renderer
from whale.renderers.families import family_of
from whale.renderers.rerendered import Rerendered
from whale.renderers.spliced import Spliced
from whale.renderers.template import ChatTemplate

History = Literal["as_sampled", "template"]
"""``as_sampled``: earlier replies stay in the context as the ids that were sampled. ``template``: the tokenizer's chat
template writes the whole conversation anew at every call."""

_WAY_OUT = (
    'set engine.history = "template" to leave every context to the template, or pass an object with the methods of '
    "whale.protocols.Renderer to the engine"
)


def for_tokenizer(tokenizer: Any, history: History = "as_sampled", thinking: bool | None = None) -> Renderer:
    """The renderer of a transformers tokenizer, chosen by its chat template.

    history: how earlier replies enter a context. thinking: given to the template as ``enable_thinking``; ``None``
    leaves the template's own default.

    Raises EngineError, naming the way out, if there is no template, if it has no switch for ``thinking``, or if
    ``as_sampled`` is asked of a template that whale cannot reproduce id by id.
    """
    template = ChatTemplate(tokenizer, thinking)
    markers = family_of(template)
    if history == "template":
        return Rerendered(template, markers)
    if markers is None:
        raise EngineError(f"renderer: the chat template is of no family known here (ChatML, Llama 3); {_WAY_OUT}")
    try:
        return Spliced(template, markers)
    except EngineError as error:
        raise EngineError(f"{error}; {_WAY_OUT}") from error
