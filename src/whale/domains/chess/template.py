"""Turns a spec into one flat harness file that holds what its pieces need and nothing else."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from typing import Any

from whale.domains.base import packaged
from whale.domains.chess import fragments
from whale.domains.chess.demonstrations import literal
from whale.domains.chess.pieces import AXES
from whale.domains.chess.wording import DEMOS, INSTRUCTIONS, SYSTEM, THOUGHTS

Names = Mapping[str, str]
Settings = Mapping[str, Any]


def seed_source() -> str:
    """Source of h0, which the empty spec renders to."""
    return packaged("chess", "seed_harness.py")


def render(pieces: Names, settings: Settings, suffixes: bool = True) -> str:
    """Source of the harness. pieces: axis -> name, already checked. settings: the pieces' parameters by their name.
    suffixes: demonstrations show ``+`` and ``#``."""
    return _Template(pieces, settings, suffixes).source() if pieces else seed_source()


class _Template:
    def __init__(self, pieces: Names, settings: Settings, suffixes: bool) -> None:
        self.on = {axis: pieces.get(axis, "") for axis in AXES}
        self.pieces = pieces
        self.settings = settings
        self.suffixes = suffixes
        self.form = self.on["form"]
        self.tagged = self.form == ""
        self.listed = self.on["moves"] != "hidden"
        self.arranges = self.on["moves"] in fragments.ARRANGE
        self.view = fragments.VIEWS[self.on["view"]]

    def source(self) -> str:
        listing = ", ".join(f"{axis}={name}" for axis, name in self.pieces.items())
        head = f'"""A harness of the chess domain, put together from {listing}."""'
        top = "\n\n".join([head, self._imports(), self._constants()])
        parts = [top, *self._functions(), "class Harness:\n" + self._methods()]
        return "\n\n\n".join(part.rstrip() for part in parts) + "\n"

    def _imports(self) -> str:
        wanted = {
            "asyncio": self.on["calls"] == "vote",
            "json": True,
            "random": self.on["moves"] == "shuffled",
            "re": self.tagged,
        }
        return "\n".join(f"import {name}" for name, used in wanted.items() if used)

    def _constants(self) -> str:
        lines = [f"INSTRUCTION = {_quote(INSTRUCTIONS[self.form])}"]
        if self.on["system"] != "none":
            lines.append(f"SYSTEM = f{_quote(SYSTEM[self.on['system']] + ' {INSTRUCTION}')}")
        if self.tagged:
            lines.append(r'MOVE = re.compile(r"<move>\s*([^<>\s]+)\s*</move>")')
        if self.on["parse"] == "untagged":
            lines.append(r'BARE_MOVE = re.compile(r"\b[a-h][1-8][a-h][1-8][qrbn]?\b")')
        if self.on["moves"] == "by_piece":
            lines.append(fragments.PIECE_NAMES)
        if self.on["demos"]:
            demos = DEMOS[:1] if self.on["demos"] == "single" else DEMOS
            fields = [*self.view.fields, *(["legal"] if self.listed else [])]
            lines.append(literal(demos, self.form, fields, self.on["moves"] == "alphabetical", self.suffixes))
        return "\n".join(lines)

    # ---- functions -------------------------------------------------------------------------------------------

    def _functions(self) -> list[str]:
        functions = [fragments.ARRANGE[self.on["moves"]]] if self.arranges else []
        if self.on["demos"] and self.listed:
            functions.append(fragments.UNPACK)
        if self.listed or self.on["retry"] == "show_moves":
            functions.append(self._listing())
        if self.on["view"] == "squares":
            functions.append(fragments.SQUARES)
        functions.append(self._show())
        functions += self._reading()
        if self.on["retry"] in ("", "show_moves", "patient"):
            functions.append(fragments.NUDGE)
        return functions

    def _item(self) -> tuple[str, str]:
        """The f-string of one legal move, and what stands between two."""
        both = "{move['uci']} ({move['san']})"
        single = {"san": "{move['san']}", "number": "{move['san']}"}.get(self.form, "{move['uci']}")
        alone = self.form == "san" or self.on["moves"] == "one_notation"
        item = single if alone else both
        between = "\\n" if self.on["moves"] == "lines" else " " if alone else ", "
        return (f'f"{{number}}. {item}"' if self.form == "number" else f'f"{item}"'), between

    def _listing(self) -> str:
        item, between = self._item()
        number = self.form == "number"
        each = 'number, move in enumerate(seen["legal"], 1)' if number else 'move in seen["legal"]'
        if self.on["moves"] == "by_piece":
            return fragments.LISTING_BY_PIECE.format(each=each, item=item, between=between)
        return f'def listing(seen):\n    return "{between}".join({item} for {each})\n'

    def _show(self) -> str:
        lines = list(self.view.lines)
        if self.listed:
            label = "Moves" if self.on["view"] == "list_only" else "Legal moves"
            gap = "\\n" if self.on["moves"] in ("by_piece", "lines") else " "
            lines.append(f'f"{label}:{gap}{{listing(seen)}}"')
        if self.on["demos"] == "block":
            lines.append('"Move:"')
        if len(lines) == 1:
            return f"def show(seen):\n    return {lines[0]}\n"
        return "\n".join(["def show(seen):", "    lines = [", *(f"        {line}," for line in lines), *_SHOW_END])

    def _reading(self) -> list[str]:
        if self.tagged:
            also = " or BARE_MOVE.findall(text)" if self.on["parse"] == "untagged" else ""
            return [
                f'def read(text, seen):\n    found = MOVE.findall(text){also}\n    return found[-1] if found else ""\n'
            ]
        place = {"first_word": "0", "last_word": "-1"}.get(self.on["parse"])
        read = fragments.READ_WORD.format(place=place) if place else fragments.READ_WHOLE
        return [fragments.PLAIN, fragments.NAMES[self.form], read]

    # ---- methods ---------------------------------------------------------------------------------------------

    def _methods(self) -> str:
        methods = [self._run(), self._opening()]
        if self._decides():
            methods.append(self._decide())
        methods.append(self._ask())
        return "\n".join(textwrap.indent(method, "    ") for method in methods)

    def _decides(self) -> bool:
        return self.on["calls"] == "confirm" or self.on["retry"] == "patient"

    def _run(self) -> str:
        look = "json.loads(await session.tools.observe())"
        look = f"arrange({look})" if self.arranges else look
        story = "\n    story = [f\"opponent {seen['last_move']}\"]" if self.on["memory"] == "notes" else ""
        return fragments.RUN.format(
            look=look,
            story=story,
            turns=self.settings.get("turns", 9),
            choose="decide" if self._decides() else "ask",
            slip=textwrap.indent(fragments.SLIPS[self.on["retry"]], " " * 12),
            following=textwrap.indent(fragments.FOLLOWING[self.on["memory"]], " " * 8),
        )

    def _opening(self) -> str:
        system = '[{"role": "system", "content": SYSTEM}]' if self.on["system"] != "none" else "[]"
        lines = ["def opening(self, seen):", f"    messages = {system}"]
        demo = "unpack(demo)" if self.listed else "demo"
        content = "show(seen)"
        if self.on["demos"] == "block":
            lines.append(f'    examples = [f"{{show({demo})}} {{move}}" for demo, move in DEMOS]')
            content = '"\\n\\n".join([*examples, show(seen)])'
        elif self.on["demos"]:
            lines += [
                "    for demo, move in DEMOS:",
                f'        messages.append({{"role": "user", "content": show({demo})}})',
                '        messages.append({"role": "assistant", "content": move})',
            ]
        if self.on["system"] == "none":
            content = f'INSTRUCTION + "\\n\\n" + {content}'
        lines.append(f'    messages.append({{"role": "user", "content": {content}}})')
        return "\n".join([*lines, "    return messages"]) + "\n"

    def _decide(self) -> str:
        parts = [fragments.DECIDE]
        if self.on["calls"] == "confirm":
            parts.append(fragments.CONFIRM)
        if self.on["retry"] == "patient":
            parts.append(fragments.PATIENT.format(times=self.settings["times"]))
        return "".join([*parts, "    return move\n"])

    def _ask(self) -> str:
        arguments = self._chat_arguments()
        if self.on["calls"] == "vote":
            return fragments.ASK_VOTE.format(arguments=arguments, attempts=self.settings["attempts"])
        if self.on["calls"] in THOUGHTS:
            question, label = THOUGHTS[self.on["calls"]]
            return fragments.ASK_THOUGHT.format(arguments=arguments, question=question, label=label)
        return fragments.ASK.format(arguments=arguments)

    def _chat_arguments(self) -> str:
        if self.on["stop"] == "short":
            return f", max_tokens={self.settings['max_tokens']}"
        return {"one_line": ', stop=["\\n"]', "closing_tag": ', stop=["</move>"]'}.get(self.on["stop"], "")


_SHOW_END = ("    ]", '    return "\\n".join(lines)', "")


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
