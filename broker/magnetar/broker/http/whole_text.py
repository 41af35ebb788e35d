"""Bodies of requests hold text that can be written down again.

JSON may escape half of a surrogate pair (`"\\ud800"`), and parsers take it for a character. It is
none: it can be written neither into a record nor into an answer, and fails wherever that is tried.
"""

import json
import re

from fastapi import Request

from magnetar.broker.http.refusals import HttpRefusal

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


async def refuse_broken_text(request: Request) -> None:
    """A dependency of all routes.

    Raises:
        HttpRefusal: 400: half of a character.
    """
    data = await request.body()
    if _SURROGATE.search(data) is None:
        return
    try:
        json.dumps(json.loads(data), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise HttpRefusal(400, f"the body holds half of a character: {error.reason}") from error
    except (ValueError, RecursionError):
        return  # Whoever reads it says what is wrong.
