"""Metrics in Prometheus' text format."""

from __future__ import annotations

from ctypes import c_double
from multiprocessing import RawArray

from zipfel.server.measures import LENGTH, Measures, route_of


def test_counts_of_all_processes_add_up():
    shared = RawArray(c_double, 2 * LENGTH)
    one, other = Measures(shared, 2, 0), Measures(shared, 2, 1)
    for measures, status, seconds in ((one, 200, 0.001), (one, 200, 0.04), (other, 200, 60), (other, 418, 0.02)):
        measures.request("/tag", status, seconds)
    one.batch(3)
    other.batch(1000)
    lines = one.text([('a"b', "v1")], 7).splitlines()
    expected = [
        'zipfel_requests_total{route="/tag",status="200"} 3',
        'zipfel_requests_total{route="/tag",status="other"} 1',
        'zipfel_request_seconds_bucket{route="/tag",le="0.001"} 1',
        'zipfel_request_seconds_bucket{route="/tag",le="0.025"} 2',
        'zipfel_request_seconds_bucket{route="/tag",le="0.05"} 3',
        'zipfel_request_seconds_bucket{route="/tag",le="5.0"} 3',
        'zipfel_request_seconds_bucket{route="/tag",le="+Inf"} 4',
        'zipfel_request_seconds_sum{route="/tag"} 60.061000',
        'zipfel_request_seconds_count{route="/tag"} 4',
        'zipfel_batch_texts_bucket{le="2"} 0',
        'zipfel_batch_texts_bucket{le="4"} 1',
        'zipfel_batch_texts_bucket{le="256"} 1',
        'zipfel_batch_texts_bucket{le="+Inf"} 2',
        "zipfel_batch_texts_sum 1003.000000",
        "zipfel_batch_texts_count 2",
        "zipfel_waiting_texts 7",
        'zipfel_model_info{id="a\\"b",version="v1"} 1',
    ]
    assert [line for line in expected if line not in lines] == []
    assert other.text([], 0).splitlines()[:20] == lines[:20]


def test_unknown_routes_are_counted_as_one():
    assert [route_of(path) for path in ("/tag", "/labels/a/b", "/page/x.js", "/tagg", "/labels")] == [
        "/tag",
        "/labels/{name}",
        "/page",
        "other",
        "/labels",
    ]


def test_metrics_count_requests(serving):
    client = serving("glas")
    client.tag(["paper"])
    client.ask("GET", "/nowhere")
    answer = client.ask("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'zipfel_requests_total{route="/tag",status="200"} 1' in answer.text
    assert 'zipfel_requests_total{route="other",status="404"} 1' in answer.text
    assert "zipfel_batch_texts_sum 1" in answer.text
