"""Tables and words out of results: hand-worked means, standard deviations, choices and losses."""

from __future__ import annotations

import orjson
import pytest

from benchmarks import growth
from benchmarks import table as readme
from zipfel.bench import plots
from zipfel.bench.rows import COSTS, rows
from zipfel.bench.standing import AHEAD, BEHIND, LEVEL, chosen, comparisons, error_of_difference, standing, verdict
from zipfel.bench.table import markdown

BINS = [{"lowest": 1, "highest": 4, "contribution": 2.0}, {"lowest": 5, "highest": 90, "contribution": 8.0}]


def line(contestant, part="test", seed=0, status="ok", **figures):
    about = {"part": part, "data": "tiny", "contestant": contestant, "title": contestant, "ours": contestant[0] == "z",
             "seed": seed, "status": status, "settings": {}, "threads": 2, "limit": 60.0, "commit": "abc",
             "labels": 1234, "machine": "a machine", "date": "2026-01-02"}  # fmt: skip
    if status != "ok":
        return {**about, "why": "said much\nand last this", **figures}
    accuracies = dict.fromkeys(("P@1", "P@3", "P@5", "nDCG@3", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "coverage@5"), 50.0)
    return {**about, **accuracies, **dict.fromkeys(COSTS, 1.0), "bins": BINS, **figures}


RESULTS = [
    line("za", "validation", **{"P@1": 70.0}),
    line("zb", "validation", **{"P@1": 71.0}),
    line("zc", "validation", **{"P@1": 99.0}),  # which was never tested
    *(line("za", seed=seed, **{"P@1": value}) for seed, value in enumerate((66.0, 66.0, 66.0))),
    *(line("zb", seed=seed, **{"P@1": value, "PSP@1": 49.0}) for seed, value in enumerate((60.0, 62.0, 64.0))),
    line("peer", seed=0, **{"P@1": 61.0, "PSP@5": 50.0, "train_seconds": 12.3}),
    line("slow", status="time-out"),
    line("gone", status="not installed"),
]


def test_means_and_standard_deviations_are_over_seeds():
    found = {row.contestant: row for row in rows(RESULTS, "tiny")}
    assert list(found) == ["za", "zb", "peer", "gone", "slow"]  # by P@1, and those that failed last
    assert found["zb"].cell("P@1") == "62.00 ± 2.00"  # (4 + 0 + 4) / 2 = 4
    assert found["za"].cell("P@1") == "66.00 ± 0.00"
    assert found["peer"].cell("P@1") == "61.00"
    assert found["peer"].cell("train_seconds") == "12"
    assert found["slow"].cell("P@1") == ""
    assert found["zb"].bins == ((1, 4, 2.0), (5, 90, 8.0))


def test_a_later_line_of_a_seed_replaces_the_earlier():
    again = [*RESULTS, line("gone", **{"P@1": 40.0}), line("peer", **{"P@1": 63.0})]
    found = {row.contestant: row.cell("P@1") for row in rows(again, "tiny")}
    assert (found["gone"], found["peer"]) == ("40.00", "63.00")


def test_a_failed_seed_is_left_out_of_the_mean_and_reported():
    mixed = [line("a", **{"P@1": 10.0}), line("a", seed=1, status="crash")]
    assert rows(mixed, "tiny")[0].means["P@1"] == 10
    assert "| a: crash | **10.00** |" in markdown(mixed)


def test_figures_of_other_settings_are_not_mixed():
    other = {"settings": {"epochs": 9}, "P@1": 10.0}
    again = [*RESULTS, line("zb", "validation", **other), line("zb", seed=0, **other)]
    assert {row.contestant: row.cell("P@1") for row in rows(again, "tiny")}["zb"] == "10.00"
    assert chosen(again, "tiny").contestant == "za"  # 10 on validation is what the present settings of zb are worth


def test_our_model_is_chosen_on_validation_not_on_test():
    assert chosen(RESULTS, "tiny").contestant == "zb"


