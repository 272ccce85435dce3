"""How far the simulator's two bars, 0.98 of the best fixed width and 4 plain steps of regret, go together.

    python benchmarks/spec_oracle.py --verdicts results/FOLDER/equal-1.json --out results/FOLDER/oracle.json

Two figures, both for a policy that has nothing to learn, so that what it misses no controller has to reach:

- `ruin`, by text and cost table, one request alone, without passages: the policy knows the text's chances
  and stops only where its account cannot pay for a further step. `ruined` and `misses`: it verifies the best
  width from its first step on; the share whose account runs out, and the share that then ends under 0.98 of
  that width, since so much of the answer was left that its gain is over 2 % in all. `least_misses`: the same
  where it may change the width with what is left in the account, chosen for the least ruin. Waiting helps no
  policy: a plain step neither costs nor gains, and the draws do not depend on when they are taken. Exact, by
  the distribution of the account after each step; remainders of answers are taken at their mean.
- `traces`, for each verdict under 0.98 (without the lures, which no rule can follow): the best fixed width in
  hindsight under that same account, on the very trace. Under 0.98 here, the regret bound alone forbids it.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sgl_ext.speculation import published_costs
from sgl_ext.speculation.cost_table import CostTable
from sgl_ext.speculation.generate_traces import Text, draw_trace
from sgl_ext.speculation.simulate import FixedWidth, Running, run_policy
from sgl_ext.speculation.trace_recipes import ALL_RECIPES, LONG

LIMIT, OVER_BEST = 4, 0.98  # plain steps; the bar
_UNITS = 256  # parts of a plain step in which the account is followed
_SAFE = 24  # an account that holds so much is taken as never ruined, which only favours the policy
_TABLES = {
    "tp4-profile": published_costs.tp4_profile(),
    "tp4-tuned": published_costs.tp4_tuned(),
    "tp3": published_costs.tp3(),
    "steep": published_costs.steep(),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--verdicts", type=Path, action="append", default=[], help="of spec_simulator.py")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    ruin = [
        {"text": recipe.name, "table": name, **_ruin_of(recipe.phases[0][0], table, recipe.tokens)}
        for recipe in LONG
        for name, table in _TABLES.items()
    ]
    traces = [row for path in options.verdicts for row in _traces(path)]
    options.out.write_text(json.dumps({"limit": LIMIT, "ruin": ruin, "traces": traces}, indent=1) + "\n")
    for one in ruin:
        if one["misses"] > 0.001:
            print(json.dumps(one))
    for row in traces:
        print(json.dumps(row))


def _ruin_of(text: Text, table: CostTable, num_tokens: int) -> dict[str, float]:
    chances = text.chances
    extras = [table.step_ns(1, width) / table.plain_ns(1) - 1 for width in range(1, table.block + 1)]
    rates = [_mean_tokens(chances, width + 1) / (1 + extra) for width, extra in enumerate(extras)]
    width = 1 + max(range(len(rates)), key=rates.__getitem__)
    gain = rates[width - 1] - 1
    found = {"width": width, "gain": round(gain, 4)}
    if gain <= 0:
        return {**found, "ruined": 0.0, "misses": 0.0, "least_misses": 0.0}
    ruined, misses, steps = ruin(chances[:width], extras[width - 1], num_tokens)
    least = least_ruin(chances, extras, steps) if misses > 0.001 else misses
    return {
        **found, "ruined": round(ruined, 5), "misses": round(misses, 5), "least_misses": round(least, 5)
    }  # fmt: skip


def ruin(chances: Sequence[float], extra: float, num_tokens: int) -> tuple[float, float, int]:
    """Of requests that always verify len(chances) tokens at `extra` plain steps a step: the share whose
    account of 4 plain steps cannot pay for a step before num_tokens are out; the share that, so stopped, ends
    under 0.98 of going on; and the last step at which stopping does that."""
    cost = round(extra * _UNITS)
    mean = _mean_tokens(chances, len(chances))
    left = np.zeros(_SAFE * _UNITS + 1)  # probability by what the account holds
    left[LIMIT * _UNITS] = 1.0
    ruined = misses = 0.0
    last = 0
    for step in range(1, int(num_tokens / mean) + 1):
        after = np.zeros_like(left)
        for accepted, share in _outcomes(chances):
            shift = accepted * _UNITS - cost
            if shift < 0:
                after[:shift] += share * left[-shift:]
            else:
                after[shift:] += share * left[: len(left) - shift]
                after[-1] += share * left[len(left) - shift :].sum()
        gone = float(after[:cost].sum())
        after[:cost] = 0.0
        ruined += gone
        spent = step * (1 + extra)
        rest = num_tokens - (spent - LIMIT)  # regret is time less tokens, and all of it is spent
        if (spent + rest * (1 + extra) / mean) / (spent + rest) < OVER_BEST:
            misses += gone
            last = step
        left = after
    return ruined, misses, last


def least_ruin(chances: Sequence[float], extras: Sequence[float], steps: int) -> float:
    """The least chance of ruin in so many drafted steps, over all rules that choose each step's width by what
    the account holds. extras: plain steps that a step of width 1, 2, ... costs beyond a plain one."""
    costs = [round(extra * _UNITS) for extra in extras]
    size = _SAFE * _UNITS + 1
    held = np.arange(size)
    lasts = np.where(held >= costs[0], 1.0, 0.0)  # chance to last so many more steps
    for _ in range(steps):
        best = np.zeros(size)
        for width, cost in enumerate(costs, start=1):
            value = np.zeros(size)
            for accepted, share in _outcomes(chances[:width]):
                value += share * lasts[np.clip(held + accepted * _UNITS - cost, 0, size - 1)]
            best = np.maximum(best, np.where(held >= cost, value, 0.0))
        lasts = best
    return 1.0 - float(lasts[LIMIT * _UNITS])


def _outcomes(chances: Sequence[float]) -> list[tuple[int, float]]:
    """Accepted tokens of a step and their probability."""
    outcomes, survival = [], 1.0
    for accepted, chance in enumerate((*chances, 0.0)):
        outcomes.append((accepted, survival * (1 - chance)))
        survival *= chance
    return outcomes


def _mean_tokens(chances: Sequence[float], width: int) -> float:
    tokens, survival = 1.0, 1.0
    for chance in chances[:width]:
        survival *= chance
        tokens += survival
    return tokens


class Bounded(FixedWidth):
    """A fixed width under the account: a step that one of the batch cannot pay for is plain."""

    def __init__(self, table: CostTable, width: int) -> None:
        super().__init__(table, width)
        self._left: dict[int, float] = {}
        self._batch: Sequence[int] = ()
        self._worst = 0.0

    def admit(self, running: Running) -> None:
        self._left[running.idx] = float(LIMIT)

    def step(self, batch: Sequence[Running]) -> tuple[tuple[int, ...], int]:
        widths, cost_ns = super().step(batch)
        plain_ns = self._table.plain_ns(len(batch))
        self._batch = [running.idx for running in batch]
        self._worst = cost_ns / plain_ns - 1
        if self._worst > min(self._left[idx] for idx in self._batch):
            self._worst = 0.0
            return (0,) * len(batch), plain_ns
        return widths, cost_ns

    def result(self, accepted: tuple[int, ...]) -> None:
        charge = self._worst - sum(accepted) / len(accepted)  # the mean of the batch, as RegretShare.MEAN
        for idx in self._batch:
            self._left[idx] -= charge


def _traces(path: Path) -> list[dict[str, object]]:
    recipes = {recipe.name: recipe for recipe in ALL_RECIPES}
    rows: list[dict[str, object]] = []
    for one in json.loads(path.read_text())["verdicts"]:
        if one["over_best"] >= OVER_BEST or one["trace"] not in recipes:
            continue
        table = _TABLES[one["table"]]
        trace = draw_trace(recipes[one["trace"]], one["seed"])
        bounded = run_policy(trace, table, Bounded(table, one["best_width"]), one["batch_size"])
        rows.append(
            {
                "file": path.name,
                **{key: one[key] for key in ("trace", "table", "batch_size", "seed", "best_width")},
                "over_best": round(one["over_best"], 4),
                "bounded_over_best": round(bounded.speed / one["best_over_plain"], 4),
            }
        )
    return rows


if __name__ == "__main__":
    main()
