"""The page's data and colours: columns as the points have them, safe inside a script, told apart by any eyes."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import synthetic

from analysis.page.payload import PALETTE, payload, rounded, script_json
from analysis.trajectories import line_numbers

MACHADO = {
    "normal": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
"""Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB."""
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
GROUNDS = {"light": "#ffffff", "dark": "#14171b"}
APART, CONTRAST = 15.0, 3.0
"""CIELAB distance that small marks need to be told apart; WCAG 2.1's contrast for graphics (1.4.11)."""


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    ratio = TO_XYZ @ np.clip(rgb, 0, 1) / (TO_XYZ @ np.ones(3))
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(one: str, other: str, eyes: str) -> float:
    matrix = MACHADO[eyes]
    return float(np.linalg.norm(lab(matrix @ linear(one)) - lab(matrix @ linear(other))))


def test_distance_is_that_of_the_definition() -> None:
    """Black and white are 100 apart; red and green of equal looks for a deutan are not for others."""
    assert distance("#000000", "#ffffff", "normal") == pytest.approx(100, abs=0.01)
    assert distance("#a83232", "#5f6b32", "deutan") < distance("#a83232", "#5f6b32", "normal") / 2


@pytest.mark.parametrize("theme", PALETTE)
@pytest.mark.parametrize("eyes", MACHADO)
def test_phases_are_told_apart(theme: str, eyes: str) -> None:
    for one, other in combinations(PALETTE[theme].values(), 2):
        assert distance(one, other, eyes) > APART, (one, other)


@pytest.mark.parametrize("theme", PALETTE)
def test_phases_stand_out_from_the_ground(theme: str) -> None:
    ground = float(TO_XYZ[1] @ linear(GROUNDS[theme]))
    for colour in PALETTE[theme].values():
        dark, bright = sorted([ground, float(TO_XYZ[1] @ linear(colour))])
        assert (bright + 0.05) / (dark + 0.05) > CONTRAST, colour


def test_json_ends_no_script() -> None:
    value = {"name": "</script><!--&\u2028\u2029"}
    text = script_json(value)
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == value


@pytest.mark.parametrize(
    ("value", "told"),
    [(float("nan"), None), (float("inf"), None), (3.0, 3), (1234567.0, 1234570), (0.12345678, 0.123457)],
)
def test_numbers_are_short_and_never_nan(value: float, told: float | None) -> None:
    assert rounded(value) == told


def test_columns_hold_every_point(tmp_path: Path) -> None:
    """M = 1, 16 and 64 share a line, another dtype and an attention have none; what is not told is null."""
    rows = [synthetic.matmul("one", m) for m in (64, 1, 16)]
    rows += [synthetic.matmul("one", 1, dtype="float16"), synthetic.attention("one", 1, 1, 256)]
    points, devices = synthetic.classified(tmp_path, (synthetic.H100, rows))
    made = payload(points, devices)
    assert made["count"] == 5 and {len(column) for column in made["columns"].values()} == {5}
    assert made["columns"]["M"] == [64, 1, 16, 1, None]
    codes = made["codes"]["dtype"]
    assert [codes["values"][code] for code in codes["codes"]] == ["bfloat16"] * 3 + ["float16", "bfloat16"]
    line = line_numbers(points).tolist()
    assert line[0] == line[1] == line[2] >= 0 and line[3:] == [-1, -1]
    assert [kind["kind"] for kind in made["devices"][0]["sets"]] == ["datasheet"]
    assert json.loads(script_json(made))["count"] == 5
