"""The application behind the broker's small one: Pulsar's interface, and its description.

Made when somebody asks for it (`serving/late_application.py`): FastAPI and all the models take
their time.
"""

from fastapi import FastAPI

from magnetar.broker.http.composition import add_routers
from magnetar.broker.http.description import add_description
from magnetar.broker.http.metrics.page import MetricsPage
from magnetar.broker.http.view import BrokerView


def make_interface(broker: BrokerView, page: MetricsPage) -> FastAPI:
    """Whoever asks is known already: `identity` is in the state of each request."""
    app = FastAPI(title="Magnetar broker", version=broker.version, openapi_url=None, docs_url=None)
    add_routers(app, broker, page)
    add_description(app)
    return app
