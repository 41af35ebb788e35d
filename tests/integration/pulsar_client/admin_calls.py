"""HTTP requests of tests that use the official client. They block, as that one does."""

import http.client
import json
from typing import Any


class Admin:
    """One broker's HTTP interface."""

    def __init__(self, port: int) -> None:
        self._port = port

    @staticmethod
    def topics(topic: str) -> str:
        return "/admin/v2/persistent/" + topic.removeprefix("persistent://")

    @staticmethod
    def schemas(topic: str) -> str:
        return "/admin/v2/schemas/" + topic.removeprefix("persistent://")

    def request(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        """The status and the body."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text

    def status(self, method: str, path: str, body: object = None) -> int:
        return self.request(method, path, body)[0]

    def done(self, method: str, path: str, body: object = None) -> Any:
        """The value of an answer that must be good."""
        status, text = self.request(method, path, body)
        assert 200 <= status < 300, (status, text)
        return json.loads(text) if text else None

    def get(self, path: str) -> Any:
        return self.done("GET", path)

    def put(self, path: str, body: object = None) -> Any:
        return self.done("PUT", path, body)

    def post(self, path: str, body: object = None) -> Any:
        return self.done("POST", path, body)

    def delete(self, path: str) -> Any:
        return self.done("DELETE", path)