def test_the_summary_says_where_we_lose_and_by_how_much():
    summary = standing(RESULTS, "tiny")
    expected = ("tiny: zb **loses** in PSP@1 (1.00 behind peer). It is **level** in P@1 (+1.00 against peer), "
                "P@5 (+0.00 against peer), PSP@5 (+0.00 against peer).")  # fmt: skip
    assert summary == expected  # P@1: 60, 62, 64 have a standard error of 2 / √3 = 1.15
    better = [line("zb", "validation"), line("zb", **dict.fromkeys(("P@1", "P@5", "PSP@1", "PSP@5"), 50.5)), line("p")]
    won = "tiny: zb is ahead of every peer in P@1 (by 0.50), P@5 (by 0.50), PSP@1 (by 0.50), PSP@5 (by 0.50)."
    assert standing(better, "tiny") == won
    assert standing(better[:2], "tiny") == "tiny: zb, and no peer to compare it with."
    assert "no model of ours" in standing(better[2:], "tiny")


def seeds(contestant, *values, name="P@1", **more):
    return [line(contestant, seed=seed, **{name: value, **more}) for seed, value in enumerate(values)]


def row_of(*lines):
    (row,) = rows(lines, "tiny")
    return row


@pytest.mark.parametrize(
    ("ours", "peer", "error", "expected"),
    [
        # s² = 1 and 4, three seeds each: √(1/3 + 4/3) = 1.29, and two of them are 2.58
        ((61, 62, 63), (57, 59, 61), 5**0.5 / 3**0.5, AHEAD),
        ((61, 62, 63), (57.5, 59.5, 61.5), 5**0.5 / 3**0.5, LEVEL),
        ((61, 62, 63), (62.5, 64.5, 66.5), 5**0.5 / 3**0.5, LEVEL),
        ((61, 62, 63), (63, 65, 67), 5**0.5 / 3**0.5, BEHIND),
        # one seed of the peer: 1 / √3 = 0.577, and two are 1.155
        ((61, 62, 63), (60.8,), 3**-0.5, AHEAD),
        ((61, 62, 63), (60.9,), 3**-0.5, LEVEL),
        ((61, 62, 63), (63.2,), 3**-0.5, BEHIND),
        # one seed of ours: s² = 4, two seeds have variance 2 / 2 = 1 of the mean
        ((62,), (59, 61), 1.0, LEVEL),
        ((62,), (58.9, 60.9), 1.0, AHEAD),
        # one seed each: nothing is known of noise
        ((62.0,), (61.9,), 0.0, AHEAD),
        ((62.0,), (62.0,), 0.0, LEVEL),
        ((62.0,), (62.1,), 0.0, BEHIND),
    ],
)
def test_a_difference_within_two_standard_errors_is_level(ours, peer, error, expected):
    a, b = row_of(*seeds("z", *ours)), row_of(*seeds("peer", *peer))
    assert error_of_difference(a, b, "P@1") == pytest.approx(error)
    assert error_of_difference(b, a, "P@1") == pytest.approx(error)
    assert verdict(a, b, "P@1") == expected
    assert verdict(b, a, "P@1") == -expected


def test_every_peer_is_compared_with_not_only_the_one_with_the_best_mean():
    ours = seeds("auto", 60, 60, 60, ours=True)
    noisy, steady = seeds("noisy", 50, 62, 74), seeds("steady", 61, 61, 61)
    found = comparisons([*ours, *noisy, *steady], "tiny")["P@1"]
    assert (found.verdict, found.rival.contestant, found.lead) == (BEHIND, "steady", -1)  # 62 is level: error 6.9
    found = comparisons([*ours, *seeds("noisy", 45, 57, 69), *seeds("steady", 58, 58, 58)], "tiny")["P@1"]
    assert (found.verdict, found.rival.contestant) == (LEVEL, "noisy")
    assert "is **level** in P@1 (+3.00 against noisy)" in standing(
        [*ours, *seeds("noisy", 45, 57, 69), *seeds("steady", 58, 58, 58)], "tiny"
    )


def test_auto_is_ours_without_validation():
    mine = {"ours": True, "title": "zipfel auto", "chosen": {"model": "blend", "main": "m"}}
    again = [*RESULTS, line("auto:fast", **mine, **{"P@1": 90.0}), line("auto", **mine, **{"P@1": 10.0})]
    assert chosen(again, "tiny").contestant == "auto"  # though the model that is best on validation is better
    assert chosen(again[:-1], "tiny").contestant == "auto:fast"
    assert standing(again, "tiny").startswith("tiny: zipfel auto (m) **loses** in P@1 (51.00 behind peer).")
    assert "| **zipfel auto (m)** (ours) | 10.00 |" in markdown(again)
    named = [*again, line("auto", **CHOSEN, **mine, **{"P@1": 9.0})]
    assert chosen(named, "tiny").cell("P@1") == "9.00"  # what `zipfel train` does
    failed = [*RESULTS, line("auto", status="crash", ours=True)]
    assert chosen(failed, "tiny") is None  # no other model takes the place of one that crashed
    assert "no model of ours has results" in standing(failed, "tiny")


