"""Captured graphs for AMD's driver are short, and their results are compared with launches before their first use."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.contrib.nodes import RUNTIME
from tests.provider.graph_cases import NODES
from tests.provider.stand_in import StandIn

DIFFERS = "gave other results than its launches"


@pytest.fixture(scope="module")
def graphs(gpu: StandIn) -> StandIn:
    return replace(gpu, module="tests.provider.graph_cases")


@pytest.mark.parametrize(
    ("driver", "arch", "options", "most"),
    [("hip", "gfx1100", {}, 150), ("hip", "gfx1100", {"graph_nodes": 7}, 7), ("cuda", "sm_90", {}, NODES)],
)
def test_a_long_region_is_several_graphs(
    driver: str, arch: str, options: dict[str, int], most: int, graphs: StandIn
) -> None:
    outcome = graphs.run("runs", arch, driver, STAND_IN_OPTIONS=json.dumps(options))
    found = outcome.value
    assert found["error"] < 1e-6 and found["refused"] == 0, found
    assert found["most_nodes"] == most and found["replayed"] > 0 and found["copied"] > 0, found
    assert DIFFERS not in outcome.said


@pytest.mark.parametrize("replay", ["drops", "remembers"])
def test_a_graph_that_differs_from_its_launches_is_not_used(replay: str, graphs: StandIn) -> None:
    """A graph that lost its last node leaves NaN in the output, or repeats the results of an earlier launch."""
    outcome = graphs.run("runs", STAND_IN_REPLAY=replay)
    found = outcome.value
    assert found["error"] < 1e-6, found
    assert found["captured"] == 1 and found["replayed"] == found["copied"] == 0, found
    assert outcome.said.count(DIFFERS) == 1


@pytest.mark.parametrize(("version", "captures"), [("70253210", False), ("70253213", False), ("70253214", True)])
def test_versions_whose_graphs_corrupt_results_do_not_capture(version: str, captures: bool, graphs: StandIn) -> None:
    found = graphs.run("runs", STAND_IN_HIP_VERSION=version).value
    assert found["error"] < 1e-6 and (found["captured"] > 0) == captures, found


def test_the_option_capture_enables_graphs(graphs: StandIn) -> None:
    more = {"STAND_IN_HIP_VERSION": "70253210", "STAND_IN_OPTIONS": json.dumps({"capture": 1})}
    assert graphs.run("runs", **more).value["captured"] > 0


def test_a_cache_bound_as_past_and_present_is_not_copied(graphs: StandIn) -> None:
    outcome = graphs.run("appends_in_place")
    found = outcome.value
    assert found["error"] < 1e-5 and found["in_place"], found
    assert found["replayed"] >= 2 and found["copied"] >= 2 and found["refused"] == 0, found
    assert DIFFERS not in outcome.said


WINDOWED = pytest.param("windowed", marks=pytest.mark.skipif(RUNTIME < (1, 32), reason="not in the schema"))


@pytest.mark.parametrize("mask", ["fixed", "grows", WINDOWED])
def test_tokens_of_a_decoder_are_replays(mask: str, graphs: StandIn) -> None:
    """Ten runs of two regions. One computes lengths from the mask. The plan of the other is valid for any length."""
    outcome = graphs.run("generates_in_place", STAND_IN_MASK=mask)
    found = outcome.value
    assert found["same"] and found["compiled"] == 2 and found["refused"] == 0, found
    # One region has a plan for the prompt, one for the first token, and one for the first token that evicts one from a
    # windowed cache. The region that computes lengths has a plan for each shape of the mask.
    plans = {"fixed": 3, "grows": 12, "windowed": 13}[mask]
    assert found["planned"] == found["launched"] == plans, found
    assert found["replayed"] + found["copied"] == 2 * 10 - plans, found
    assert DIFFERS not in outcome.said
