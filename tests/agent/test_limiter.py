"""Limits on what several jobs of one agent do at the same time."""

import asyncio

from gleaner.agent.common.limiter import Limiters


def test_no_more_than_the_number_of_lanes_are_used_and_each_user_knows_how_many_there_were() -> None:
    async def play() -> None:
        lanes, now, most, seen = Limiters(2), 0, 0, list[int]()

        async def user() -> None:
            nonlocal now, most
            async with lanes.one() as lane:
                now += 1
                most = max(most, now)
                await asyncio.sleep(0)
                now -= 1
            seen.append(lane.at_once)

        await asyncio.gather(*(user() for _ in range(5)))
        assert most == 2
        assert seen == [2] * 4 + [1]  # the fifth was alone
        await user()
        assert seen[-1] == 1

    asyncio.run(play())