CHOSEN = {"features_from": "chosen", "text": {"ngrams": 2, "field_weights": {"title": 1.0}},
          "text_choice_seconds": 3.25}  # fmt: skip


def test_features_make_two_contestants_of_one_peer():
    mixed = [*seeds("peer", 50, 52), *seeds("peer", 60, 64, **CHOSEN), *seeds("auto", 59, 61, ours=True, **CHOSEN)]
    found = {row.title: (row.cell("P@1"), row.seeds) for row in rows(mixed, "tiny")}
    assert found == {"peer": ("51.00 ± 1.41", 2), "peer, chosen features": ("62.00 ± 2.83", 2),
                     "auto, chosen features": ("60.00 ± 1.41", 2)}  # fmt: skip
    assert comparisons(mixed, "tiny")["P@1"].rival.title == "peer, chosen features"
    assert "tiny: auto, chosen features, is **level** in P@1 (-2.00 against peer, chosen features)" in markdown(mixed)
    assert "Chosen features: ngrams=2, field_weights=title:1 (chosen in 3.2 s)." in markdown(mixed)
    plain_is_better = [*mixed, *seeds("peer", 80, 80)]
    assert comparisons(plain_is_better, "tiny")["P@1"].rival.title == "peer"
    assert comparisons(plain_is_better, "tiny")["P@1"].verdict == BEHIND
    usual = [*seeds("peer", 50, **CHOSEN | {"text": {}})]
    assert "Chosen features: the usual ones (chosen in 3.2 s)." in markdown(usual)
    assert "Chosen features" not in markdown(RESULTS)


def test_lines_without_a_kind_of_features_are_plain():
    old, new = line("peer", **{"P@1": 50.0}), line("peer", features_from="plain", **{"P@1": 60.0})
    assert [row.cell("P@1") for row in rows([old, new], "tiny")] == ["60.00"]  # the same contestant and seed


def test_other_chosen_features_are_not_mixed():
    other = CHOSEN | {"text": {"ngrams": 3}}
    again = [*seeds("peer", 50, 50, 50, **CHOSEN), line("peer", seed=0, **other, **{"P@1": 40.0})]
    assert [(row.cell("P@1"), row.seeds) for row in rows(again, "tiny")] == [("40.00", 1)]


def test_a_model_is_chosen_on_validation_of_its_own_features():
    lines = [
        line("za", "validation", **{"P@1": 70.0}),
        line("za", "validation", **CHOSEN, **{"P@1": 60.0}),
        line("zb", "validation", **CHOSEN, **{"P@1": 65.0}),
        *seeds("za", 10, **CHOSEN),
        *seeds("zb", 20, **CHOSEN),
    ]
    assert chosen(lines, "tiny").contestant == "zb"  # za with plain features was not tested
    assert chosen([*lines, *seeds("za", 5)], "tiny").key == ("za", "plain")


def test_a_note_of_a_line_is_shown():
    page = markdown([line("auto", ours=True, note="takes another", **CHOSEN)])
    assert "- auto, chosen features: takes another" in page


def test_the_page_has_all_contestants_and_failures():
    page = markdown(RESULTS)
    assert "| **zb** (chosen on validation) | 62.00 ± 2.00 |" in page
    assert "| za | **66.00 ± 0.00** |" in page
    assert "- slow: time-out: and last this" in page
    assert "| gone: not installed |" in page
    assert "a machine; threads 2; limit 60 s; commit abc." in page
    later = line("other", commit="def", limit=0.5)
    assert "a machine; threads 2; limit 60, 0.5 s; commit abc, def." in markdown([*RESULTS, later])


