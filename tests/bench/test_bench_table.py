"""Tables and words out of results: hand-worked means, standard deviations, choices and losses."""

from __future__ import annotations

import orjson
import pytest

from benchmarks import growth
from benchmarks import table as readme
from zipfel.bench import plots
from zipfel.bench.table import COSTS, chosen, markdown, rows, standing

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
    expected = ("tiny: zb **loses** in P@5 (level with peer), PSP@1 (1.00 behind peer), PSP@5 (level with peer). "
                "It is ahead in P@1 (by 1.00).")  # fmt: skip
    assert summary == expected
    better = [line("zb", "validation"), line("zb", **dict.fromkeys(("P@1", "P@5", "PSP@1", "PSP@5"), 50.5)), line("p")]
    won = "tiny: zb is ahead of every peer in P@1 (by 0.50), P@5 (by 0.50), PSP@1 (by 0.50), PSP@5 (by 0.50)."
    assert standing(better, "tiny") == won
    assert standing(better[:2], "tiny") == "tiny: zb, and no peer to compare it with."
    assert "no model of ours" in standing(better[2:], "tiny")


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


@pytest.fixture
def checkout(tmp_path):
    """Return a folder with results and a README with marks."""
    for folder in ("benchmarks/results", "docs/images"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / readme.RESULTS).write_bytes(b"".join(orjson.dumps(one) + b"\n" for one in RESULTS))
    (tmp_path / "README.md").write_text(f"# Title\n\n{readme.BEGIN}\nold\n{readme.END}\n\nrest\n")
    return tmp_path


def test_readme_is_written_between_the_marks_and_checked(checkout, capsys):
    assert readme.main(["--check"], checkout) == 1
    assert "out of date" in capsys.readouterr().out
    assert readme.main([], checkout) == 0
    written = (checkout / "README.md").read_text()
    assert written.startswith("# Title\n")
    assert written.endswith(f"{readme.END}\n\nrest\n")
    assert "\nold\n" not in written
    assert "| tiny | 1,234 | zb | **62.0** (61.0) | 50.0 (50.0) | 49.0 (50.0) | 50.0 (50.0) | 1.0 ± 0 |" in written
    assert "on 0 of 1 data sets (all but tiny):" in written
    assert "- With fewer seeds: peer on tiny (1).\n" in written
    assert "Did not finish: slow on tiny (time-out), gone on tiny (not installed)." in written
    assert "<svg" in (checkout / readme.PLOT).read_text()
    assert readme.main(["--check"], checkout) == 0
    assert readme.main([], checkout) == 0
    assert (checkout / "README.md").read_text() == written


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
