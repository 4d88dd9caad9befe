"""Plain words for a report."""

import pytest

from quintet.observe import health
from quintet.observe.health import findings
from quintet.observe.metrics import METRICS


def test_only_what_is_reported_is_judged() -> None:
    assert findings({}) == []
    assert findings({"env_steps": 1.0, "loss/total": 5.0, "policy/rho_clip_frac": 0.9}) == []
    report = {"policy/kl": 0.01, "value/explained_variance": 0.9, "normalizer/reward_std": 3.0}
    assert [(found.part, found.healthy) for found in findings(report)] == [
        ("policy", True),
        ("value function", True),
        ("normalizers", True),
    ]


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("policy/approx_kl", 0.09, "policy moves too fast: approx KL 0.09 above 0.06"),
        ("policy/kl", 0.061, "policy moves too fast: KL 0.061"),
        ("policy/clip_frac", 0.6, "policy moves too fast: 0.6 of the samples are clipped"),
        ("value/explained_variance", -0.1, "value function predicts no better"),
        ("normalizer/observation_clip_frac", 0.06, "normalizers clip 0.06 of the observations"),
        ("normalizer/reward_clip_frac", 0.06, "normalizers clip 0.06 of the rewards"),
        ("normalizer/reward_std", 0.0, "normalizers see no spread"),
    ],
)
def test_what_is_wrong_is_named(metric: str, value: float, text: str) -> None:
    assert metric in METRICS
    found = findings({metric: value, "policy/kl": value if metric == "policy/kl" else 0.01})
    wrong = [f"{each.part} {each.text}" for each in found if not each.healthy]
    assert len(wrong) == 1
    assert wrong[0].startswith(text)


def test_far_from_the_weights_of_replayed_rows_is_no_fault() -> None:
    assert findings({"policy/approx_kl": 0.5, "replay/age_mean": 40.0}) == []
    (found,) = findings({"policy/approx_kl": 0.5, "policy/kl": 0.2, "replay/age_mean": 40.0})
    assert (found.part, found.healthy) == ("policy", False)


def test_declared_metrics_only() -> None:
    for bounds in (health._POLICY, health._VALUE, health._NORMALIZERS):
        assert all(bound.metric in METRICS for bound in bounds)
        assert all(bound.unless in METRICS for bound in bounds if bound.unless)
