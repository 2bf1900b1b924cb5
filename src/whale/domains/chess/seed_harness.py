"""h0 of the chess domain: the position with all legal moves, one move in tags, a short nudge after a slip."""

import json
import re

INSTRUCTION = "Reply with one legal move in UCI notation, as <move>uci</move>."
SYSTEM = f"You solve chess puzzles. Find the best move for the side to move. {INSTRUCTION}"
MOVE = re.compile(r"<move>\s*([^<>\s]+)\s*</move>")


def show(seen):
    own = [move["uci"] for move in seen["own_moves"]]
    legal = [f"{move['uci']} ({move['san']})" for move in seen["legal"]]
    return "\n".join([
        f"Side to move: {seen['turn']}",
        f"FEN: {seen['fen']}",
        f"Board:\n{seen['board']}",
        f"Opponent's last move: {seen['last_move']}",
        f"Your moves so far: {', '.join(own) or 'none'}",
        f"Legal moves: {', '.join(legal)}",
    ])


class Harness:
    async def run(self, task, session) -> str:
        seen = json.loads(await session.tools.observe())
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": show(seen)}]
        for _ in range(9):
            reply = await session.chat(messages)
            messages.append(reply.message)
            found = MOVE.findall(reply.text)
            result = await session.tools.move(uci=found[-1] if found else "")
            seen = json.loads(await session.tools.observe())
            if seen["status"] != "playing":
                break
            if not result.startswith("Error"):
                content = show(seen)
            elif result.startswith("Error: illegal"):
                content = f"That move is not legal. {INSTRUCTION}"
            else:
                content = f"No move could be read. {INSTRUCTION}"
            messages.append({"role": "user", "content": content})
        return " ".join(move["uci"] for move in seen["own_moves"]) or seen["status"]


# mypy: ignore-errors
