"""h0 of the search QA domain: the question with the answer-tag instruction, and one tool that returns a passage."""

SYSTEM = "You answer questions with the help of a search tool."
INSTRUCTION = "Put your final answer between <answer> and </answer>."


class Harness:
    async def run(self, task, session) -> str:
        messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"{task.question}\n\n{INSTRUCTION}"},
        ]
        reply = await session.chat(messages, tools=["search"])
        if not reply.tool_calls:
            return reply.text
        messages.append(reply.message)
        for call in reply.tool_calls:
            messages.append({"role": "tool", "content": await self.observe(call, session), "tool_call_id": call.id})
        reply = await session.chat(messages, tools=["search"])
        return reply.text

    async def observe(self, call, session) -> str:
        if call.error:
            return call.error
        if call.name != "search" or "query" not in call.arguments:
            return "The only tool is search(query)."
        return await session.tools.search(query=str(call.arguments["query"]))


# mypy: ignore-errors
