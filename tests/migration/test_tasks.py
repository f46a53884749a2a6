"""Work on several things at once: what is interrupted cleans up, all of it."""

from __future__ import annotations

import asyncio

import pytest

from stantools.migration.tasks import in_parallel


def test_results_are_in_order() -> None:
    async def work(number: int) -> int:
        await asyncio.sleep(0.01 * (3 - number))
        return number

    assert asyncio.run(in_parallel(work, [0, 1, 2, 3], 2)) == [0, 1, 2, 3]


@pytest.mark.parametrize("fails", [False, True], ids=["interrupted", "one fails"])
def test_whoever_is_cancelled_has_time_to_clean_up(fails: bool) -> None:
    """Also while others end at once, as those do that were not even begun."""
    began: list[int] = []
    cleaned: list[int] = []

    async def work(number: int) -> None:
        began.append(number)
        if fails and number == 1:
            await asyncio.sleep(0.02)
            raise ValueError
        try:
            await asyncio.sleep(60)
        finally:
            for _ in range(5):
                await asyncio.sleep(0.005 * (1 + number))
            cleaned.append(number)

    async def main() -> None:
        working = asyncio.ensure_future(in_parallel(work, list(range(10)), 3))
        await asyncio.sleep(0.01)
        if not fails:
            working.cancel()
        with pytest.raises(ValueError if fails else asyncio.CancelledError):
            await working

    asyncio.run(main())
    assert sorted(cleaned) == [number for number in sorted(began) if not (fails and number == 1)]
    assert len(began) >= 3
