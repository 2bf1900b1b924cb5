"""Parts of rendered harnesses that are the same wherever they occur, as lines or whole methods."""

from __future__ import annotations

import json

from whale.domains.search_qa import wording


def quote(text: str) -> str:
    """``text`` as a Python literal."""
    return json.dumps(text, ensure_ascii=False)


LINE = """\
async def line(self, text, session) -> str:
    reply = await session.chat([{"role": "user", "content": text}], max_tokens=48, stop=["\\n"])
    return reply.text.strip()
"""
"""A side question that is answered in one line."""

ATTEMPT = "async def attempt(self, question, session) -> str:\n"

PICK = [
    'blocks = found.split("\\n\\n")',
    'titles = "\\n".join(block.partition("\\n")[0] for block in blocks)',
    f'number = await self.line(f"Question: {{question}}\\n\\n{{titles}}\\n\\n{wording.PICK}", session)',
    "picked = [block for block in blocks if block.startswith(f\"[{number.strip('[]. ')}] \")]",
    'return "\\n\\n".join(picked or blocks)',
]
"""The policy names the passage to be shown; all are shown where it names none."""

WITHOUT_TITLES = """\
def without_titles(found):
    blocks = found.split("\\n\\n")
    return "\\n\\n".join(block.partition("\\n")[2] or block for block in blocks)
"""

CLOSE_TAG = """\
def read(text):
    before, tag, answer = text.rpartition("<answer>")
    if not tag or "</answer>" in answer:
        return text
    line = answer.strip().partition("\\n")[0]
    return f"{before}<answer>{line}</answer>"
"""


def vote(attempts: int) -> str:
    """``run`` that returns the answer most attempts give."""
    return f"""\
async def run(self, task, session) -> str:
    answers = [await self.attempt(task.question, session) for _ in range({attempts})]
    usable = [found[-1] for answer in answers if (found := TAG.findall(answer))]
    return f"<answer>{{Counter(usable).most_common(1)[0][0]}}</answer>" if usable else answers[0]
"""


def query_messages(demos: str) -> str:
    """The messages that ask for a query, with the demonstrations' queries in the given kind."""
    lines = ["def query_messages(self, question):"]
    if demos in ("turns", "single"):
        lines += [
            '    messages = [{"role": "system", "content": QUERY}]',
            "    for asked, query, _, _ in DEMOS:",
            '        messages.append({"role": "user", "content": f"Question: {asked}"})',
            '        messages.append({"role": "assistant", "content": query})',
            '    messages.append({"role": "user", "content": f"Question: {question}"})',
            "    return messages",
        ]
    elif demos == "block":
        lines += [
            '    shown = [f"Question: {asked}\\nQuery: {query}" for asked, query, _, _ in DEMOS]',
            '    text = "\\n\\n".join([QUERY, *shown, f"Question: {question}\\nQuery:"])',
            '    return [{"role": "user", "content": text}]',
        ]
    else:
        lines.append('    return [{"role": "user", "content": f"Question: {question}\\n\\n{QUERY}"}]')
    return "\n".join(lines) + "\n"


def decompose(search: str, queries_alone: bool, once: bool) -> list[str]:
    """Lines of ``find`` that search for every query the policy writes. queries_alone: the question itself is only
    searched for where the policy writes none."""
    queries = "queries or [question]" if queries_alone else "[question, *queries]"
    lines = [
        f'asked = [{{"role": "user", "content": f"Question: {{question}}\\n\\n{wording.PARTS}"}}]',
        "reply = await session.chat(asked, max_tokens=64)",
        "queries = [line.strip() for line in reply.text.splitlines() if line.strip()][:3]",
        f"texts = [{search} for query in {queries}]",
    ]
    if not once:
        return [*lines, 'found = "\\n\\n".join(texts)']
    return [
        *lines,
        'blocks = [block for text in texts for block in text.split("\\n\\n")]',
        'different = {block.partition("\\n")[2]: block for block in reversed(blocks)}',
        'found = "\\n\\n".join(reversed(different.values()))',
    ]


def notes(search: str) -> list[str]:
    """Lines that replace the passages by a note on them and the passages of a second search."""
    return [
        'shown = f"Question: {question}\\n\\n{passages}"',
        f'note = await self.line(f"{{shown}}\\n\\n{wording.NOTE}", session)',
        f'query = await self.line(f"Question: {{question}}\\nKnown: {{note}}\\n\\n{wording.NEXT_QUERY}", session)',
        f"found = {search}",
        'passages = f"Known: {note}\\n\\n{found}"',
    ]


def second_search(search: str) -> list[str]:
    """Lines that search once more, with a query of the policy's, after a reply of ``unknown``."""
    return [
        'if "unknown" in answer.lower() or not answer.strip():',
        f'    query = await self.line(f"Question: {{question}}\\n\\n{wording.QUERY}", session)',
        f"    passages = {search}",
        "    messages = self.messages(question, passages)",
        "    answer = await self.ask(messages, session)",
    ]


def confirm(given: str) -> list[str]:
    """Lines that ask the policy about its own answer. given: the variables its question was put with."""
    shown = "present(question, passages)" if "passages" in given else 'f"Question: {question}"'
    return [
        f"shown = {shown}",
        'asked = f"{shown}\\n\\nProposed answer: {answer}\\nIs it right? Reply yes or no."',
        "verdict = await self.line(asked, session)",
        'if verdict.lower().startswith("no"):',
        f"    answer = await self.ask(self.messages({given}), session)",
    ]


def tool_turns(turns: int, chat: str, answer: str, reminder: bool) -> list[str]:
    """Lines of ``ask`` for up to ``turns`` replies that call the tool. chat, answer: expressions."""
    content = 'f"{seen}\\n\\n{INSTRUCTION}"' if reminder else "seen"
    return [
        f"    for _ in range({turns}):",
        f"        reply = {chat}",
        "        messages.append(reply.message)",
        "        if not reply.tool_calls:",
        f"            return {answer}",
        "        for call in reply.tool_calls:",
        "            seen = await self.observe(call, session)",
        f'            messages.append({{"role": "tool", "content": {content}, "tool_call_id": call.id}})',
    ]


def observe(arguments: str) -> str:
    """The method that runs a tool call. arguments: added to those of the policy."""
    return f"""\
async def observe(self, call, session) -> str:
    if call.error:
        return call.error
    if call.name != "search" or "query" not in call.arguments:
        return "The only tool is search(query)."
    return await session.tools.search(query=str(call.arguments["query"]){arguments})
"""
