"""The code that rendered harnesses are put together from, by the piece that wants it."""

from __future__ import annotations

from typing import NamedTuple


class View(NamedTuple):
    """What is shown of a position, above the legal moves: fields of the observation, and expressions of lines."""

    fields: tuple[str, ...]
    lines: tuple[str, ...]


_TURN = "f\"Side to move: {seen['turn']}\""
_FEN = "f\"FEN: {seen['fen']}\""
_BOARD = "f\"Board:\\n{seen['board']}\""
_LAST = "f\"Opponent's last move: {seen['last_move']}\""
_OWN = '"Your moves so far: " + (", ".join(move[\'uci\'] for move in seen["own_moves"]) or "none")'

VIEWS = {
    "": View(("turn", "fen", "board", "last_move", "own_moves"), (_TURN, _FEN, _BOARD, _LAST, _OWN)),
    "list_only": View((), ()),
    "fen": View(("fen",), (_FEN,)),
    "drawing": View(("turn", "board"), (_TURN, _BOARD)),
    "squares": View(("turn", "fen", "last_move"), (_TURN, "squares(seen['fen'])", _LAST)),
}

PIECE_NAMES = 'PIECES = {"K": "King", "O": "King", "Q": "Queen", "R": "Rook", "B": "Bishop", "N": "Knight"}'

ARRANGE = {
    "shuffled": """\
def arrange(seen):
    random.shuffle(seen["legal"])
    return seen
""",
    "alphabetical": """\
def arrange(seen):
    # By piece and square alone: the x of captures would otherwise put these last.
    seen["legal"].sort(key=lambda move: move["san"].replace("x", ""))
    return seen
""",
}

UNPACK = """\
def unpack(demo):
    words = demo["legal"].split()
    moves = [{"uci": uci, "san": san} for uci, san in zip(words[::2], words[1::2])]
    return {**demo, "legal": moves}
"""

LISTING_BY_PIECE = """\
def listing(seen):
    groups = {{}}
    for {each}:
        name = PIECES.get(move["san"][0], "Pawn") + " " + move["uci"][:2]
        groups.setdefault(name, []).append({item})
    return "\\n".join(name + ": " + "{between}".join(items) for name, items in groups.items())
"""

SQUARES = """\
def squares(fen):
    sides = {"White": [], "Black": []}
    for rank, row in zip("87654321", fen.split()[0].split("/")):
        for digit in "12345678":
            row = row.replace(digit, "." * int(digit))
        for file, sign in zip("abcdefgh", row):
            if sign != ".":
                sides["White" if sign.isupper() else "Black"].append(sign.upper() + file + rank)
    return "\\n".join(side + ": " + " ".join(found) for side, found in sides.items())
"""

PLAIN = """\
def plain(text):
    return text.strip(" \\n\\t.,;:!?*`'\\"()").rstrip("+#")
"""

NAMES = {
    "san": 'def names(seen):\n    return {plain(move["san"]): move["uci"] for move in seen["legal"]}\n',
    "uci": 'def names(seen):\n    return {move["uci"]: move["uci"] for move in seen["legal"]}\n',
    "number": """\
def names(seen):
    return {str(number): move["uci"] for number, move in enumerate(seen["legal"], 1)}
""",
}

READ_WHOLE = """\
def read(text, seen):
    word = plain(text)
    return names(seen).get(word, word)
"""

READ_WORD = """\
def read(text, seen):
    known = names(seen)
    words = [word for word in map(plain, text.split()) if word in known]
    return known[words[{place}]] if words else plain(text)
"""

NUDGE = """\
def nudge(result):
    if result.startswith("Error: illegal"):
        return f"That move is not legal. {INSTRUCTION}"
    return f"No move could be read. {INSTRUCTION}"
"""

RUN = """\
async def run(self, task, session) -> str:
    seen = {look}{story}
    messages = self.opening(seen)
    for _ in range({turns}):
        move = await self.{choose}(messages, seen, session)
        result = await session.tools.move(uci=move)
        now = {look}
        if now["status"] != "playing":
            break
        if result.startswith("Error"):
{slip}
            continue
        seen = now
{following}
    return " ".join(move["uci"] for move in now["own_moves"]) or now["status"]
"""

_NUDGED = 'messages.append({"role": "user", "content": nudge(result)})'

SLIPS = {
    "": _NUDGED,
    "patient": _NUDGED,
    "again": "messages.pop()",
    "explain": """\
content = result.removeprefix("Error: ") + ". " + INSTRUCTION
messages.append({"role": "user", "content": content})""",
    "show_moves": """\
content = nudge(result) + "\\nLegal moves: " + listing(seen)
messages.append({"role": "user", "content": content})""",
}
"""What happens after a text that was no legal move."""

FOLLOWING = {
    "": 'messages.append({"role": "user", "content": show(seen)})',
    "fresh": "messages = self.opening(seen)",
    "notes": """\
story.append(f"you {seen['own_moves'][-1]['uci']}, opponent {seen['last_move']}")
messages = self.opening(seen)
messages[-1]["content"] = "So far: " + ", ".join(story) + "\\n\\n" + messages[-1]["content"]""",
}
"""What happens after a right move."""

DECIDE = """\
async def decide(self, messages, seen, session):
    move = await self.ask(messages, seen, session)
"""

CONFIRM = """\
    question = f"{show(seen)}\\n\\nProposed move: {move}\\nIs it the best move? Reply yes or no."
    verdict = await session.chat([{"role": "user", "content": question}], max_tokens=4)
    if verdict.text.strip().lower().startswith("no"):
        messages.pop()
        move = await self.ask(messages, seen, session)
"""

PATIENT = """\
    for _ in range({times}):
        if any(move == known["uci"] for known in seen["legal"]):
            break
        messages.append({{"role": "user", "content": f"That is no legal move. {{INSTRUCTION}}"}})
        move = await self.ask(messages, seen, session)
"""

ASK = """\
async def ask(self, messages, seen, session):
    reply = await session.chat(messages{arguments})
    messages.append(reply.message)
    return read(reply.text, seen)
"""

ASK_VOTE = """\
async def ask(self, messages, seen, session):
    replies = await asyncio.gather(*(session.chat(messages{arguments}) for _ in range({attempts})))
    moves = [read(reply.text, seen) for reply in replies]
    named = [move for move in moves if move]
    choice = max(named, key=named.count) if named else ""
    messages.append(replies[moves.index(choice)].message)
    return choice
"""

ASK_THOUGHT = """\
async def ask(self, messages, seen, session):
    question = f"{{show(seen)}}\\n\\n{question}"
    thought = await session.chat([{{"role": "user", "content": question}}], max_tokens=48, stop=["\\n"])
    content = f"{label}: {{thought.text.strip()}}\\n\\n{{messages[-1]['content']}}"
    reply = await session.chat([*messages[:-1], {{"role": "user", "content": content}}]{arguments})
    messages.append(reply.message)
    return read(reply.text, seen)
"""
