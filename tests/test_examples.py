"""The examples run, and print what they promise."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

import zipfel
from examples import (
    clinical_codes,
    library_subjects,
    many_labels,
    no_label_texts,
    paper_table,
    tickets,
    updates,
)
from zipfel.cli.main import app_for
from zipfel.data.synthetic import Synthetic, make

EXAMPLES = Path(__file__).parents[1] / "examples"
pytestmark = pytest.mark.usefixtures("one_thread")


def test_tickets_are_tagged_with_reasons(capsys):
    tickets.main()
    first, second, third = capsys.readouterr().out.splitlines()
    assert ": vpn 0." in first
    assert "mail" in second
    assert ": printer 0." in third
    assert "(because of: " in third


def test_a_model_learns_new_points_and_labels(capsys):
    updates.main()
    fitted, points, added, removed = capsys.readouterr().out.splitlines()
    assert "'printer'" in fitted
    assert "'access'" in points
    assert "'toner'" in added
    assert "'slow'" in added
    assert "'slow'" not in removed


def test_clinical_codes_are_found_by_their_descriptions_only(capsys):
    clinical_codes.main("L")  # a smaller chapter
    sizes, *_, added = capsys.readouterr().out.splitlines()
    share = re.search(r"phrases, \d+ codes; P@1 (\d+)%$", sizes)
    counts = re.search(r"first 5 tags of (\d+) of the (\d+) test phrases", added)
    assert share is not None
    assert counts is not None
    assert int(share[1]) > 40  # chance is below 10
    assert int(counts[1]) > int(counts[2]) / 3  # chance: 5 of some 200 labels


def test_subjects_have_names_broader_concepts_and_synonyms(capsys):
    library_subjects.main()
    violin, apple, choir, fiddles, orchards = capsys.readouterr().out.splitlines()
    assert violin.startswith("repair of a cracked violin: violins <http://example.org/subjects/s3> 0.")
    assert "; music > stringed instruments > violins; in German: Geigen" in violin
    assert "gardening > fruit trees; in German: Obstbäume" in apple
    assert ": choirs <" in choir
    assert fiddles == "fiddles means: violins <http://example.org/subjects/s3>"
    assert orchards == "orchards means: fruit trees <http://example.org/subjects/s6>"


def test_labels_without_texts_are_told_by_their_words(capsys):
    no_label_texts.main()
    rent, fuel, paper, *words, new = capsys.readouterr().out.splitlines()
    assert ": 4210 0." in rent
    assert ": 4530 0." in fuel
    assert ": 4930 0." in paper
    assert [line.partition(" stands for: ")[0] for line in words] == ["4210", "4240", "4530", "4930"]
    assert "electricity" in words[1]
    assert new.endswith(": 4660")


def test_a_paper_s_preset_gives_a_table(capsys, tmp_path):
    zipfel.write(make(Synthetic(points=500, labels=20, seed=1)), tmp_path / "files", "repository")
    paper_table.main(str(tmp_path / "files"))
    title, header, *rows = capsys.readouterr().out.splitlines()
    assert title == "mnn on synthetic-20: 400 points, 20 labels"
    assert header.split() == ["k=1", "k=3", "k=5"]
    assert [row.split()[0] for row in rows] == ["P", "nDCG", "PSP"]
    p, _, psp = ([float(cell) for cell in row.split()[1:]] for row in rows)
    assert p[0] > 50  # chance is about 15
    assert p[0] > p[1] > p[2]
    assert 0 < psp[0] <= 100


def test_scores_of_a_program_can_be_evaluated(zipfel_command, monkeypatch, tmp_path):
    data, out = tmp_path / "data", tmp_path / "scores.npz"
    zipfel.write(make(Synthetic(points=300, labels=20, texts=True, seed=1)), data, "lf")
    monkeypatch.setattr("sys.argv", ["label_text_cosine.py", str(data), str(out)])
    runpy.run_path(str(EXAMPLES / "label_text_cosine.py"))
    outcome = zipfel_command("evaluate", data, "--predictions", out, "--json", tmp_path / "figures.json")
    assert outcome.code == 0, outcome.err
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["P@1"] > 50  # chance is about 15


def test_planted_labels_are_found(capsys):
    many_labels.main(100)
    line = capsys.readouterr().out
    assert line.startswith("100 labels, ")
    share = re.search(r"P@1 ([\d.]+)%", line)
    assert share is not None
    assert float(share[1]) > 10  # chance is about 1


def test_the_options_of_the_systemd_unit_exist():
    (line,) = re.findall(r"^ExecStart=\S+zipfel (serve .*)$", (EXAMPLES / "proxy" / "zipfel.service").read_text(), re.M)
    command: Any = typer.main.get_command(app_for("serve"))
    known = {flag for one in command.commands["serve"].params for flag in one.opts}
    used = {word for word in shlex.split(line) if word.startswith("--")}
    assert used <= known
    assert "--unix-socket" in used


def test_the_list_names_every_example():
    text = (EXAMPLES / "README.md").read_text()
    names = {path.name for path in EXAMPLES.iterdir() if path.suffix == ".py" or path.is_dir()} - {"__pycache__"}
    assert {name for name in names if f"({name}" not in text} == set()
