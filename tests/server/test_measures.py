"""Metrics in Prometheus' text format."""

from __future__ import annotations

from ctypes import c_double
from multiprocessing import RawArray

from zipfel.server.measures import LENGTH, MODELS, Measures, route_of


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


def test_models_are_counted_apart_and_by_name_whatever_their_order_in_a_process():
    shared = RawArray(c_double, 2 * LENGTH)
    one, other = Measures(shared, 2, 0), Measures(shared, 2, 1)
    one.model("a").request(200, 0.003)
    for measures, id in ((one, 'b"'), (other, 'b"'), (other, "a")):
        measures.model(id).request(503, 2.0)
        measures.model(id).queued(0.2)
        measures.model(id).batch(7)
    for _ in range(MODELS):
        again = Measures(shared, 2, 0)  # a process that replaces the first uses its places
        again.model('b"')
    assert [bytes(name).rstrip(b"\0") for name in again.names[0, :3]] == [b"a", b'b"', b""]
    again.model('b"').request(200, 0.001)
    lines = again.text([], 0).splitlines()
    expected = [
        'zipfel_model_requests_total{model="a",status="200"} 1',
        'zipfel_model_requests_total{model="a",status="503"} 1',
        'zipfel_model_requests_total{model="b\\"",status="200"} 1',
        'zipfel_model_requests_total{model="b\\"",status="503"} 2',
        'zipfel_model_request_seconds_count{model="b\\""} 3',
        'zipfel_model_request_seconds_sum{model="a"} 2.003000',
        'zipfel_model_queue_seconds_bucket{model="a",le="0.1"} 0',
        'zipfel_model_queue_seconds_bucket{model="a",le="0.25"} 1',
        'zipfel_model_batch_texts_sum{model="b\\""} 14.000000',
        'zipfel_model_batch_texts_bucket{model="b\\"",le="8"} 2',
    ]
    assert [line for line in expected if line not in lines] == []


def test_more_models_than_there_is_room_for_are_counted_as_one():
    measures = Measures()
    for number in range(MODELS + 5):
        measures.model(f"model {number}").request(200, 0.1)
    lines = [line for line in measures.text([], 0).splitlines() if line.startswith("zipfel_model_requests_total{")]
    assert len(lines) == MODELS
    assert lines[-1] == f'zipfel_model_requests_total{{model="model {MODELS - 1}",status="200"}} 6'


def test_metrics_of_models_and_memory_come_from_requests(serving):
    client = serving("glas", "mnn")
    client.tag(["paper", "wifi"], model="mnn")
    client.tag([], k=0, model="mnn")  # refused before a model is chosen
    metrics = client.ask("GET", "/metrics").text
    assert 'zipfel_model_requests_total{model="mnn",status="200"} 1' in metrics
    assert 'zipfel_model_queue_seconds_count{model="mnn"} 1' in metrics
    assert 'zipfel_model_batch_texts_sum{model="mnn"} 2.000000' in metrics
    assert 'zipfel_model_batch_texts_sum{model="glas"} 0.000000' in metrics
    used = {
        line.split("{")[0]: int(line.split()[1])
        for line in metrics.splitlines()
        if line.startswith("zipfel_") and "_bytes{" in line
    }
    assert 10 << 20 < used["zipfel_private_bytes"] < used["zipfel_resident_bytes"] < 1 << 40
