"""The traces that the controller is judged on."""

from __future__ import annotations

from sgl_ext.speculation import generate_traces as texts
from sgl_ext.speculation.generate_traces import ConfidenceKind, Recipe, Text

_SINGLE: dict[str, Text] = {
    "prose": texts.PROSE,
    "good-prose": texts.GOOD_PROSE,
    "code": texts.CODE,
    "json": texts.JSON,
    "hard": texts.HARD,
    "random-weights": texts.RANDOM_WEIGHTS,
    "marginal": texts.MARGINAL,
    "fading": texts.FADING,
}
_ENDLESS = 1 << 30


def _one_text(name: str, text: Text, **kwargs: int | str) -> Recipe:
    return Recipe(name=name, phases=((text, _ENDLESS),), **kwargs)  # type: ignore[arg-type]


LONG = tuple(_one_text(f"{name}-long", text, num_requests=1, tokens=4000) for name, text in _SINGLE.items())
MANY = tuple(_one_text(f"{name}-many", text, num_requests=32, tokens=200) for name, text in _SINGLE.items())
WITH_CONFIDENCE = tuple(
    _one_text(f"{name}-{kind}", text, num_requests=8, tokens=600, confidence=kind)
    for kind in (ConfidenceKind.INFORMATIVE, ConfidenceKind.UNINFORMATIVE, ConfidenceKind.OPPOSITE)
    for name, text in (("prose", texts.PROSE), ("code", texts.CODE), ("hard", texts.HARD))
)
SWITCHING = tuple(
    Recipe(name=f"{name}-{period}", phases=((first, period), (second, period)), num_requests=4, tokens=2000)
    for name, first, second in (
        ("code-hard", texts.CODE, texts.HARD),
        ("json-random", texts.JSON, texts.RANDOM_WEIGHTS),
    )
    for period in (20, 50, 200, 1000)
)
MIXED = (
    Recipe(
        name="mixed",
        phases=tuple((text, _ENDLESS) for text in (texts.CODE, texts.PROSE, texts.JSON, texts.HARD)),
        num_requests=32,
        tokens=400,
        rotate=True,
    ),
    Recipe(
        name="mixed-informative",
        phases=tuple((text, 100) for text in (texts.CODE, texts.PROSE, texts.JSON, texts.HARD)),
        num_requests=32,
        tokens=400,
        rotate=True,
        confidence=ConfidenceKind.INFORMATIVE,
    ),
)
ALL_RECIPES = LONG + MANY + WITH_CONFIDENCE + SWITCHING + MIXED
