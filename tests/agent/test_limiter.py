"""Limits on what several jobs of one agent do at the same time."""

import asyncio

from gleaner.agent.common.limiter import Limiter


def test_no_more_than_the_number_of_slots_are_used_and_each_user_knows_how_many_there_were() -> None:
    async def play() -> None:
        slots, now, most, seen = Limiter(2), 0, 0, list[int]()

        async def user() -> None:
            nonlocal now, most
            async with slots.slot() as slot:
                now += 1
                most = max(most, now)
                await asyncio.sleep(0)
                now -= 1
            seen.append(slot.at_once)

        await asyncio.gather(*(user() for _ in range(5)))
        assert most == 2
        assert seen == [2] * 4 + [1]  # the fifth was alone
        await user()
        assert seen[-1] == 1

    asyncio.run(play())
