"""A flag is set once, wakes its waiters in order, and keeps none that gave up."""

import asyncio
from contextlib import suppress

from interlock.agent.flag import Flag


def test_waiters_wake_in_the_order_in_which_they_came() -> None:
    """Tasks that wait for a flag go on in their order when it is set, and a later one does not wait."""
    woken: list[int] = []

    async def main() -> None:
        flag = Flag()

        async def waits(number: int) -> None:
            await flag.wait()
            woken.append(number)

        tasks = [asyncio.create_task(waits(number)) for number in range(3)]
        await asyncio.sleep(0)
        assert not flag.is_set() and woken == []
        flag.set()
        flag.set()
        assert flag.is_set() and woken == []
        await asyncio.gather(*tasks)
        await waits(3)

    asyncio.run(main())
    assert woken == [0, 1, 2, 3]


def test_a_waiter_that_is_cancelled_leaves_the_flag() -> None:
    """A flag that is never set does not keep the waiters that gave up, and the others still wake."""

    async def main() -> None:
        flag = Flag()
        first, second = (asyncio.create_task(flag.wait()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        with suppress(asyncio.CancelledError):
            await first
        assert flag._waiters is not None and len(flag._waiters) == 1
        flag.set()
        await second

    asyncio.run(main())


def test_a_waiter_that_is_cancelled_in_the_step_of_the_setting_is_cancelled() -> None:
    """A cancel and the setting of a flag in one step are no error, and the cancel is not lost."""

    async def main() -> None:
        flag = Flag()
        task = asyncio.create_task(flag.wait())
        await asyncio.sleep(0)
        task.cancel()
        flag.set()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(main())
