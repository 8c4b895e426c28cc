"""The tools of an assistant, asked by the protocol's own client."""

from __future__ import annotations

import asyncio
from typing import Any

import mcp
import pytest

from zipfel.server.assistants import server_of
from zipfel.tagger import Tagger

pytestmark = pytest.mark.usefixtures("one_thread")


def asked(tagger: Tagger, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    async def answers() -> list[Any]:
        async with mcp.Client(server_of(tagger, "tiny")) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == {"tag", "candidates", "ground", "label"}
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return asyncio.run(answers())


def test_tools_answer_as_the_model_does(models):
    tagger = Tagger.load(models / "glas", "cpu")
    tag, ground, label, candidates, wrong = asked(
        tagger, ("tag", {"text": "no paper", "k": 1}), ("ground", {"phrase": "printers"}),
        ("label", {"name": "printer"}), ("candidates", {"text": "wifi", "k": 2}),
        ("label", {"name": "printr"}),
    )  # fmt: skip
    best = tagger.predict(["no paper"], 1)[0][0]
    assert tag.structured_content == {"tags": [{"label": best.label, "score": best.score}]}
    assert ground.structured_content["labels"][0]["label"] == "printer"
    assert label.structured_content == {"label": "printer", "text": "Printers and PAPER", "count": 10, "paths": []}
    assert len(candidates.structured_content["candidates"]) == 2
    assert wrong.is_error
    assert "unknown label 'printr'" in wrong.content[0].text
