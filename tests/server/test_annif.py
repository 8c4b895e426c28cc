"""Annif's REST API: paths, fields and errors as Annif 1.4's OpenAPI document has them."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.server.conftest import PRINTER
from zipfel import __version__

pytestmark = pytest.mark.usefixtures("one_thread")

PROBLEM = {"type", "title", "status", "detail"}


@pytest.fixture
def annif(titled, serving):
    return serving("titled", "glas")


def suggest(client, project="titled", **fields):
    return client.ask("POST", f"/v1/projects/{project}/suggest", data=fields)


def test_projects_and_vocabularies_have_the_fields_of_annif(annif):
    assert annif.ask("GET", "/v1/").json() == {"title": "zipfel, with Annif's REST API", "version": __version__}
    one, two = annif.ask("GET", "/v1/projects").json()["projects"]
    written = one.pop("modification_time")
    assert datetime.fromisoformat(written).tzinfo is not None
    vocabulary = {"vocab_id": "titled", "languages": ["de"], "size": 3, "loaded": True}
    assert one == {
        "project_id": "titled", "name": "titled", "language": "de", "backend": {"backend_id": "glas"},
        "vocab": vocabulary, "vocab_language": "de", "is_trained": True,
    }  # fmt: skip
    assert (two["project_id"], two["language"]) == ("glas", "und")
    assert annif.ask("GET", "/v1/projects/titled").json() == {**one, "modification_time": written}
    assert annif.ask("GET", "/v1/vocabs").json()["vocabs"] == [vocabulary, two["vocab"]]
    assert annif.ask("GET", "/v1/vocabs/titled").json() == vocabulary


def test_suggestions_are_the_tags_with_names_and_notations(annif):
    answer = suggest(annif, text="paper in the printer", limit=2)
    assert answer.headers["content-type"] == "application/json"
    tags = annif.tag(["paper in the printer"], k=2, model="titled").json()["tags"][0]
    assert answer.json() == {
        "results": [
            {"uri": tag["label"], "label": tag["title"], "notation": "621.3" if tag["label"] == PRINTER else None,
             "score": tag["score"]}
            for tag in tags
        ]
    }  # fmt: skip
    assert len(suggest(annif, text="wifi").json()["results"]) == 3
    assert suggest(annif, text="wifi", limit=0).json() == {"results": []}
    least = tags[0]["score"]
    kept = suggest(annif, text="paper in the printer", threshold=least, language="de", project="titled").json()
    assert [each["uri"] for each in kept["results"]] == [tags[0]["label"]]


def test_a_batch_is_answered_in_order_with_the_ids_of_its_documents(annif):
    texts = ["wifi is slow", "paper"]
    documents = [{"text": texts[0], "document_id": "a"}, {"text": texts[1], "metadata": {"title": "x"}}]
    path = "/v1/projects/titled/suggest-batch?limit=1&language=de"
    answer = annif.ask("POST", path, json={"documents": documents}).json()
    expected = [suggest(annif, text=text, limit=1).json()["results"] for text in texts]
    assert answer == [
        {"results": expected[0], "document_id": "a"},
        {"results": expected[1], "document_id": None},
    ]
    assert annif.ask("POST", path, json={"documents": []}).json() == []


def ask_form(fields):
    return "/v1/projects/titled/suggest", {"data": fields}


def ask_batch(documents, query=""):
    return f"/v1/projects/titled/suggest-batch{query}", {"json": {"documents": documents}}


@pytest.mark.parametrize(
    ("asked", "status", "title", "detail"),
    [
        (("/v1/projects/none/suggest", {"data": {"text": "x"}}), 404, "Project not found", "unknown model 'none'"),
        (("/v1/nothing", {}), 404, "Project not found", "not found"),
        (ask_form({"limit": "3"}), 400, "Bad Request", "text: Field required"),
        (ask_form({"text": "x", "limit": "many"}), 400, "Bad Request", "limit: Input should be a valid integer"),
        (ask_form({"text": "x", "threshold": "2"}), 400, "Bad Request", "threshold: Input should be less than or"),
        (ask_form({"text": "x", "language": "fi"}), 400, "Bad Request", 'language "fi" not supported by vocabulary'),
        (ask_form({f"f{n}": "x" for n in range(200)}), 400, "Bad Request", "expected a form in UTF-8 with up to 100"),
        (
            ("/v1/projects/titled/suggest", {"files": {"text": b"x"}}),
            415,
            "Unsupported Media Type",
            "expected a form with",
        ),
        (("/v1/projects/titled/suggest", {"json": {"text": "x"}}), 415, "Unsupported Media Type", "'application/json'"),
        (ask_batch([{"text": "x"}] * 33), 400, "Bad Request", "documents: List should have at most 32 items"),
        (ask_batch([{}]), 400, "Bad Request", "documents[0].text: Field required"),
        (ask_batch([], "?limit=-1"), 400, "Bad Request", "limit: Input should be greater than or equal to 0"),
        (("/v1/projects/titled/suggest-batch", {"content": b"{"}), 400, "Bad Request", "the body is not valid JSON"),
        (("/v1/projects/titled/learn", {"json": []}), 403, "Learning not allowed", "this service does not learn; its"),
    ],
)
def test_problems_have_the_form_of_annif(annif, asked, status, title, detail):
    path, more = asked
    answer = annif.ask("POST", path, **more)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert set(problem) == PROBLEM
    assert (problem["type"], problem["status"], problem["title"]) == ("about:blank", status, title)
    assert detail in problem["detail"]


def test_limits_hosts_tokens_and_metrics_hold_as_on_other_routes(titled, serving):
    client = serving("titled", max_length=10, token="secret")
    assert client.ask("GET", "/v1/projects").status_code == 401
    headers = {"Authorization": "Bearer secret"}
    long = client.ask("POST", "/v1/projects/titled/suggest", data={"text": "x" * 11}, headers=headers)
    assert (long.status_code, long.headers["content-type"]) == (413, "text/plain; charset=utf-8")
    assert "at most 10 characters" in long.text
    assert client.ask("GET", "/v1/projects", headers={**headers, "Host": "evil.org"}).status_code == 421
    metrics = client.ask("GET", "/metrics", headers=headers).text
    assert 'route="/v1/projects/{id}/suggest",status="413"} 1' in metrics


def test_metadata_are_the_fields_of_a_model(titled, serving, models):
    from zipfel.tagger import Tagger

    texts = {"text": ["paper", "paper", "paper", "paper"] * 5, "title": ["red", "red", "blue", "blue"] * 5}
    settings = {"dimension": 16, "epochs": 30, "min_steps": 1}
    tagger = Tagger("glas", settings=settings, text={"min_count": 1}, validation=0, device="cpu")
    tagger.fit(texts, [["r"], ["r"], ["b"], ["b"]] * 5).save(models / "fielded")
    client = serving("fielded")
    for title, label in (("red", "r"), ("blue", "b")):
        answer = suggest(client, "fielded", text="paper", limit=1, metadata_title=title, metadata_year="1976")
        assert [each["uri"] for each in answer.json()["results"]] == [label]


def test_the_document_of_the_api_lists_the_routes(annif):
    document = annif.ask("GET", "/openapi.json").json()
    form = document["paths"]["/v1/projects/{project_id}/suggest"]["post"]["requestBody"]["content"]
    assert list(form) == ["application/x-www-form-urlencoded"]
    assert {"text", "limit", "threshold", "language"} == set(next(iter(form.values()))["schema"]["properties"])
    learn = document["paths"]["/v1/projects/{project_id}/learn"]["post"]
    assert "application/problem+json" in learn["responses"]["403"]["content"]
    assert learn["responses"].keys() >= {"204", "400"}
    lesson = learn["requestBody"]["content"]["application/json"]["schema"]
    assert lesson["items"]["properties"]["subjects"]["items"]["properties"].keys() == {"uri"}
    batch = document["paths"]["/v1/projects/{project_id}/suggest-batch"]["post"]["requestBody"]["content"]
    documents = batch["application/json"]["schema"]["properties"]["documents"]
    assert documents["items"]["properties"].keys() == {"text", "document_id", "metadata"}
    assert annif.ask("GET", "/docs").status_code == 200
