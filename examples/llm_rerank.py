"""Let a language model choose among a model's candidates, so that it can only answer with labels that exist.

    python examples/llm_rerank.py MODEL "crushing chest pain" --url http://127.0.0.1:8080/v1 --llm qwen3

The endpoint is any that speaks OpenAI's chat completions (llama.cpp, vLLM, Ollama, ...); $OPENAI_API_KEY is sent if
it is set. Answers that are no candidates are dropped and counted. If the endpoint is down or answers nonsense, the
model's own order stands, and one line says so.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass

from zipfel import Tagger
from zipfel.errors import ZipfelError
from zipfel.grounding import Candidate, prompt

INSTRUCTION = (
    "You tag documents. From the numbered labels, choose those that fit the document, best first, at most {k}. "
    "Answer with a JSON list of their numbers and nothing else, such as [3, 1]. Never invent a label."
)
WIDTH = 30  # candidates that the language model chooses from
LIST = re.compile(r"\[[^\[\]]*\]")  # a JSON list in the answer, whatever is said around it


class EndpointError(Exception):
    """The endpoint is down, or its answer cannot be used."""


@dataclass(frozen=True)
class Endpoint:
    """An endpoint of chat completions.  url: with its version, such as http://127.0.0.1:8080/v1."""

    url: str
    llm: str
    timeout: float = 60.0

    def answer(self, system: str, user: str) -> str:
        """Return what the language model says; raise EndpointError if there is no answer."""
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        body = json.dumps({"model": self.llm, "messages": messages, "temperature": 0}).encode()
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        try:
            request = urllib.request.Request(f"{self.url.rstrip('/')}/chat/completions", body, headers)
        except ValueError:
            raise EndpointError("not a URL; expected one such as http://127.0.0.1:8080/v1") from None
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as response:
                return str(json.load(response)["choices"][0]["message"]["content"])
        except urllib.error.HTTPError as error:
            raise EndpointError(f"status {error.code}") from None
        except OSError as error:  # refused, unknown host, too slow
            raise EndpointError(str(getattr(error, "reason", error))) from None
        except (ValueError, LookupError, TypeError):
            raise EndpointError("its response is no chat completion") from None


@dataclass(frozen=True)
class Reranked:
    """Candidates in their new order.  dropped: answers that are no candidates.  problem: why the old order stands."""

    candidates: list[Candidate]
    dropped: int = 0
    problem: str = ""


def rerank(tagger: Tagger, text: str, endpoint: Endpoint, k: int = 5, width: int = WIDTH) -> Reranked:
    """Return k of the model's `width` candidates: those that the language model chose, then the model's next."""
    found = tagger.candidates(text, width)
    try:
        said = endpoint.answer(INSTRUCTION.format(k=k), f"Document:\n{text}\n\nLabels:\n{prompt(found)}")
        chosen, dropped = picked(said, found)
    except EndpointError as error:
        return Reranked(found[:k], problem=f"{endpoint.url}: {error}; the model's own order stands")
    rest = [each for each in found if each not in chosen]
    return Reranked([*chosen, *rest][:k], dropped)


def picked(said: str, candidates: Sequence[Candidate]) -> tuple[list[Candidate], int]:
    """Return the candidates that an answer names, by number or label, and how many items name none or one twice."""
    by_name = {each.label.casefold(): each for each in reversed(candidates)}
    by_name |= {str(number): each for number, each in enumerate(candidates, start=1)}
    chosen, dropped = list[Candidate](), 0
    for item in _items(said):
        candidate = by_name.get(str(item).strip().casefold())
        if candidate is None or candidate in chosen:
            dropped += 1
        else:
            chosen.append(candidate)
    return chosen, dropped


def _items(said: str) -> list[object]:
    """Return the last JSON list in an answer; models that think aloud end with it."""
    for match in reversed(LIST.findall(said)):
        try:
            return list(json.loads(match))
        except ValueError:
            continue
    raise EndpointError("its answer has no JSON list")


def main() -> None:
    """Tag texts, and print one line for each label."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", help="folder of a trained model")
    parser.add_argument("texts", nargs="+", metavar="TEXT")
    parser.add_argument("--url", required=True, help="such as http://127.0.0.1:8080/v1")
    parser.add_argument("--llm", required=True, help="name of the language model")
    parser.add_argument(
        "-k", type=int, choices=range(1, WIDTH + 1), metavar="K", default=5, help=f"labels of a text, up to {WIDTH}"
    )
    asked = parser.parse_args()
    try:
        show(asked)
    except ZipfelError as error:
        sys.exit(f"error: {error}")


def show(asked: argparse.Namespace) -> None:
    """Print the labels of each text, and what went wrong."""
    tagger, dropped = Tagger.load(asked.model, "cpu"), 0
    for text in asked.texts:
        result = rerank(tagger, text, Endpoint(asked.url, asked.llm), asked.k)
        dropped += result.dropped
        if result.problem:
            sys.stderr.write(f"warning: {result.problem}\n")
        sys.stdout.write(f"{text}\n" + "".join(f"  {each.label}  {each.title}\n" for each in result.candidates))
    if dropped:
        sys.stderr.write(f"note: answers dropped because they are not among the candidates: {dropped}\n")


if __name__ == "__main__":
    main()
