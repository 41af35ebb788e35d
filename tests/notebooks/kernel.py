"""A kernel that runs the cells of a notebook: what Jupyter's own does, as far as notebooks of ours
need it, without its 60 MB of debugger, completion and terminal.

It runs Python, with `await` between the cells, and shows what cells print, what their last line is,
what they draw and what they raise. Protocol: "Messaging in Jupyter", version 5.3.
"""

import ast
import asyncio
import base64
import inspect
import io
import json
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import zmq
from jupyter_client.session import Session

_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_ABOUT = {
    "status": "ok",
    "protocol_version": "5.3",
    "implementation": "tests.notebooks.kernel",
    "implementation_version": "1",
    "banner": "",
    "language_info": {
        "name": "python",
        "version": sys.version.split()[0],
        "mimetype": "text/x-python",
        "file_extension": ".py",
    },
}


class _Stream(io.TextIOBase):
    """Shows what is printed."""

    def __init__(self, kernel: "Kernel", name: str) -> None:
        self._kernel = kernel
        self._name = name

    def write(self, text: str) -> int:
        if text:
            self._kernel.show("stream", {"name": self._name, "text": text})
        return len(text)


class Kernel:
    """One kernel, for one notebook."""

    def __init__(self, connection: dict[str, Any]) -> None:
        self._session = Session(
            key=connection["key"].encode(), signature_scheme=connection["signature_scheme"]
        )
        self._at = connection
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._requests = [self._bound(context, "shell"), self._bound(context, "control")]
        self._stdin = self._bound(context, "stdin")
        self._shown = self._bound(context, "iopub", zmq.PUB)
        beats = self._bound(context, "hb", zmq.REP)
        threading.Thread(target=self._beat, args=(beats,), daemon=True).start()
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._cells = 0
        self._request: Any = None

    def serve(self) -> None:
        """Answer requests until one says to end."""
        sys.stdout, sys.stderr = _Stream(self, "stdout"), _Stream(self, "stderr")
        poller = zmq.Poller()
        for each in self._requests:
            poller.register(each, zmq.POLLIN)
        while True:
            for ready, _ in poller.poll():
                origins, parts = self._session.feed_identities(ready.recv_multipart())
                self._request = self._session.deserialize(parts)
                kind = self._request["msg_type"]
                self.show("status", {"execution_state": "busy"})
                answer = self._answer(kind, self._request["content"])
                answered = kind.replace("_request", "_reply")
                self._session.send(ready, answered, answer, parent=self._request, ident=origins)
                self.show("status", {"execution_state": "idle"})
                if kind == "shutdown_request":
                    return

    def show(self, kind: str, content: dict[str, Any]) -> None:
        """Tell the notebook of something that belongs to the cell that runs."""
        self._session.send(self._shown, kind, content, parent=self._request)

    def show_figure(self, png: bytes) -> None:
        """Show a picture."""
        data = {"image/png": base64.b64encode(png).decode(), "text/plain": "<Figure>"}
        self.show("display_data", {"data": data, "metadata": {}})

    def _bound(
        self, context: "zmq.Context[zmq.Socket[bytes]]", channel: str, kind: int = zmq.ROUTER
    ) -> "zmq.Socket[bytes]":
        made = context.socket(kind)
        made.linger = 1_000
        made.bind(f"{self._at['transport']}://{self._at['ip']}:{self._at[f'{channel}_port']}")
        return made

    @staticmethod
    def _beat(beats: "zmq.Socket[bytes]") -> None:
        while True:
            beats.send(beats.recv())

    def _answer(self, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        if kind == "kernel_info_request":
            return _ABOUT
        if kind == "execute_request":
            return self._run(content["code"])
        return {"status": "ok", "restart": False, "comms": {}}

    def _run(self, code: str) -> dict[str, Any]:
        self._cells += 1
        self.show("execute_input", {"code": code, "execution_count": self._cells})
        try:
            value = self._evaluate(code)
            if value is not None:
                self._show_value(value)
        except BaseException as error:  # noqa: BLE001 - the notebook shows it
            told = {
                "ename": type(error).__name__,
                "evalue": str(error),
                "traceback": traceback.format_exc().splitlines(),
            }
            self.show("error", told)
            return {"status": "error", "execution_count": self._cells, **told}
        return {
            "status": "ok",
            "execution_count": self._cells,
            "payload": [],
            "user_expressions": {},
        }

    def _evaluate(self, code: str) -> Any:
        """Run a cell; gives the value of its last line, if that is an expression."""
        tree = ast.parse(code)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self._wait_for(compile(tree, f"<cell {self._cells}>", "exec", _FLAGS))
        if last is None:
            return None
        expression = ast.Expression(last.value)  # type: ignore[attr-defined]
        return self._wait_for(compile(expression, f"<cell {self._cells}>", "eval", _FLAGS))

    def _wait_for(self, code: Any) -> Any:
        found = eval(code, self._names)
        if code.co_flags & inspect.CO_COROUTINE:
            return self._loop.run_until_complete(found)
        return found

    def _show_value(self, value: Any) -> None:
        data = {"text/plain": repr(value)}
        as_html = getattr(value, "_repr_html_", None)
        if as_html is not None and (html := as_html()) is not None:
            data["text/html"] = html
        self.show("execute_result", {"data": data, "metadata": {}, "execution_count": self._cells})


def main() -> None:
    """Serve the connection whose file is the first argument."""
    from tests.notebooks import backend

    kernel = Kernel(json.loads(Path(sys.argv[1]).read_text()))
    backend.on_figure = kernel.show_figure
    kernel.serve()


if __name__ == "__main__":
    main()
