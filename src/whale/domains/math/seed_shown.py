"""h0 of the math domain for small models: the boxed-answer instruction, shown once, and one tool that runs Python."""

INSTRUCTION = "Put your final answer within \\boxed{}."
EXAMPLE = ("What is 6 + 3?", "\\boxed{9}")


class Harness:
    async def run(self, task, session) -> str:
        question, answer = EXAMPLE
        messages = [
            {"role": "user", "content": f"{question}\n\n{INSTRUCTION}"},
            {"role": "assistant", "content": answer},
            {"role": "user", "content": f"{task.problem}\n\n{INSTRUCTION}"},
        ]
        reply = await session.chat(messages, tools=["code_interpreter"])
        if not reply.tool_calls:
            return reply.text
        messages.append(reply.message)
        for call in reply.tool_calls:
            messages.append({"role": "tool", "content": await self.observe(call, session), "tool_call_id": call.id})
        reply = await session.chat(messages, tools=["code_interpreter"])
        return reply.text

    async def observe(self, call, session) -> str:
        if call.error:
            return call.error
        if call.name != "code_interpreter" or "code" not in call.arguments:
            return "The only tool is code_interpreter(code)."
        return await session.tools.code_interpreter(code=str(call.arguments["code"]))


# mypy: ignore-errors
