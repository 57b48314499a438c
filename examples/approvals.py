"""A tool that a person must allow, a question to a person, and a question that is open when the run is stopped."""

import asyncio

from interlock import Control, Denied, Message, QuestionClosed, Run, events, open_control, tool


@tool(approval="ask")
async def refund(amount: int) -> str:
    """Move money, which happens only if a person has said yes."""
    return f"refunded {amount}"


async def assistant(run: Run, message: Message) -> str:
    """Refund, if allowed; then ask how to tell the customer."""
    try:
        done = await run.call(refund, amount=40)
    except Denied as refusal:
        return str(refusal)
    return f"{done}, told by {await run.ask('Tell the customer how?', choices=['mail', 'phone'])}"


async def answer(control: Control, run_id: str, answers: list[bool | str]) -> str:
    """Answer a run's questions as they come, as long as there are answers; return the last question."""
    async for event in control.watch(run=run_id):
        if isinstance(event.data, events.QuestionData) and event.data.state == "open":
            last = event.data.question_id
            if not answers:
                break
            print(f"{event.data.text} {answers[0]}")
            await control.answer(last, answers.pop(0))
    return last


async def main() -> None:
    """Say yes, say no, and stop while the question is open."""
    async with open_control(assistant) as control:
        for answers in ([True, "mail"], [False], []):
            sent = await control.send("desk", "the parcel never came")
            question = await answer(control, sent.run_id, answers)
            print("->", (await control.wait(sent.run_id, timeout=0)).text or "no answer yet")
        print("-> stopped, questions void:", (await control.stop(session="desk")).questions)
        try:
            await control.answer(question, True)  # a person clicks Allow, too late
        except QuestionClosed as refusal:
            print(f"Allow, too late: {refusal}")


if __name__ == "__main__":
    asyncio.run(main())
