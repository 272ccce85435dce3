"""Prompts of the decode suite, five kinds with several texts each. Every request gets its own numbers and
names from its seed, so that no two share an answer, and no cache knows one of them.
"""

from __future__ import annotations

import random
from typing import Any

from launcher.bench.wave import user_message

PLACES = ("a harbour", "a mountain village", "a night train", "an orchard", "a lighthouse", "a market hall")
TRADES = ("a clockmaker", "a ferry pilot", "a botanist", "a glass blower", "a surveyor", "a cook")
WORDS = ("orders", "sensors", "invoices", "players", "parcels", "recipes", "flights", "tickets")

PROSE = (
    "Write a story of several paragraphs about {trade} who arrives at {place} in the year {year}. Describe"
    " what is seen, heard and decided, and let it end openly.",
    "Explain to a patient reader how a letter travelled from {place} to a capital city in {year}: who"
    " carried it, what could go wrong, and what it cost.",
    "Compare the working day of {trade} in {year} with the same work today. Argue both sides, with examples.",
    "Describe how {place} would be run without electricity for {number} days. Go through mornings,"
    " afternoons and nights.",
)
CODE = (
    "Write a Python module that keeps {word} in a priority queue with at most {number} entries, with type"
    " hints, docstrings, and unit tests. Explain nothing outside the code.",
    "Write a C++20 class that parses a binary file of {word}: a header with version {number}, then records"
    " with a checksum. Handle every error by its own exception. Give the whole code.",
    "Write a SQL schema and ten queries for {word} with history, for about {number} thousand rows a day."
    " Comment on the indexes in the code.",
    "Write a TypeScript function that merges {number} sorted streams of {word}, with back pressure and"
    " cancellation, and then its tests.",
)
STRUCTURED = (
    "List the numbers from {number} to {end}, one a line, each followed by a colon, its square, and whether"
    " it is prime.",
    "Write a Markdown table of {rows} {word} with the columns id, name, weight in grams, and a one-word"
    " remark. Start the ids at {number}.",
    "Write the timetable of a bus line with {rows} stops, first departure at minute {number}, as lines of"
    " stop;arrival;departure.",
)
JSON = (
    "Return only a JSON array of {rows} {word}. Each has id (from {number}), name, tags (three words) and a"
    " nested object size with width and height.",
    "Return only a JSON object that maps {rows} city names to an object with population, founded ({year} or"
    " earlier) and a list of two neighbours.",
    "Return only JSON: a configuration for a service that imports {word}, with sections source, retry"
    " ({number} attempts), filters (a list of {rows}) and output.",
)
TOOLS = (
    "Book a table for {rows} people at {place} and then tell me the weather there for day {number} of the"
    " year.",
    "Find all {word} with more than {number} entries and send their list to {trade}.",
    "Convert {number} kilometres to miles, then look up what happened in {year} near {place}.",
)
_TEXTS = {"prose": PROSE, "code": CODE, "structured": STRUCTURED, "json": JSON, "tools": TOOLS}


def _tool(name: str, description: str, **properties: str) -> dict[str, Any]:
    fields = {key: {"type": kind} for key, kind in properties.items()}
    parameters = {"type": "object", "properties": fields, "required": list(fields)}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


TOOL_LIST = (
    _tool("search", "Search records by a query.", query="string", minimum="integer"),
    _tool("book_table", "Book a table.", place="string", people="integer"),
    _tool("weather", "Weather of a place on a day of the year.", place="string", day="integer"),
    _tool("send_message", "Send text to a person.", person="string", text="string"),
    _tool("convert", "Convert between units.", value="number", unit="string", to="string"),
)


def num_texts(kind: str) -> int:
    return len(_TEXTS[kind])


def decode_body(kind: str, number: int, salt: str, **parameters: Any) -> dict[str, Any]:
    """The `number`-th prompt of a kind (they go round), with values of its own for `salt`."""
    draw = random.Random(f"{salt}/{kind}/{number}")
    first = draw.randrange(100, 9000)
    texts = _TEXTS[kind]
    text = texts[number % len(texts)].format(
        place=draw.choice(PLACES), trade=draw.choice(TRADES), word=draw.choice(WORDS), number=first,
        end=first + 200, rows=draw.randrange(12, 40), year=draw.randrange(1700, 1990),
    )  # fmt: skip
    body = user_message(text, **parameters)
    if kind == "tools":
        body["tools"] = list(TOOL_LIST)
    return body