def test_plots_name_all_who_got_through(tmp_path):
    paths = plots.write_plots(RESULTS, tmp_path)
    assert [path.name for path in paths] == ["accuracy-time.svg", "accuracy-size.svg", "frequency.svg"]
    time_plot = paths[0].read_text()
    assert all(name in time_plot for name in ("za", "zb", "peer", "seconds to train"))
    assert "slow" not in time_plot
    assert "1–4" in paths[2].read_text()
    first = time_plot
    plots.write_plots(RESULTS, tmp_path)
    assert paths[0].read_text() == first
    assert plots.write_plots([line("slow", status="time-out")], tmp_path) == []


def test_contestants_of_a_plot_look_different(monkeypatch):
    drawn = {}
    monkeypatch.setattr(plots, "svg_of", lambda figure: drawn.update(_markers(figure)) or "")
    names = ("za", "zb", "zc", "zd", "ze", "zf", "zg", "peer")
    plots.scatter({"tiny": rows([line(name) for name in names], "tiny")}, "train_seconds", "seconds")
    assert len(drawn) == len(set(drawn.values())) == 8


def _markers(figure):
    lines = [(container.get_label(), container.lines[0]) for container in figure.axes[0].containers]
    return {name: (line.get_marker(), line.get_color(), line.get_markerfacecolor()) for name, line in lines}


@pytest.fixture
def checkout(tmp_path):
    """Return a folder with results, and pages with marks."""
    for folder in ("benchmarks/results", "docs/images"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / readme.RESULTS).write_bytes(b"".join(orjson.dumps(one) + b"\n" for one in RESULTS))
    for name in (readme.README, readme.LONG):
        (tmp_path / name).write_text(f"# Title\n\n{readme.BEGIN}\nold\n{readme.END}\n\nrest\n")
    return tmp_path


def test_pages_are_written_between_the_marks_and_checked(checkout, capsys):
    assert readme.main(["--check"], checkout) == 1
    late = capsys.readouterr().out
    assert "README.md is out of date" in late
    assert "docs/benchmarks.md is out of date" in late
    assert readme.main([], checkout) == 0
    written = (checkout / readme.LONG).read_text()
    assert written.startswith("# Title\n")
    assert written.endswith(f"{readme.END}\n\nrest\n")
    assert "\nold\n" not in written
    assert "| tiny | 1,234 | zb | 62.0 (61.0) | 50.0 (50.0) | 49.0 (50.0) | 50.0 (50.0) | 1.0 ± 0 |" in written
    assert "on 0 of 1 data sets (all but tiny):" in written
    assert "- With fewer seeds: peer on tiny (1).\n" in written
    assert "Did not finish: slow on tiny (time-out), gone on tiny (not installed)." in written
    assert "<svg" in (checkout / readme.PLOT).read_text()
    assert readme.main(["--check"], checkout) == 0
    assert "![P@1 against seconds to train, for every contestant](images/bench.svg)" in written
    assert "([all results](../benchmarks/results/bench.jsonl), from" in written
    assert readme.main([], checkout) == 0
    assert (checkout / readme.LONG).read_text() == written
    (checkout / readme.LONG).write_text(written.replace("62.0", "63.0"))
    assert readme.main(["--check"], checkout) == 1  # README alone is up to date


def test_readme_has_a_short_table_with_time_and_size_of_one_fast_peer(checkout):
    light = [line("omikuji-bonsai", seed=seed, title="Bonsai", train_seconds=0.25, model_mb=0.5) for seed in range(3)]
    ours = [line("auto", seed=seed, title="zipfel auto", ours=True, train_seconds=2.0, **{"P@1": 60.0 + seed})
            for seed in range(3)]  # fmt: skip
    other = [line("peer", data="other", **{"P@1": 49.0}), line("auto", data="other", ours=True)]
    text = readme.short([*light, *ours, line("peer", **{"P@1": 59.0, "PSP@5": 51.0}), *other])
    assert "| tiny | 1,234 | **61.0** (59.0) | 50.0 (51.0) | 2.0 (0.25) | 1.0 (1.0) | 1.0 (0.5) |" in text
    assert "| other | 1,234 | **50.0** (49.0) | 50.0 (50.0) | 1.0 | 1.0 | 1.0 |" in text
    assert "In brackets: the best of 2 peers; for time and size, Bonsai, a fast one." in text
    assert "(P@1, P@5, PSP@1, PSP@5) on 0 of 2 data sets; on 1 more it is ahead or level in all four." in text
    assert "Bonsai trains 8.0 to 8.0 times faster, and its models are 2.0 to 2.0 times smaller." in text
    assert "Bonsai" not in readme.short(RESULTS)
    assert "It costs more" not in readme.short(RESULTS)


