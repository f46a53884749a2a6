"""Plots of the pages: an even rate looks even, and every plot can be read on a narrow screen."""

from __future__ import annotations

import re

import pytest

from stantools.pages.plots import BarChart, plot, sparkline


def test_an_even_rate_has_even_bars() -> None:
    every_places: list[int] = [24, 47, 48, 49, 60, 100, 173, 240]
    eachs: list[int] = [1, 3, 1000]
    for places in every_places:
        for each in eachs:
            drawn = sparkline(dict.fromkeys(range(places), each), places)
            heights = [float(height) for height in re.findall(r"v-([\d.]+)h", drawn)]
            assert heights, (places, each)
            assert min(heights) == max(heights), heights


@pytest.mark.parametrize("places", [30, 240])
def test_all_messages_are_drawn(places: int) -> None:
    """The first and the last place have their bars, and silence has none."""
    drawn = sparkline({0: 500, places - 1: 500}, places)
    starts = [float(start) for start in re.findall(r"M([\d.]+) ", drawn)]
    assert starts[0] == 0
    assert starts[-1] > 96 - 96 / 12
    assert len(starts) <= 4


def test_a_broad_plot_is_also_drawn_for_narrow_screens() -> None:
    panels = [BarChart("messages", dict.fromkeys(range(240), 5))]
    both = plot(panels, 240, [(place, f"{place}") for place in range(0, 240, 20)])
    broad, narrow = re.findall(r'<svg class="plot (?:broad|narrow)" viewBox="0 0 (\d+) .*?</svg>', both)
    assert int(narrow) <= 460 < int(broad)
    assert both.count("<text") > 12 + 4
    assert len(re.findall("broad|narrow", plot(panels, 240, [], width=460))) == 0
