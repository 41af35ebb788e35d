"""Options of queries that ask no server: checked at the start, and no secret is shown."""

import json
import pickle
import re

import pytest

from magnetar.arrow.stored.errors import OptionError
from magnetar.arrow.stored.source_options import SourceOptions

TOPIC = {"topic": "t"}


def read(**options: str) -> SourceOptions:
    return SourceOptions.read({**TOPIC, **options}, is_stream=False)


def refused(options: dict[str, str], *, is_stream: bool = False) -> str:
    with pytest.raises(OptionError) as caught:
        SourceOptions.read({**TOPIC, **options}, is_stream=is_stream)
    return str(caught.value)


def test_a_url_is_enough_and_stands_for_any_name() -> None:
    found = read(objects="s3://bucket/prefix").objects
    assert found is not None
    settings = found.find("whatever")
    assert settings is not None
    assert json.loads(settings) == {"name": "objects", "url": "s3://bucket/prefix"}
    assert (found.prefix, found.instance, found.shown) == ("", "", "s3://bucket/prefix")


def test_a_store_that_is_no_providers_has_options_of_its_own() -> None:
    found = read(
        objects="s3://bucket",
        objectsEndpoint="http://127.0.0.1:9000",
        objectsRegion="eu-west-1",
        objectsPathStyle="false",
        objectsAllowHttp="true",
        objectsPrefix="one/",
        objectsInstance="5f0c",
    ).objects
    assert found is not None
    assert json.loads(str(found.find("main"))) == {
        "name": "objects",
        "url": "s3://bucket",
        "endpoint": "http://127.0.0.1:9000",
        "region": "eu-west-1",
        "path_style": False,
        "allow_http": True,
    }
    assert (found.prefix, found.instance) == ("one/", "5f0c")


def test_the_brokers_list_of_stores_is_taken_as_it_is() -> None:
    stores = [{"name": "main", "url": "file:///a"}, {"name": "old", "url": "s3://bucket"}]
    found = read(objects=json.dumps(stores)).objects
    assert found is not None
    assert json.loads(str(found.find("old"))) == stores[1]
    assert found.find("other") is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"objects": "bucket"}, "option objects: the url of an object store is s3://"),
        ({"objects": "file:///a", "service.url": "pulsar://b"}, "option service.url: .* objects"),
        ({"objects": "file:///a", "admin.url": "http://b"}, "option admin.url"),
        ({"objects": "file:///a", "metadata.url": "zk://b"}, "option metadata.url"),
        ({"objects": "file:///a", "readMode": "direct"}, "option readMode"),
        ({"objects": "file:///a", "authentication": "token:x"}, "option authentication"),
        ({"objects": "file:///a", "bookieTimeoutMs": "5"}, "option bookieTimeoutMs"),
        ({"objects": "file:///a", "objectsEndpoint": "http://b"}, "option objects.*endpoint"),
        ({"objects": "s3://abc", "objectsEndpoint": "http://b"}, "option objects.*allow_http"),
        ({"objects": "s3://abc", "objectsEndpoint": "b"}, "option objectsEndpoint"),
        ({"objects": "s3://abc", "objectsRegion": "a b"}, "option objectsRegion"),
        ({"objects": "file:///a", "objectsPrefix": "one"}, "option objectsPrefix.*slash"),
        ({"objects": "file:///a", "objectsInstance": "a/b~"}, "option objectsInstance"),
        ({"objects": "[]"}, "option objects: it names no store"),
        ({"objects": "[1"}, "option objects: it is no JSON"),
        ({"objects": '[{"name": "a"}]'}, "option objects: url: Field required"),
        ({"objects": '[{"name": "a", "url": "file:///a", "x": 1}]'}, "option objects: x: "),
        ({"objects": "[]", "objectsRegion": "a"}, "option objectsRegion.*list"),
        ({"objectsRegion": "a", "service.url": "pulsar://b"}, "objectsRegion.*option objects only"),
        ({"objects": "file:///a", "objectInstance": "a"}, "did you mean objectsInstance"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_name(options: dict[str, str], text: str) -> None:
    assert re.search(text, refused(options))


def test_two_stores_of_one_name_are_refused() -> None:
    stores = [{"name": "main", "url": "file:///a"}, {"name": "main", "url": "file:///b"}]
    assert "one name" in refused({"objects": json.dumps(stores)})


def test_a_stream_is_refused_and_told_what_to_do() -> None:
    text = refused({"objects": "file:///a"}, is_stream=True)
    assert text.startswith("option objects: it is for batch queries only")
    assert "service.url" in text


@pytest.mark.parametrize(
    "objects",
    [
        "s3://key:hidden@bucket",
        '[{"name": "a", "url": "s3://key:hidden@bucket"}]',
        '[{"name": "a", "url": "s3://bucket", "secret_access_key": "hidden"}]',
        "[hidden",
    ],
)
def test_a_secret_in_the_wrong_place_is_refused_and_not_shown(objects: str) -> None:
    assert "hidden" not in refused({"objects": objects})


def test_options_travel_to_executors() -> None:
    options = read(objects="s3://bucket")
    assert pickle.loads(pickle.dumps(options)) == options
