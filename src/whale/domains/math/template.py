"""Turns a spec into one flat harness file that holds what its pieces need and nothing else."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from typing import Any

from whale.domains.base import packaged
from whale.domains.math.pieces import AXES, BOX_FORMS, CODE_FORMS
from whale.domains.math.wording import DEMOS, INSTRUCTIONS, LABELS, SYSTEM, demonstrations

Names = Mapping[str, str]
Settings = Mapping[str, Any]


def seed_source() -> str:
    """Source of h0, which the empty spec renders to."""
    return packaged("math", "seed_harness.py")


def render(pieces: Names, settings: Settings) -> str:
    """Source of the harness. pieces: axis -> name, already checked. settings: the pieces' parameters by their name."""
    return _Template(pieces, settings).source() if pieces else seed_source()


class _Template:
    def __init__(self, pieces: Names, settings: Settings) -> None:
        self.on = {axis: pieces.get(axis, "") for axis in AXES}
        self.pieces = pieces
        self.settings = settings
        self.form = self.on["form"]
        self.code = self.form in CODE_FORMS
        self.native = self.form == ""
        self.turns = self.on["demos"] in ("turns", "single")
        # The policy's own box is kept as it stands, unless the harness reads a number out of the reply.
        self.own_box = self.form in BOX_FORMS and self.on["parse"] != "last_number"
        self.judges = bool(self.on["retry"]) or self.on["calls"] == "vote"

    def source(self) -> str:
        listing = ", ".join(f"{axis}={name}" for axis, name in self.pieces.items())
        head = f'"""A harness of the math domain, put together from {listing}."""\n'
        parts = [
            head,
            *self._imports(),
            self._constants(),
            "\n\nclass Harness:\n" + self._methods(),
            *self._functions(),
        ]
        return "\n".join(part for part in parts if part).rstrip() + "\n"

    def _imports(self) -> list[str]:
        lines = ["import re"] if self._uses_re() else []
        if self.on["calls"] == "vote":
            lines.append("from collections import Counter")
        return ["\n".join(lines) + "\n"] if lines else []

    def _uses_re(self) -> bool:
        normalises = self.on["code"] == "normalise"
        return self.judges or normalises or self.on["parse"] == "last_number"

    # ---- constants -------------------------------------------------------------------------------------------

    def _constants(self) -> str:
        lines = []
        if self.on["system"]:
            lines.append(f"SYSTEM = {_quote(SYSTEM[self.on['system']])}")
        lines.append(f"INSTRUCTION = {_quote(INSTRUCTIONS[self.form])}")
        if self.on["demos"]:
            demos = DEMOS[:1] if self.on["demos"] == "single" else DEMOS
            rows = [f"    ({_quote(q)}, {_quote(reply)})," for q, reply in demonstrations(self.form, demos)]
            lines += ["DEMOS = [", *rows, "]"]
        if self.on["tool"] == "math_names":
            lines.append('PRELUDE = "from math import *\\n"')
        if self.on["code"] == "normalise":
            lines.append('SIGNS = {"\u00d7": "*", "\u00f7": "/", "\u2212": "-", "^": "**", "`": "", "$": ""}')
        if self.judges or self.on["parse"] == "last_number":
            lines.append(f"USABLE = re.compile({self._usable_pattern()})")
        return "\n".join(lines)

    def _usable_pattern(self) -> str:
        return r'r"\\boxed\{[^{}]+\}"' if self.own_box else r'r"-?\d+(?:[.,/]\d+)*"'

    # ---- methods ---------------------------------------------------------------------------------------------

    def _methods(self) -> str:
        methods = [self._run(), self._messages(), self._ask()]
        if self.native:
            methods.append(_OBSERVE)
        return "\n".join(textwrap.indent(method, "    ") for method in methods)

    def _run(self) -> str:
        if self.on["calls"] != "vote":
            return "async def run(self, task, session) -> str:\n" + self._attempt("task.problem") + "\n"
        return (
            "async def run(self, task, session) -> str:\n"
            f"    answers = [await self.attempt(task.problem, session) for _ in range({self.settings['attempts']})]\n"
            "    usable = [found[-1] for answer in answers if (found := USABLE.findall(answer))]\n"
            "    return Counter(usable).most_common(1)[0][0] if usable else answers[0]\n".replace(
                "Counter(usable).most_common(1)[0][0]", self._boxed("Counter(usable).most_common(1)[0][0]")
            )
            + "\nasync def attempt(self, problem, session) -> str:\n"
            + self._attempt("problem")
            + "\n"
        )

    def _attempt(self, problem: str) -> str:
        lines = []
        if self.on["calls"] == "plan":
            lines += [
                f'question = f"{{{problem}}}\\n\\nSay in one short sentence how to solve this. Do not calculate."',
                'plan = await session.chat([{"role": "user", "content": question}], max_tokens=32, stop=["\\n"])',
                f'messages = self.messages(f"{{{problem}}} Hint: {{plan.text.strip()}}")',
            ]
        else:
            lines.append(f"messages = self.messages({problem})")
        lines.append("answer = await self.ask(messages, session)")
        lines += self._retry(problem)
        if self.on["calls"] == "confirm":
            lines += [
                f'question = f"{{{problem}}}\\n\\nProposed answer: {{answer}}\\nIs it right? Reply yes or no."',
                'verdict = await session.chat([{"role": "user", "content": question}], max_tokens=4)',
                'if verdict.text.strip().lower().startswith("no"):',
                f"    answer = await self.ask(self.messages({problem}), session)",
            ]
        lines.append(f"return {self._boxed('answer')}")
        return textwrap.indent("\n".join(lines), "    ")

    def _retry(self, problem: str) -> list[str]:
        kind = self.on["retry"]
        if not kind:
            return []
        nudge = {
            "show_error": 'f"That gave: {answer[-200:]}\\nWrite it again so that it runs. {INSTRUCTION}"',
            "ask_for_box": '"Write the final answer alone, as \\\\boxed{number}."',
        }
        lines = [
            f"for _ in range({self.settings['times']}):",
            "    if USABLE." + self._test() + "(answer):",
            "        break",
        ]
        if kind == "again":
            lines.append(f"    messages = self.messages({problem})")
        else:
            lines.append(f'    messages.append({{"role": "user", "content": {nudge[kind]}}})')
        lines.append("    answer = await self.ask(messages, session)")
        return lines

    def _test(self) -> str:
        return "search" if self.own_box else "fullmatch"

    def _boxed(self, expression: str) -> str:
        return expression if self.own_box else f'"\\\\boxed{{" + {expression} + "}}"'

    def _messages(self) -> str:
        lines = ["def messages(self, problem):"]
        first = ["SYSTEM"] if self.on["system"] else []
        if self.turns:
            first.append("INSTRUCTION")  # said once, ahead of all turns
        if first:
            content = first[0] if len(first) == 1 else 'f"{SYSTEM} {INSTRUCTION}"'
            lines.append(f'    messages = [{{"role": "system", "content": {content}}}]')
        else:
            lines.append("    messages = []")
        if self.turns:
            lines += [
                "    for question, reply in DEMOS:",
                f'        messages.append({{"role": "user", "content": {self._present("question")}}})',
                '        messages.append({"role": "assistant", "content": reply})',
            ]
        lines += self._question()
        return "\n".join([*lines, "    return messages"]) + "\n"

    def _question(self) -> list[str]:
        if self.on["demos"] != "block":
            return [f'    messages.append({{"role": "user", "content": {self._present("problem")}}})']
        said = "{problem} {problem}" if self.on["prompt"] == "repeat" else "{problem}"
        return [
            f'    shown = [f"Problem: {{question}}\\n{self._label()}: {{reply}}" for question, reply in DEMOS]',
            f'    parts = [INSTRUCTION, *shown, f"Problem: {said}\\n{self._label()}:"]',
            '    messages.append({"role": "user", "content": "\\n\\n".join(parts)})',
        ]

    def _label(self) -> str:
        return LABELS.get(self.form, "Answer")

    def _present(self, variable: str) -> str:
        """The f-string that puts a problem into a message."""
        problem = {"labels": f"Problem: {{{variable}}}\\n{self._label()}:", "repeat": f"{{{variable}}} {{{variable}}}"}
        text = problem.get(self.on["prompt"], f"{{{variable}}}")
        if self.on["demos"]:
            return variable if text == f"{{{variable}}}" else f'f"{text}"'
        first = self.on["prompt"] in ("instruction_first", "labels")
        return f'f"{{INSTRUCTION}}\\n\\n{text}"' if first else f'f"{text}\\n\\n{{INSTRUCTION}}"'

    def _chat_arguments(self) -> str:
        arguments = ', tools=["code_interpreter"]' if self.native else ""
        if self.on["stop"] == "short":
            arguments += f", max_tokens={self.settings['max_tokens']}"
        return arguments + (', stop=["\\n"]' if self.on["stop"] == "one_line" else "")

    def _ask(self) -> str:
        chat = f"await session.chat(messages{self._chat_arguments()})"
        lines = ["async def ask(self, messages, session) -> str:"]
        if self.native:
            lines += [
                f"    for _ in range({self.settings.get('turns', 2) - 1}):",
                f"        reply = {chat}",
                "        messages.append(reply.message)",
                "        if not reply.tool_calls:",
                f"            {self._return_native()}",
                "        for call in reply.tool_calls:",
                "            observation = await self.observe(call, session)",
                f"            content = {self._observation()}",
                '            messages.append({"role": "tool", "content": content, "tool_call_id": call.id})',
            ]
        lines += [f"    reply = {chat}", "    messages.append(reply.message)"]
        return "\n".join([*lines, *self._read()]) + "\n"

    def _return_native(self) -> str:
        return "return last_number(reply.text)" if self.on["parse"] == "last_number" else "return reply.text"

    def _observation(self) -> str:
        if self.on["tool"] == "say_result":
            return 'f"The result is {observation}\\nNow put the final answer within \\\\boxed{{}}."'
        return "observation"

    def _read(self) -> list[str]:
        """How the reply becomes an answer: parse, then run what the policy wrote if it wrote code."""
        text = {
            "first_line": 'reply.text.strip().split("\\n", 1)[0]',
            "after_label": 'reply.text.rpartition(":")[2]',
            "last_number": "last_number(reply.text)",
        }.get(self.on["parse"], "reply.text")
        if self.form == "equation" and self.on["parse"] != "last_number":
            text += '.rpartition("=")[2]'
        if self.form in ("equation", "answer_line") and self.on["parse"] != "last_number":
            text += ".strip()"
        if not self.code:
            return [f"    return {text}"]
        prelude = "PRELUDE + " if self.on["tool"] == "math_names" else ""
        return [
            f"    code = {prelude}" + (f"normalise({text})" if self.on["code"] == "normalise" else f"{text}.strip()"),
            "    return (await session.tools.code_interpreter(code=code)).strip()",
        ]

    # ---- functions -------------------------------------------------------------------------------------------

    def _functions(self) -> list[str]:
        functions = []
        if self.on["parse"] == "last_number":
            functions.append(_LAST_NUMBER)
        if self.on["code"] == "normalise":
            functions.append(_NORMALISE)
        return ["\n" + function for function in functions]


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_OBSERVE = """\
async def observe(self, call, session) -> str:
    if call.error:
        return call.error
    if call.name != "code_interpreter" or "code" not in call.arguments:
        return "The only tool is code_interpreter(code)."
    return await session.tools.code_interpreter(code=str(call.arguments["code"]))
"""

_LAST_NUMBER = """\
def last_number(text):
    numbers = USABLE.findall(text)
    return numbers[-1] if numbers else ""
"""

_NORMALISE = """\
def normalise(code):
    for sign, python in SIGNS.items():
        code = code.replace(sign, python)
    code = re.sub(r"(?<=[0-9)]) *x *(?=[0-9(])", " * ", code)
    # What stands behind an equals sign is the policy's guess of the result; the calculation is what runs.
    return code.partition("=")[0].strip()
"""