def test_readme_says_level_and_which_features_were_chosen(checkout):
    best = dict.fromkeys(("P@1", "P@5", "PSP@1", "PSP@5"), 50.5)
    mine = {"ours": True, "title": "zipfel auto", "chosen": {"model": "blend", "main": "m"}, "note": "takes n",
            "train_seconds": 7.0, **CHOSEN}  # fmt: skip
    lines = [
        *(line("auto", seed=seed, **mine, **best | {"PSP@1": 50 + seed}) for seed in range(3)),
        line("peer"),
        line("peer", **CHOSEN, **{"P@1": 50.2}),
        line("gone", status="crash", **CHOSEN),
    ]
    text = readme.text(lines)
    row = "| **50.5** (50.2) | **50.5** (50.0) | 51.0 (50.0) | **50.5** (50.0) | 7.0 ± 0 |"
    assert f"| tiny | 1,234 | zipfel auto (m), chosen features {row}" in text
    assert "on 0 of 1 data sets (all but tiny); on tiny it is ahead or level in all four:" in text
    level = "is **level** in PSP@1 (+1.00 against peer"  # within 2 · 1 / √3
    assert f"- tiny: zipfel auto (m), chosen features, {level}" in text
    assert "It is ahead in P@1 (by 0.30), P@5 (by 0.50), PSP@5 (by 0.50)." in text
    assert "`auto`: tiny: ngrams=2, field_weights=title:1 (chosen in 3.2 s)." in text.replace("):", ":")
    assert "Did not finish: gone, chosen features on tiny (crash)." in text
    assert "- zipfel auto, chosen features on tiny: takes n." in text
    assert "Our model for each data set is `auto`, as `zipfel train` chooses it. " in text
    assert "; 1 peer on the same features" in text
    ahead = readme.text([one | {"PSP@1": 52.0} if one["ours"] else one for one in lines])
    assert "on 1 of 1 data sets:" in ahead
    older = readme.text([*lines, *(one | {"data": "old"} for one in RESULTS)])
    assert "`auto`, as `zipfel train` chooses it, or without it the one with the best P@1 on validation." in older


def test_a_readme_without_marks_or_results_is_refused(checkout):
    (checkout / "README.md").write_text("# Title\n")
    with pytest.raises(SystemExit, match=r"README.md must have the lines"):
        readme.main([], checkout)
    (checkout / readme.RESULTS).unlink()
    with pytest.raises(SystemExit, match="missing or empty"):
        readme.main([], checkout)


def test_our_own_readme_says_what_the_committed_results_say():
    text = (readme.ROOT / "README.md").read_text()
    if (readme.ROOT / readme.RESULTS).exists():
        assert readme.main(["--check"]) == 0
    else:
        assert f"{readme.BEGIN}\n{readme.END}" in text


def test_exponents_by_least_squares_and_between_the_last_two():
    # logarithms to base 10: x 1, 2, 3 and y 0, 1, 4; slope Σ (x - 2) (y - 5/3) / 2 = (5/3 + 7/3) / 2 = 2
    assert growth.exponents([10, 100, 1000], [1, 10, 10_000]) == pytest.approx((2, 3))


def test_growth_shows_exponents_and_unfinished_runs():
    sizes = [{"model": "m", "along": "labels", "size": size, "status": "ok", "train_seconds": size / 100,
              "predict_ms": size**0.5, "memory_mb": 7.0} for size in (100, 10_000)]  # fmt: skip
    late = {"model": "m", "along": "labels", "size": 10**6, "status": "time-out"}
    table = growth.table([late, *sizes])
    assert "| m | labels | 100 to 10,000 | 1.00 (1.00) |  | 0.50 (0.50) | 0.00 (0.00) |" in table
    assert "- m, 1,000,000 labels: time-out" in table
    assert "m, e = 1.00" in growth.plot([late, *sizes])


def test_a_peer_that_was_installed_later_is_not_called_missing_beside_its_figures():
    mixed = [*(line("a", seed=seed, status="not installed") for seed in range(3)), line("a", **{"P@1": 10.0})]
    assert "not installed" not in markdown(mixed)
    assert "| a: not installed |" in markdown(mixed[:-1])
