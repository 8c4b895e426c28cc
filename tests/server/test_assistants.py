"""The tools of an assistant, asked by the protocol's own client."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import mcp
import pytest

from tests.server.conftest import PRINTER
from zipfel.server.assistants import server_of
from zipfel.tagger import Tagger

pytestmark = pytest.mark.usefixtures("one_thread")

TOOLS = {"tag", "candidates", "ground", "label"}


def asked(server: Any, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    async def answers() -> list[Any]:
        async with mcp.Client(server) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return asyncio.run(answers())


def test_tools_answer_as_the_model_does(models):
    tagger = Tagger.load(models / "glas", "cpu")
    tag, ground, label, candidates = asked(
        server_of(tagger, "tiny"), ("tag", {"text": "no paper", "k": 1}), ("ground", {"phrase": "printers"}),
        ("label", {"name": "printer"}), ("candidates", {"text": "wifi", "k": 2}),
    )  # fmt: skip
    best = tagger.predict(["no paper"], 1)[0][0]
    assert tag.structured_content == {"tags": [{"label": best.label, "score": best.score}]}
    assert ground.structured_content["labels"][0]["label"] == "printer"
    assert label.structured_content == {"label": "printer", "text": "Printers and PAPER", "count": 10, "paths": []}
    assert len(candidates.structured_content["candidates"]) == 2


def test_a_label_of_a_thesaurus_may_be_named_by_its_title(titled):
    server = server_of(Tagger.load(titled / "titled", "cpu"), "titled")
    by_title, by_name = asked(server, ("label", {"name": "Drucker"}), ("label", {"name": PRINTER}))
    assert by_title.structured_content == by_name.structured_content
    assert by_title.structured_content["label"] == PRINTER
    assert by_title.structured_content["title"] == "Drucker"
    assert by_title.structured_content["paths"] == [["Geräte", "Drucker"]]
    (unknown,) = asked(server, ("label", {"name": "druker"}))
    assert unknown.is_error
    assert unknown.content[0].text.endswith("unknown label 'druker'; did you mean 'Drucker'?")


@pytest.mark.parametrize(
    ("tool", "arguments", "error"),
    [("label", {"name": "printr"}, "unknown label 'printr'"),
     ("tag", {"text": "wifi", "k": 0}, "k must be a whole number of at least 1; found 0"),
     ("ground", {"phrase": "wifi", "k": 0}, "k must be a whole number from 1 to 1000; found 0"),
     ("candidates", {"text": "wifi", "k": 0}, "k must be a whole number from 1 to 1000; found 0"),
     ("ground", {"phrase": "x" * 1001}, "a phrase may have at most 1000 characters; found 1001")],
)  # fmt: skip
def test_bad_input_is_one_line_that_reaches_the_assistant(models, tool, arguments, error):
    (wrong,) = asked(server_of(Tagger.load(models / "glas", "cpu"), "tiny"), (tool, arguments))
    assert wrong.is_error
    assert error in wrong.content[0].text
    assert "\n" not in wrong.content[0].text


def test_the_command_speaks_over_standard_input_and_output(models):
    command = [sys.executable, "-m", "zipfel", "mcp", str(models / "glas")]
    process = mcp.StdioServerParameters(command=command[0], args=command[1:], env={**os.environ})
    ground, empty = asked(process, ("ground", {"phrase": "printers"}), ("ground", {"phrase": " "}))
    assert ground.structured_content["labels"][0]["label"] == "printer"
    assert empty.structured_content == {"labels": []}


def test_a_folder_without_a_model_is_one_line(tmp_path, zipfel_command):
    outcome = zipfel_command("mcp", tmp_path)
    assert (outcome.code, outcome.err) == (2, f"error: {tmp_path}: not a saved model: model.json is missing\n")
