"""The card of a trained policy, ``policy/README.md``: its environment, score, use and options, with
a header of YAML that model hubs read.
"""

from collections.abc import Mapping
from typing import Any

from quintet.options.run import RunConfig
from quintet.run.evaluations import EVALUATION_SEED
from quintet.system import files, provenance

OWN = ("run_dir", "init_from", "resume", "cluster.address")
"""Options that name places on this machine or network, or the way to a run."""


def card(config: RunConfig, report: Mapping[str, float], prefix: str = "") -> str:
    """The card's text.

    config: the resolved configuration; report: the run's last report; prefix: of the policy's
    metrics in it.
    """
    own = {k.removeprefix(prefix): x for k, x in report.items() if k.startswith(prefix)}
    env_id, score = config.env.id, _score(config, own)
    absent = "not known" if config.eval.episodes else "not evaluated (`eval.episodes 0`)"
    options = {k: x for k, x in sorted(config.flat().items()) if k not in OWN}
    rows = {
        "learner": config.algo,
        "environment": f"`{env_id}` (backend {config.env.backend})",
        "env_steps": f"{report.get('env_steps', 0.0):,.0f} of {config.total_env_steps:,}",
        "score": score or absent,
        "seed": str(config.seed),
        "quintet": provenance.own_version(),
    }
    table = "\n".join(f"| {name} | {text} |" for name, text in rows.items())
    return f"""---
{files.dump_yaml(_header(config, own), sort_keys=False)}---

# {config.algo} on {env_id}

| | |
|---|---|
{table}

## Use

```python
import quintet

policy = quintet.load("policy")  # this folder
action, state = policy.act(observation)
```

`quintet eval policy --episodes 100` plays it, `quintet export policy --out DIR` takes it out of
quintet, as ONNX for instance.

## Configuration

```yaml
{files.dump_yaml(options, sort_keys=False)}```
"""


def _header(config: RunConfig, own: Mapping[str, float]) -> dict[str, Any]:
    """The card's metadata for a model hub, with the evaluation's return if there is one."""
    env_id = str(config.env.id)  # exactly, since YAML takes no subclass
    header: dict[str, Any] = {
        "library_name": "quintet",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "deep-reinforcement-learning", config.algo, env_id],
    }
    if "eval/return_mean" not in own:
        return header
    played = str(config.eval_env.id or env_id)
    value = f"{own['eval/return_mean']:.2f} +/- {own.get('eval/return_std', 0.0):.2f}"
    result = {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"name": played, "type": played},
        "metrics": [
            {"type": "mean_reward", "value": value, "name": "mean_reward", "verified": False}
        ],
    }
    header["model-index"] = [{"name": f"{config.algo}-{env_id}", "results": [result]}]
    return header


def _score(config: RunConfig, own: Mapping[str, float]) -> str:
    """The score of the run's last evaluation, and how it was measured; "" without one."""
    if "eval/return_mean" not in own:
        return ""
    from quintet.observe.intervals import fraction_interval

    mean, count = own["eval/return_mean"], own.get("eval/episodes", 0.0)
    text = f"mean return {mean:,.2f}{_interval(own)}"
    if "eval/success_rate" in own:
        low, high = fraction_interval(own["eval/success_rate"], max(count, 1.0))
        text += (
            f", {100 * own['eval/success_rate']:.0f}% won (95% interval {100 * low:.0f}% to "
            f"{100 * high:.0f}%)"
        )
    how = "greedy" if config.eval.greedy else "sampled"
    text += (
        f" over {count:,.0f} whole episodes of {how} actions, raw rewards, seeds from "
        f"{EVALUATION_SEED:,} on, at the end of the training"
    )
    if config.eval_env.id:
        text += f", in `{config.eval_env.id}`"
    if own.get("eval/cut_episodes", 0.0) > 0:
        text += f"; {own['eval/cut_episodes']:,.0f} were cut at the step limit"
    return text


def _interval(own: Mapping[str, float]) -> str:
    """The interval of the mean return, in brackets; "" for one episode."""
    count = own.get("eval/episodes", 0.0)
    if count < 2:
        return ""
    from quintet.observe.intervals import fraction_interval, mean_interval

    names = ("return_mean", "return_std", "return_min", "return_max")
    mean, std, least, most = (own.get(f"eval/{name}", 0.0) for name in names)
    found = mean_interval(mean, std, least, most, count)
    if found is not None:
        return f" (95% interval {found[0]:,.2f} to {found[1]:,.2f})"
    other = 100 * fraction_interval(0.0, count)[1]
    return (
        f" (all {count:,.0f} returns are equal, so there is no interval; with 95% confidence at "
        f"most {other:.0f}% of episodes have another return)"
    )
