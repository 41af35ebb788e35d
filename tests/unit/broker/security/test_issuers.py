"""Tokens of OpenID Connect issuers: keys are fetched, kept, and asked for again within bounds."""

import asyncio
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from structlog.testing import capture_logs

from magnetar.broker.base.errors import AuthenticationError
from magnetar.broker.security.issuers import Freshness, Issuers
from magnetar.broker.security.tokens import Claims
from tests.unit.broker.memory_log import ManualClock

ISSUER = "https://issuer.example"


class Issuer:
    """Publishes keys, and signs."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.fetched: list[str] = []
        self.is_away = False
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked = asyncio.Event()
        self.keys: dict[str, ec.EllipticCurvePrivateKey] = {}
        self.more: list[dict[str, Any]] = []
        self.add("one")
        self.issuers = Issuers(
            [ISSUER],
            Claims(audience="us"),
            jwks_url="",
            freshness=Freshness(fresh_s=300, kept_s=3600, refresh_min_s=10),
            fetch=self._fetch,
            clock=self.clock,
        )

    def add(self, key_id: str) -> None:
        self.keys[key_id] = ec.generate_private_key(ec.SECP256R1())

    async def _fetch(self, url: str) -> bytes:
        self.fetched.append(url)
        self.asked.set()
        await self.answers.wait()
        if self.is_away:
            raise OSError("nobody there")
        if url.endswith("openid-configuration"):
            return json.dumps({"issuer": ISSUER, "jwks_uri": f"{ISSUER}/keys"}).encode()
        keys = [
            {**ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": key_id, "use": "sig"}
            for key_id, key in self.keys.items()
        ]
        return json.dumps({"keys": [*self.more, *keys]}).encode()

    def token(self, key_id: str = "one", **claims: Any) -> str:
        given = {"sub": "alice", "iss": ISSUER, "aud": "us", **claims}
        return jwt.encode(given, self.keys[key_id], algorithm="ES256", headers={"kid": key_id})

    async def role(self, token: str) -> str:
        return (await self.issuers.authenticate(token)).role


async def test_a_token_is_checked_with_the_keys_that_its_issuer_publishes() -> None:
    issuer = Issuer()
    assert await issuer.role(issuer.token()) == "alice"
    assert await issuer.role(issuer.token()) == "alice"
    assert issuer.fetched == [f"{ISSUER}/.well-known/openid-configuration", f"{ISSUER}/keys"]


async def test_an_issuer_that_only_the_token_names_is_never_asked() -> None:
    issuer = Issuer()
    for other in ("https://mallory.example", f"{ISSUER}/", ""):
        with pytest.raises(AuthenticationError, match="issuer that is not accepted"):
            await issuer.role(issuer.token(iss=other))
    assert issuer.fetched == []


async def test_a_new_key_is_fetched_and_made_up_ones_do_not_flood_the_issuer() -> None:
    issuer = Issuer()
    await issuer.role(issuer.token())
    issuer.add("two")
    with pytest.raises(AuthenticationError, match="does not publish"):  # asked a moment ago
        await issuer.role(issuer.token("two"))
    issuer.clock.advance(11_000)
    assert await issuer.role(issuer.token("two")) == "alice"
    before = len(issuer.fetched)
    forged = Issuer()
    forged.add("made up")
    for _ in range(5):
        with pytest.raises(AuthenticationError):
            await issuer.role(forged.token("made up"))
    assert len(issuer.fetched) == before


async def test_known_keys_do_while_the_issuer_is_away_but_not_for_ever() -> None:
    issuer = Issuer()
    await issuer.role(issuer.token())
    issuer.is_away = True
    issuer.clock.advance(301_000)
    assert await issuer.role(issuer.token()) == "alice"
    issuer.clock.advance(3_600_000)
    with pytest.raises(AuthenticationError, match="too old"):
        await issuer.role(issuer.token())


async def test_an_issuer_that_never_answered_is_a_reason_to_try_again() -> None:
    issuer = Issuer()
    issuer.is_away = True
    with pytest.raises(AuthenticationError, match="does not answer"):
        await issuer.role(issuer.token())


async def test_a_client_that_disconnects_during_its_login_does_not_keep_others_out() -> None:
    issuer = Issuer()
    issuer.answers.clear()
    first = asyncio.create_task(issuer.role(issuer.token()))
    await issuer.asked.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second = asyncio.create_task(issuer.role(issuer.token()))
    issuer.answers.set()
    assert await second == "alice"
    assert len(issuer.fetched) == 2, "the second login shares the request"


async def test_closing_ends_the_request_under_way() -> None:
    issuer = Issuer()
    issuer.answers.clear()
    login = asyncio.create_task(issuer.role(issuer.token()))
    await issuer.asked.wait()
    issuer.issuers.close()
    with pytest.raises(asyncio.CancelledError):
        await login


async def test_an_issuer_that_lists_no_keys_has_revoked_all_of_them() -> None:
    issuer = Issuer()
    token = issuer.token()
    await issuer.role(token)
    issuer.keys.clear()
    issuer.clock.advance(301_000)
    with capture_logs() as logs:
        for _ in range(2):
            with pytest.raises(AuthenticationError, match="does not publish"):
                await issuer.role(token)
    assert [(each["event"], each["log_level"]) for each in logs] == [
        ("issuer_lists_no_keys", "warning")
    ]
    issuer.add("new")
    issuer.clock.advance(11_000)
    assert await issuer.role(issuer.token("new")) == "alice"


async def test_a_document_whose_keys_are_all_unusable_leaves_the_known_ones_in_force() -> None:
    issuer = Issuer()
    token = issuer.token()
    await issuer.role(token)
    issuer.keys.clear()
    issuer.more = [{"kty": "OKP", "crv": "Ed25519", "x": "YQ", "kid": "new"}]
    issuer.clock.advance(301_000)
    with capture_logs() as logs:
        assert await issuer.role(token) == "alice"
    assert [each["event"] for each in logs] == ["issuer_keys_not_read"]


async def test_keys_of_unknown_kinds_are_left_out_with_a_log_line() -> None:
    issuer = Issuer()
    issuer.more = [
        {"kty": "OKP", "crv": "Ed25519", "x": "YQ", "kid": "new"},
        {"kty": "RSA", "use": "enc", "kid": "encrypts"},
    ]
    with capture_logs() as logs:
        assert await issuer.role(issuer.token()) == "alice"
    assert [(each["event"], each["keys"]) for each in logs] == [("issuer_keys_left_out", 1)]


async def test_symmetric_keys_in_public_are_nobodys() -> None:
    issuer = Issuer()
    issuer.more = [{"kty": "oct", "k": "c2VjcmV0" * 8, "kid": "public"}, {"kty": "RSA"}, {}]
    token = jwt.encode(
        {"sub": "root", "iss": ISSUER, "aud": "us"},
        b"secret" * 8,
        algorithm="HS256",
        headers={"kid": "public"},
    )
    with pytest.raises(AuthenticationError, match="does not publish"):
        await issuer.role(token)
    assert await issuer.role(issuer.token()) == "alice"


async def test_the_audience_must_be_ours() -> None:
    issuer = Issuer()
    with pytest.raises(AuthenticationError, match="another audience"):
        await issuer.role(issuer.token(aud="them"))
