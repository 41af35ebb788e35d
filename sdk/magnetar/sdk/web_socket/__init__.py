"""Producers, consumers and readers over WebSocket, for networks that pass only HTTP."""

from magnetar.sdk.web_socket.client import WebSocketClient
from magnetar.sdk.web_socket.consumer import WebSocketConsumer, WebSocketReader
from magnetar.sdk.web_socket.producer import WebSocketProducer

__all__ = ["WebSocketClient", "WebSocketConsumer", "WebSocketProducer", "WebSocketReader"]
