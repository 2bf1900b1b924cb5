"""Turns a spec into one flat harness file that holds what its pieces need and nothing else."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from whale.domains.base import packaged
from whale.domains.search_qa import snippets, wording
from whale.domains.search_qa.pieces import AXES, READING, WRAPPED

Names = Mapping[str, str]
Settings = Mapping[str, Any]


def seed_source() -> str:
    """Source of h0, which the empty spec renders to."""
    return packaged("search_qa", "seed_harness.py")


def render(pieces: Names, settings: Settings) -> str:
    """Source of the harness. pieces: axis -> name, already checked. settings: the pieces' parameters by their name."""
    return _Template(pieces, settings).source() if pieces else seed_source()


class _Template:
    def __init__(self, pieces: Names, settings: Settings) -> None:
        self.on = {axis: pieces.get(axis, "") for axis in AXES}
        self.pieces = pieces
        self.settings = settings
        self.reads = self.on["flow"] in READING
        self.writes_query = self.on["flow"] == "query_line"
        self.wrapped = self.on["form"] in WRAPPED
        self.turns = self.on["demos"] in ("turns", "single")
        self.block = self.on["demos"] == "block"
        # What a call that reads passages is given, as variables of ``attempt``.
        self.given = "question, passages" if self.reads else "question"

    def source(self) -> str:
        listing = ", ".join(f"{axis}={name}" for axis, name in self.pieces.items())
        head = f'"""A harness of the search QA domain, put together from {listing}."""\n'
        functions = self._functions()
        methods = "\n".join(textwrap.indent(method, "    ") for method in self._methods())
        body = [self._constants(), "\n\nclass Harness:\n" + methods, *("\n" + function for function in functions)]
        imports = self._imports("\n".join(body))
        return "\n".join(part for part in [head, *imports, *body] if part).rstrip() + "\n"

    def _imports(self, body: str) -> list[str]:
        lines = ["import re"] if "re.compile(" in body or "re.split(" in body else []
        if "Counter(" in body:
            lines.append("from collections import Counter")
        return ["\n".join(lines) + "\n"] if lines else []

    # ---- constants -------------------------------------------------------------------------------------------

    def _constants(self) -> str:
        lines = []
        system = self.on["system"]
        if system != "none":
            lines.append(f"SYSTEM = {snippets.quote(wording.SYSTEM[system])}")
        lines.append(f"INSTRUCTION = {snippets.quote(self._instruction())}")
        if self.on["demos"]:
            lines += ["DEMOS = [", *self._demos(), "]"]
        if self.writes_query and self.on["calls"] != "decompose":
            lines.append(f"QUERY = {snippets.quote(wording.QUERY)}")
        if self._checks_tags():
            lines.append(r'TAG = re.compile(r"<answer>\s*([^<>]*[^<>\s])\s*</answer>")')
        return "\n".join(lines)

    def _instruction(self) -> str:
        return wording.INSTRUCTIONS[self.on["form"]] + wording.UNKNOWN * (self.on["retry"] == "second_search")

    def _demos(self) -> list[str]:
        demos = wording.DEMOS[:1] if self.on["demos"] == "single" else wording.DEMOS
        lines = []
        for question, query, passage, reply in wording.demonstrations(self.on["form"], demos, self.block):
            if self.on["observe"] == "no_titles":
                passage = passage.partition("\n")[2]
            shown = (question, query, passage, reply) if self._shows_queries() else (question, passage, reply)
            lines += ["    (", *(f"        {snippets.quote(text)}," for text in shown), "    ),"]
        return lines

    def _shows_queries(self) -> bool:
        return self.writes_query and self.on["calls"] != "decompose"

    def _checks_tags(self) -> bool:
        return self.on["calls"] == "vote" or (not self.wrapped and self.on["retry"] in ("ask_for_tag", "again"))

    # ---- methods ---------------------------------------------------------------------------------------------

    def _methods(self) -> list[str]:
        methods = [self._run()]
        if self.reads:
            methods.append(self._find())
        if self._shows_queries():
            methods.append(snippets.query_messages(self.on["demos"]))
        methods += [self._messages(), self._ask()]
        if self._asks_lines():
            methods.append(snippets.LINE)
        if not self.reads:
            methods.append(snippets.observe(self._search_arguments()))
        return methods

    def _asks_lines(self) -> bool:
        return bool(
            self.on["memory"]
            or self.on["retry"] == "second_search"
            or self.on["calls"] == "confirm"
            or self.on["observe"] == "titles_first"
        )

    def _run(self) -> str:
        if self.on["calls"] != "vote":
            return "async def run(self, task, session) -> str:\n    question = task.question\n" + self._attempt() + "\n"
        return snippets.vote(self.settings["attempts"]) + "\n" + snippets.ATTEMPT + self._attempt() + "\n"

    def _attempt(self) -> str:
        lines = ["passages = await self.find(question, session)"] if self.reads else []
        if self.on["memory"]:
            lines += snippets.notes(self._search("query or question"))
        lines += [f"messages = self.messages({self.given})", "answer = await self.ask(messages, session)"]
        lines += self._retry()
        if self.on["calls"] == "confirm":
            lines += snippets.confirm(self.given)
        lines.append('return f"<answer>{answer}</answer>"' if self.wrapped else "return answer")
        return textwrap.indent("\n".join(lines), "    ")

    def _retry(self) -> list[str]:
        kind = self.on["retry"]
        if kind == "second_search":
            return snippets.second_search(self._search("query or question"))
        if not kind:
            return []
        again = (
            f"    messages = self.messages({self.given})"
            if kind == "again"
            else f'    messages.append({{"role": "user", "content": {snippets.quote(wording.TAG_NUDGE)}}})'
        )
        return [
            f"for _ in range({self.settings['times']}):",
            "    if answer:" if self.wrapped else "    if TAG.search(answer):",
            "        break",
            again,
            "    answer = await self.ask(messages, session)",
        ]

    def _search(self, query: str) -> str:
        call = f"await session.tools.search(query={query}{self._search_arguments()})"
        return f"without_titles({call})" if self.on["observe"] == "no_titles" else call

    def _search_arguments(self) -> str:
        arguments = f", top_k={self.settings['top_k']}" if self.on["depth"] else ""
        return arguments + (f", max_tokens={self.settings['max_tokens']}" if self.on["length"] else "")

    def _find(self) -> str:
        lines = []
        if self.on["calls"] == "decompose":
            lines += snippets.decompose(self._search("query"), self.writes_query, self.on["observe"] == "once")
        elif self.writes_query:
            lines += [
                "messages = self.query_messages(question)",
                'reply = await session.chat(messages, max_tokens=32, stop=["\\n"])',
                # An empty query finds nothing: then the question itself is searched for.
                f"found = {self._search('reply.text.strip() or question')}",
            ]
        else:
            lines.append(f"found = {self._search('question')}")
        lines += snippets.PICK if self.on["observe"] == "titles_first" else ["return found"]
        head = "async def find(self, question, session) -> str:\n"
        return head + textwrap.indent("\n".join(lines), "    ") + "\n"

    # ---- the call that answers -------------------------------------------------------------------------------

    def _messages(self) -> str:
        lines = [f"def messages(self, {self.given}):"]
        first = ["SYSTEM"] if self.on["system"] != "none" else []
        if self.turns:
            first.append("INSTRUCTION")  # said once, ahead of all turns
        if first:
            content = first[0] if len(first) == 1 else 'f"{SYSTEM} {INSTRUCTION}"'
            lines.append(f'    messages = [{{"role": "system", "content": {content}}}]')
        else:
            lines.append("    messages = []")
        if self.turns:
            unpacked = "asked, _, passage, reply" if self._shows_queries() else "asked, passage, reply"
            lines += [
                f"    for {unpacked} in DEMOS:",
                '        messages.append({"role": "user", "content": present(asked, passage)})',
                '        messages.append({"role": "assistant", "content": reply})',
            ]
        lines += self._last_message()
        return "\n".join([*lines, "    return messages"]) + "\n"

    def _last_message(self) -> list[str]:
        if self.block:
            unpacked = "asked, _, passage, reply" if self._shows_queries() else "asked, passage, reply"
            return [
                f'    shown = [f"{{present(asked, passage)}}\\nAnswer: {{reply}}" for {unpacked} in DEMOS]',
                '    parts = [INSTRUCTION, *shown, f"{present(question, passages)}\\nAnswer:"]',
                '    messages.append({"role": "user", "content": "\\n\\n".join(parts)})',
            ]
        text = "{present(question, passages)}" if self.reads else "{question}"
        if self.turns:
            content = "present(question, passages)"
        elif self.on["prompt"] == "instruction_first":
            content = f'f"{{INSTRUCTION}}\\n\\n{text}"'
        else:
            content = f'f"{text}\\n\\n{{INSTRUCTION}}"'
        return [f'    messages.append({{"role": "user", "content": {content}}})']

    def _ask(self) -> str:
        chat = f"await session.chat(messages{self._chat_arguments()})"
        answer = "read(reply.text)" if self._reading() else "reply.text"
        lines = ["async def ask(self, messages, session) -> str:"]
        if not self.reads:
            reminder = self.on["observe"] == "reminder"
            lines += snippets.tool_turns(self.settings.get("turns", 2) - 1, chat, answer, reminder)
        lines += [f"    reply = {chat}", "    messages.append(reply.message)", f"    return {answer}"]
        return "\n".join(lines) + "\n"

    def _chat_arguments(self) -> str:
        arguments = "" if self.reads else ', tools=["search"]'
        if self.on["stop"] == "short":
            arguments += f", max_tokens={self.settings['max_tokens_of_answer']}"
        return arguments + (', stop=["\\n"]' if self.on["stop"] == "one_line" else "")

    # ---- functions -------------------------------------------------------------------------------------------

    def _functions(self) -> list[str]:
        functions = []
        if self.reads:
            layouts = {
                "passage_first": "{passages}\\n\\nQuestion: {question}",
                "repeat_question": "Question: {question}\\n\\n{passages}\\n\\nQuestion: {question}",
            }
            layout = layouts.get(self.on["prompt"], "Question: {question}\\n\\n{passages}")
            functions.append(f'def present(question, passages):\n    return f"{layout}"\n')
        if self.on["observe"] == "no_titles":
            functions.append(snippets.WITHOUT_TITLES)
        if self._reading():
            functions.append(self._reading())
        return functions

    def _reading(self) -> str:
        """The function that takes an answer from a reply, or ``""`` where the reply is taken as it is."""
        if self.on["parse"] == "open_tag":
            return snippets.CLOSE_TAG
        if not self.wrapped:
            return ""
        text = 'text.rpartition("Answer:")[2].strip()' if self.on["form"] == "label" else "text.strip()"
        taken = {
            "first_line": '.partition("\\n")[0].strip()',
            "last_line": '.rpartition("\\n")[2].strip()',
        }.get(self.on["parse"], "")
        if self.on["parse"] == "first_clause":
            # A lone letter before the sign is an initial, not the end of a clause.
            return f'def read(text):\n    return re.split(r"(?<=\\w\\w)[.,;](?:\\s|$)|\\n", {text})[0].strip()\n'
        return f"def read(text):\n    return {text}{taken}\n"
