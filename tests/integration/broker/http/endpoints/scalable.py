"""Endpoints of scalable topics, and those by which brokers ask each other about segments."""

from tests.integration.broker.http.endpoints.rows import NAMESPACE, Row, T

S = f"/admin/v2/scalable/{NAMESPACE}"
NOWHERE = S.replace("shop", "nowhere")
SEGMENTS = f"/admin/v2/segments/{NAMESPACE}/segmented"
_SEGMENTED = (("PUT", f"{S}/segmented", None),)
_WRONG = f"{SEGMENTS}/0000-ffff"
_OTHER = f"{SEGMENTS}/0000-ffff-7"
P = f"{SEGMENTS}/0000-ffff-0"

SCALABLE = (
    Row("GET", S, None, 200, None, (NOWHERE, 404)),
    Row(
        "PUT",
        f"{S}/made?numInitialSegments=2",
        {"team": "a"},
        204,
        (f"{S}/made?numInitialSegments=0", None, 412),
        (f"{NOWHERE}/made", 404),
    ),
    Row("GET", f"{S}/made", None, 200, None, (f"{S}/missing", 404)),
    Row("GET", f"{S}/made/stats", None, 200, None, (f"{S}/missing/stats", 404)),
    Row(
        "POST",
        f"{S}/made/split/0",
        None,
        204,
        (f"{S}/made/split/0?at=0", None, 412),
        (f"{S}/made/split/77", 404),
    ),
    Row(
        "POST",
        f"{S}/merged/merge/0/1",
        None,
        204,
        (f"{S}/merged/merge/0/0", None, 412),
        (f"{S}/merged/merge/0/77", 404),
        before=(("PUT", f"{S}/merged?numInitialSegments=2", None),),
    ),
    Row(
        "POST",
        f"{S}/made/autoScalePolicy",
        {"enabled": True, "maxSegments": 4},
        204,
        (f"{S}/made/autoScalePolicy", {"minSegments": 65}, 412),
        (f"{S}/missing/autoScalePolicy", 404),
    ),
    Row("GET", f"{S}/made/autoScalePolicy", None, 200, None, (f"{S}/missing/autoScalePolicy", 404)),
    Row(
        "DELETE",
        f"{S}/made/autoScalePolicy",
        None,
        204,
        None,
        (f"{S}/missing/autoScalePolicy", 404),
    ),
    Row(
        "POST",
        f"{S}/migrated/migrate",
        None,
        204,
        (f"{S}/migrated-partition-0/migrate", None, 412),
        (f"{S}/missing/migrate", 404),
        before=(("PUT", f"{T}/migrated/partitions", 2),),
    ),
    Row("DELETE", f"{S}/made", None, 204, None, (f"{S}/missing", 404)),
    Row(
        "GET",
        f"{P}/stats",
        None,
        200,
        (f"{_WRONG}/stats", None, 412),
        (f"{_OTHER}/stats", 404),
        before=_SEGMENTED,
    ),
    Row(
        "GET",
        f"{P}/used-up",
        None,
        200,
        (f"{_WRONG}/used-up", None, 412),
        before=_SEGMENTED,
    ),
    Row(
        "GET",
        f"{P}/clients",
        None,
        200,
        (f"{_WRONG}/clients", None, 412),
        before=_SEGMENTED,
    ),
    Row(
        "GET",
        f"{P}/subscription/s/backlog",
        None,
        200,
        (f"{_WRONG}/subscription/s/backlog", None, 412),
        before=_SEGMENTED,
    ),
    Row(
        "PUT",
        f"{P}/subscription/s",
        None,
        204,
        (f"{_WRONG}/subscription/s", None, 412),
        (f"{_OTHER}/subscription/s", 404),
        before=_SEGMENTED,
    ),
    # It is neither being split nor merged.
    Row(
        "POST",
        f"{P}/terminate",
        None,
        409,
        (f"{_WRONG}/terminate", None, 412),
        (f"{_OTHER}/terminate", 404),
        before=_SEGMENTED,
    ),
    Row("DELETE", P, None, 204, (_WRONG, None, 412), before=_SEGMENTED),
)
