"""Bad input gets an error or a close code; other connections notice nothing, and no event is lost.

Every test leaves the server well: a bystander's stream goes on, the log holds no traceback, /health answers.
"""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock.protocol import frames
from interlock.surfaces.gateway.connection import REQUESTS, STOP_ANSWERS
from surfaces.raw import Bytes, Closed, House, Talk, WireError, greeting, house

INVALID = "INVALID_REQUEST"


class Bystander:
    """A connection that is told a stream of words while others misbehave."""

    def __init__(self, server: House) -> None:
        self.server = server
        self.talk = server.connect()
        self.run = self.talk.request("chat.send", sessionKey="bystander", message="stream", idempotencyKey="b")["runId"]
        self._heard = 0

    def unharmed(self) -> None:
        """Assert that the stream goes on without a hole, and that the server is well."""
        self.talk.request("health")
        words = self._words()
        self.talk.until(lambda: len(self._words()) > max(self._heard, len(words)), "more of the stream")
        self._heard = len(self._words())
        assert self._words() == list(map(str, range(self._heard)))
        assert self.server.healthy()

    def _words(self) -> list[str]:
        told = [each["payload"] for each in self.talk.events if each["event"] == "chat"]
        return "".join(each["deltaText"] for each in told if each["runId"] == self.run).split()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A server."""
    with house(tmp_path_factory.mktemp("bad") / "data", "surfaces.busy:agent", "--driver", "inline") as serving:
        yield serving


@pytest.fixture(scope="module")
def bystander(server: House) -> Iterator[Bystander]:
    """A bystander for all tests: at the end its stream must have no hole."""
    there = Bystander(server)
    yield there
    there.unharmed()
    stopped = there.talk.request("chat.abort", sessionKey="bystander")
    assert stopped["runIds"] == [there.run]
    there.talk.close()


def framed(method: str, params: str, number: str = '"1"') -> str:
    """Return a request frame with these raw params."""
    return f'{{"type":"req","id":{number},"method":"{method}","params":{params}}}'


def send(talk: Talk, method: str, params: str) -> str:
    """Send a request with these raw params; return its id."""
    talk.conversation.client(framed(method, "{}"), lenient=True)
    talk.socket.send(framed(method, params))
    return "1"


def deep(levels: int) -> str:
    """Return a list nested to this depth."""
    return "[" * levels + "]" * levels


# Texts that are no frame: there is no request to answer, so the server closes the connection.
NO_FRAMES: dict[str, tuple[str, int]] = {
    "nothing": ("", 1007),
    "no JSON": ("hello", 1007),
    "half of it": ('{"type":"req","id":"1","method":"hea', 1007),
    "more than one": (framed("health", "{}") + framed("health", "{}"), 1007),
    "a list": ("[]", 1008),
    "a number": ("4", 1008),
    "null": ("null", 1008),
    "no id": ('{"type":"req","method":"health"}', 1008),
    "an id that is a number": (framed("health", "{}", "1"), 1008),
    "an empty id": (framed("health", "{}", '""'), 1008),
    "a long id": (framed("health", "{}", json.dumps("x" * 10_000)), 1008),
    "an id with a control character": (framed("health", "{}", '"a\\u0000b"'), 1008),
    "half a surrogate pair as id": (framed("health", "{}", '"\\ud800"'), 1007),
    "half a surrogate pair": (framed("interlock.find", '{"name":"\\ud800"}'), 1007),
    "half a surrogate pair as a name": (framed("health", '{"\\udfff":1}'), 1007),
    "no type": ('{"id":"1","method":"health"}', 1008),
    "somebody else's type": ('{"type":"res","id":"1","ok":true}', 1008),
    "no method": ('{"type":"req","id":"1"}', 1008),
    "a method that is a list": ('{"type":"req","id":"1","method":[]}', 1008),
    "an unknown field": ('{"type":"req","id":"1","method":"health","more":1}', 1008),
    "a prototype": ('{"type":"req","id":"1","method":"health","__proto__":{}}', 1008),
    "no number": (framed("interlock.wait", '{"run":"r","timeout":NaN}'), 1007),
    "infinity": (framed("interlock.wait", '{"run":"r","timeout":-Infinity}'), 1007),
    "bottomless and open": ('{"type":"req","params":' + "[" * 100_000, 1007),
}


@pytest.mark.parametrize("what", NO_FRAMES)
def test_what_is_no_request_closes_the_connection(server: House, bystander: Bystander, what: str) -> None:
    """A text that is no request closes the connection with the same code before and after connect (race 111)."""
    raw, code = NO_FRAMES[what]
    with server.connect() as talk:
        talk.socket.send(raw)
        assert talk.closed().code == code
    if len(raw) <= frames.PRE_AUTH_BYTES:
        with Talk(server.url) as talk:
            talk.socket.send(raw)
            assert talk.closed().code == code
    bystander.unharmed()


# Params that are too deep. Python versions differ in how deep a frame they can read; an unreadable frame counts as
# none.
TOO_DEEP = {
    "very deep": f'{{"probe":{deep(1_000)}}}',
    "bottomless": f'{{"probe":{deep(100_000)}}}',
    "bottomless objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
}


@pytest.mark.parametrize("what", TOO_DEEP)
def test_what_is_too_deep_is_refused(server: House, bystander: Bystander, what: str) -> None:
    """The server closes the connection as for an unreadable frame, or answers the request with an error."""
    with server.connect() as talk:
        asked = send(talk, "health", TOO_DEEP[what])
        with pytest.raises((Closed, WireError)) as refused:
            talk.answer(asked)
        told = refused.value
        assert told.code == 1007 if isinstance(told, Closed) else told.error["code"] == INVALID
    bystander.unharmed()


# Requests that can be answered: the error says what is wrong, and the connection goes on.
HUGE = "9" * 400
WRONG: dict[str, tuple[str, str]] = {
    "params that are a list": ("health", "[]"),
    "params that are null": ("health", "null"),
    "params that are text": ("health", '"{}"'),
    "an unknown field": ("health", '{"more":1}'),
    "a long unknown field": ("health", json.dumps({"k" * 500_000: 1})),
    "a prototype": ("chat.abort", '{"sessionKey":"s","__proto__":{"admin":true}}'),
    "a constructor": ("interlock.find", '{"name":"x","constructor":{}}'),
    "a Python attribute": ("interlock.find", '{"name":"x","__class__":1}'),
    "33 levels": ("health", f'{{"probe":{deep(32)}}}'),
    "100 levels": ("health", f'{{"probe":{deep(99)}}}'),
    "a missing field": ("chat.abort", "{}"),
    "a wrong type": ("chat.abort", '{"sessionKey":5}'),
    "null for a name": ("chat.abort", '{"sessionKey":null}'),
    "an empty name": ("chat.abort", '{"sessionKey":""}'),
    "a name of spaces": ("chat.abort", '{"sessionKey":"  "}'),
    "a long name": ("chat.abort", json.dumps({"sessionKey": "x" * 513})),
    "an empty message": ("chat.send", '{"sessionKey":"s","message":" ","idempotencyKey":"k"}'),
    "an empty key": ("chat.send", '{"sessionKey":"s","message":"say","idempotencyKey":""}'),
    "an empty key of a stop": ("chat.send", '{"sessionKey":"s","message":"stop","idempotencyKey":""}'),
    "a long key of a stop": (
        "chat.send",
        json.dumps({"sessionKey": "s", "message": "stop", "idempotencyKey": "k" * 9_999}),
    ),
    "attachments": ("chat.send", '{"sessionKey":"s","message":"say","idempotencyKey":"k","attachments":[{"a":1}]}'),
    "an agent's attachments": ("agent", '{"message":"say","idempotencyKey":"k","attachments":[1]}'),
    "an unknown mode": ("chat.send", '{"sessionKey":"s","message":"say","idempotencyKey":"k","queueMode":"reject"}'),
    "a negative time": ("chat.send", '{"sessionKey":"s","message":"say","idempotencyKey":"k","timeoutMs":-1}'),
    "a huge time": ("chat.send", f'{{"sessionKey":"s","message":"say","idempotencyKey":"k","timeoutMs":{HUGE}}}'),
    "a time with a fraction": ("agent.wait", '{"runId":"r","timeoutMs":1.5}'),
    "a time that is true": ("agent.wait", '{"runId":"r","timeoutMs":true}'),
    "a negative wait": ("agent.wait", '{"runId":"r","timeoutMs":-1}'),
    "a huge wait": ("agent.wait", f'{{"runId":"r","timeoutMs":{HUGE}}}'),
    "too many digits": ("agent.wait", '{"runId":"r","timeoutMs":%s}' % ("9" * 5_000)),
    "more than any float": ("interlock.wait", '{"run":"r","timeout":1e400}'),
    "a negative own wait": ("interlock.wait", '{"run":"r","timeout":-0.5}'),
    "a huge agent's time": ("agent", f'{{"message":"say","idempotencyKey":"k","timeout":{HUGE}}}'),
    "a negative agent's time": ("agent", '{"message":"say","idempotencyKey":"k","timeout":-5}'),
    "a huge offset": ("sessions.list", f'{{"offset":{HUGE}}}'),
    "a negative limit": ("chat.history", '{"sessionKey":"s","limit":-1}'),
    "a negative offset": ("sessions.list", '{"offset":-1}'),
    "a negative cursor": ("tasks.list", '{"cursor":"-1"}'),
    "a long cursor": ("tasks.list", json.dumps({"cursor": "9" * 5_000})),
    "a foreign digit as cursor": ("tasks.list", '{"cursor":"\u0663"}'),
    "a cursor that is a number": ("tasks.list", '{"cursor":1}'),
    "a huge number of runs": ("interlock.runs", f'{{"latest":{HUGE}}}'),
    "a negative number of sessions": ("interlock.sessions", '{"limit":-1}'),
    "nothing to stop": ("sessions.abort", "{}"),
    "nothing to stop, of ours": ("interlock.stop", "{}"),
    "two things to stop": ("interlock.stop", '{"run":"a","session":"b"}'),
    "no receipt named": ("receipts.get", "{}"),
    "two receipts named": ("receipts.get", '{"runId":"a","receiptId":"b"}'),
    "no decision": ("exec.approval.resolve", '{"id":"q","decision":1}'),
    "an answer that is a number": ("interlock.answer", '{"question":"q","answer":1}'),
    "an unknown strategy": ("interlock.send", '{"session":"s","text":"say","strategy":"win"}'),
    "an unknown kind": ("interlock.send", '{"session":"s","text":"say","kind":"child"}'),
    "a run's own session": ("interlock.send", '{"session":"run:r-1-1","text":"say"}'),
    "an order that is none": ("interlock.send", '{"session":"s","text":"say","order":["c"]}'),
    "an order of names": ("interlock.send", '{"session":"s","text":"say","order":["c","d"]}'),
    "a schedule in the past": ("interlock.wake", '{"session":"bystander","text":"say","at":1}'),
    "a schedule too often": ("interlock.wake", '{"session":"bystander","text":"say","every":0.001}'),
    "no schedule": ("interlock.wake", '{"session":"bystander","text":"say"}'),
    "a schedule that is none": ("interlock.wake", '{"session":"bystander","text":"say","cron":"* *"}'),
    "nothing that is watched": ("interlock.watch", '{"watch":{"a":1}}'),
    "an unknown method": ("nothing.here", "{}"),
    "a long method": ("x" * 500_000, "{}"),
    "a method of many lines": ("a\\nb\\u0000c", "{}"),
    "a second connect": ("connect", json.dumps(greeting("x"))),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said(server: House, bystander: Bystander, what: str) -> None:
    """A wrong request gets an error with a code and a short text, and its connection goes on."""
    method, params = WRONG[what]
    with server.connect() as talk:
        asked = send(talk, method, params)
        with pytest.raises(WireError) as refused:
            talk.answer(asked)
        error = refused.value.error
        assert error["code"] == INVALID, error
        assert 0 < len(error["message"]) <= 1_000
        assert talk.request("health")["ok"] is True
    bystander.unharmed()


ODD: dict[str, tuple[str, dict[str, Any]]] = {
    "a name with a zero": ("chat.abort", {"sessionKey": "a\0b"}),
    "a name of every plane": ("chat.abort", {"sessionKey": "\U0010ffff\u202e\ufeff\u0001"}),
    "a large limit": ("chat.history", {"sessionKey": "s", "limit": 2**53, "offset": 2**53, "maxChars": 2**53}),
    "a large list": ("tasks.list", {"limit": 2**53, "cursor": "999999999"}),
    "a search for brackets": ("sessions.list", {"search": "%_[]'\";--\0"}),
    "many statuses": ("tasks.list", {"status": ["running"] * 1_000}),
    "a run that never was": ("agent.wait", {"runId": "r-ffffffffffffffffffffffff-1", "timeoutMs": 2**53}),
    "fields of the published protocol": ("health", {"probe": {"any": [1]}, "includeSensitive": True}),
    "32 levels": ("health", {"probe": json.loads(deep(31))}),
    "an order of large numbers": ("interlock.stop", {"session": "s", "order": ["c", 1.7e308]}),
}


@pytest.mark.parametrize("what", ODD)
def test_what_is_odd_is_answered(server: House, bystander: Bystander, what: str) -> None:
    """Unusual values that are not wrong get an answer."""
    method, params = ODD[what]
    with server.connect() as talk:
        talk.request(method, **params)
    bystander.unharmed()


def test_names_and_texts_of_every_kind_come_back_as_they_were(server: House, bystander: Bystander) -> None:
    """Zeroes, every plane of Unicode, quotes and texts like escapes come back unchanged."""
    text = "say \0\x1b[2J\u2028\U0001f9e8\U0010ffff\\ud800 \"'</script> {}"
    name = "s\0\u202e\U0001f9e8"
    with server.connect() as talk:
        run = talk.request("chat.send", sessionKey=name, message=text, idempotencyKey=name)["runId"]
        assert talk.request("agent.wait", runId=name)["result"]["payloads"] == [{"text": text}]
        history = talk.request("chat.history", sessionKey=name)["messages"]
        assert [each["content"][0]["text"] for each in history] == [text, text]
        assert talk.event("chat", lambda each: each["runId"] == run and each["state"] == "final")["sessionKey"] == name
    bystander.unharmed()


# Sizes


def test_a_frame_has_a_limit(server: House, bystander: Bystander) -> None:
    """A frame of 1 MiB is read and a byte more closes with 1009, counted in bytes for any characters."""
    room = frames.FRAME_BYTES - len(framed("nothing", '{"x":""}'))
    for filling in ("x" * room, "\u20ac" * (room // 3)):
        with server.connect() as talk:
            asked = send(talk, "nothing", f'{{"x":"{filling}"}}')
            with pytest.raises(WireError, match=INVALID):
                talk.answer(asked)
            talk.socket.send(framed("nothing", f'{{"x":"{filling}\u20ac"}}'))
            assert talk.closed().code == 1009
    bystander.unharmed()


def test_a_stranger_has_a_smaller_one(server: House, bystander: Bystander) -> None:
    """Before a token is shown, a frame may have 8 KiB, counted in bytes."""
    room = frames.PRE_AUTH_BYTES - len(framed("health", '{"x":""}'))
    for filling, more in (("x" * room, "x"), ("\u20ac" * (room // 3), "\u20ac")):
        with Talk(server.url) as talk:
            send(talk, "health", f'{{"x":"{filling}"}}')
            assert talk.closed().code == 1008  # the frame was read, but the first request must be connect
        with Talk(server.url) as talk:
            send(talk, "health", f'{{"x":"{filling}{more}"}}')
            assert talk.closed().code == 1009
    bystander.unharmed()


# Below JSON


@pytest.mark.parametrize("first", [True, False], ids=["instead of connect", "after connect"])
@pytest.mark.parametrize(
    ("head", "payload", "masked", "codes"),
    [
        (0x82, b"{}", True, {1003}),
        (0x81, b"\xff\xfe{}", True, {1007}),
        (0x81, b'{"type":"req","id":"\xc3', True, {1007}),
        (0x81, b"\xed\xa0\x80", True, {1007}),
        (0x81, b"{}", False, {1002}),
        (0x83, b"{}", True, {1002}),
        (0x8F, b"{}", True, {1002}),
        (0x80, b"{}", True, {1002}),
        (0xC1, b"\xabV\x02\x00", True, {1002}),
        (0xA1, b"{}", True, {1002}),
        (0x89, b"x" * 126, True, {1002}),
        (0x09, b"x", True, {1002}),
        (0x88, b"x", True, {1002}),
        (0x88, b"\x03\xe7", True, {1002}),
        (0x88, b"\x03\xe8\xff", True, {1002, 1007}),
    ],
    ids=[
        "binary", "not UTF-8", "half a character", "a surrogate", "unmasked", "a reserved opcode",
        "a reserved control opcode", "a continuation of nothing", "compressed", "a reserved bit", "a long ping",
        "a fragmented ping", "a short close", "an unknown close", "a close that is no text",
    ],
)  # fmt: skip
def test_frames_below_json(
    server: House, bystander: Bystander, head: int, payload: bytes, masked: bool, codes: set[int], first: bool
) -> None:
    """A frame that breaks RFC 6455 closes with the code that the RFC has for it, before and after connect."""
    with Bytes(server.port) as wire:
        if first:
            wire.frame()
        else:
            wire.let_in(server.token)
        wire.send(head, payload, masked=masked)
        assert wire.closed() in codes
    bystander.unharmed()


def test_a_stranger_who_is_closed_while_it_is_answered(server: House, bystander: Bystander) -> None:
    """A request followed at once by bytes that close the connection gets no answer, and breaks nothing."""
    for _ in range(10):
        with Bytes(server.port) as wire:
            wire.frame()
            raw = framed("health", "{}").encode()
            wire.socket.sendall(bytes([0x81, 0x80 | len(raw), 0, 0, 0, 0]) + raw + b"\x81\x81\0\0\0\0\xff")
            assert wire.closed() in (1006, 1007, 1008)
    bystander.unharmed()


def test_fragments_make_a_frame(server: House, bystander: Bystander) -> None:
    """Fragments, cut inside a character and with a ping in between, make one frame under the same bound."""
    raw = framed("health", "{}", '"\u20ac"').encode()
    with Bytes(server.port) as wire:
        wire.let_in(server.token)
        wire.send(0x01, raw[:22])
        wire.send(0x89, b"still there?")
        for at in range(22, len(raw)):
            wire.send(0x00, raw[at : at + 1])
        wire.send(0x80, b"")
        assert wire.frame() == (10, b"still there?")
        assert b'"ok":true' in wire.frame()[1]
    with Bytes(server.port) as wire:
        wire.let_in(server.token)
        wire.send(0x01, b" " * 600_000)
        wire.send(0x00, b" " * 600_000)
        assert wire.closed() == 1009
    with Bytes(server.port) as wire:
        wire.let_in(server.token)
        wire.send(0x01, b" ")
        wire.send(0x81, b" ")  # another message before the first is complete
        assert wire.closed() == 1002
    bystander.unharmed()


def test_compression_is_not_offered(server: House, bystander: Bystander) -> None:
    """A client that asks for compression is served without, so a compressed bomb cannot be sent."""
    with Bytes(server.port, extra="Sec-WebSocket-Extensions: permessage-deflate\r\n") as wire:
        assert b" 101 " in wire.head and b"permessage" not in wire.head.lower()
    bystander.unharmed()


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"POST /health HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /health HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 9_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 12\r\n\r\n",
    ],
    ids=["TLS", "a version", "a zero", "a length", "a chunk", "a long header", "no key", "an old WebSocket"],
)
def test_http_that_is_none(server: House, bystander: Bystander, raw: bytes) -> None:
    """Bytes that are no HTTP are refused or cut; the server upgrades nothing and goes on."""
    with Bytes(server.port, upgrade=False) as wire:
        wire.socket.sendall(raw)
        try:
            head = wire.until(b"\r\n")
        except ConnectionResetError:
            head = b""
        assert not head or int(head.split()[1]) in (400, 403, 404, 405, 426, 431), head
    bystander.unharmed()


# Connect


@pytest.mark.parametrize(
    ("more", "code", "close"),
    [
        ({"minProtocol": 3, "maxProtocol": 3}, "PROTOCOL_MISMATCH", 1008),
        ({"minProtocol": 5, "maxProtocol": 5}, "PROTOCOL_MISMATCH", 1008),
        ({"minProtocol": 5, "maxProtocol": 3}, "PROTOCOL_MISMATCH", 1008),
        ({"role": "node"}, None, 1008),
        ({"minProtocol": "4"}, None, 1008),
        ({"client": None}, None, 1008),
        ({"client": {"id": "x"}}, None, 1008),
        ({"auth": "x"}, None, 1008),
        ({"auth": {"token": ["x"]}}, None, 1008),
        ({"auth": {"tokn": "x"}}, None, 1008),
        ({"scopes": "operator.admin"}, None, 1008),
        ({"more": 1}, None, 1008),
        ({"device": json.loads(deep(40))}, None, 1008),
    ],
)
def test_a_wrong_connect_is_turned_away(
    server: House, bystander: Bystander, more: dict[str, Any], code: str | None, close: int
) -> None:
    """A wrong connect gets an error that says why, and a close, even with the right token."""
    error, closed = server.refused(server.token, **more)
    assert (error["code"], closed.code) == (INVALID, close)
    assert code is None or error["details"]["code"] == code
    bystander.unharmed()


def test_a_range_that_holds_our_protocol_is_served(server: House) -> None:
    """A client that speaks several versions is served in ours."""
    with server.connect(minProtocol=1, maxProtocol=99) as talk:
        assert talk.hello["protocol"] == frames.PROTOCOL


def test_a_connect_is_not_taken_twice(server: House, bystander: Bystander) -> None:
    """A second connect on the same connection is refused, and the connection's rights do not change."""
    with server.connect(scopes=["operator.read"]) as talk:
        assert talk.refused("connect", **greeting(server.token))["code"] == INVALID
        assert talk.refused("chat.abort", sessionKey="bystander")["code"] == "FORBIDDEN"
    bystander.unharmed()


def test_every_challenge_is_another(server: House) -> None:
    """Every connection gets another nonce."""
    nonces = set()
    for _ in range(8):
        with Talk(server.url) as talk:
            nonces.add(talk.event("connect.challenge")["nonce"])
    assert len(nonces) == 8


# Limits on counts


def test_too_many_requests_at_once(server: House, bystander: Bystander) -> None:
    """The 65th request in flight gets a retryable error; stops are counted apart, with a budget of their own."""
    with server.connect() as talk:
        run = talk.request("chat.send", sessionKey="many", message="sleep", idempotencyKey="many-1")["runId"]
        waiting = [talk.ask("agent.wait", runId=run, timeoutMs=60_000) for _ in range(REQUESTS)]
        error = talk.refused("health")
        assert (error["code"], error["retryable"]) == ("UNAVAILABLE", True)
        assert talk.request("chat.abort", sessionKey="many")["runIds"] == [run]
        assert {talk.answer(each)["stopReason"] for each in waiting} == {"rpc"}
        assert talk.request("health")["ok"] is True
        stops = [talk.ask("chat.abort", sessionKey=f"many-{at}") for at in range(4 * STOP_ANSWERS)]
        # More stops than the budget: each is answered or refused as retryable, exactly once.
        for each in stops:
            try:
                assert talk.answer(each)["aborted"] is False
            except WireError as refused:
                assert refused.error["code"] == "UNAVAILABLE"
        assert talk.conversation.unanswered == []
    bystander.unharmed()


def test_a_used_key_with_another_body_changes_nothing(server: House, bystander: Bystander) -> None:
    """A repeated key with the same body gets the same answer; with another body it is refused."""
    with server.connect() as talk:
        asked: dict[str, Any] = {"sessionKey": "keys", "message": "say", "idempotencyKey": "keys-1"}
        first = talk.request("chat.send", **asked)
        assert talk.request("chat.send", **asked)["runId"] == first["runId"]
        assert talk.refused("chat.send", **asked | {"message": "say more"})["code"] == INVALID
        typed: dict[str, Any] = {"sessionKey": "keys", "message": "stop", "idempotencyKey": "keys-2"}
        told, again = (talk.request("chat.send", **typed) for _ in range(2))
        assert again["receipt"] == told["receipt"] | {"again": True, "drained_at": again["receipt"]["drained_at"]}
        assert talk.refused("chat.send", **typed | {"message": "/new"})["code"] == INVALID
    bystander.unharmed()


@pytest.mark.parametrize("host", ["127.0.0.1", "::ffff:127.0.0.1"])
def test_after_ten_wrong_tokens_an_address_is_told_to_wait(tmp_path: Path, host: str) -> None:
    """Wrong tokens on connect and /metrics are counted together, also for IPv4 in IPv6; a right token still works."""
    if host != "127.0.0.1" and not _mapped():
        pytest.skip("this machine has no IPv6")
    options = ("surfaces.busy:agent", "--driver", "inline", "--host", host, "--public")
    with house(tmp_path / "data", *options) as server:
        url = f"ws://127.0.0.1:{server.port}"
        for at in range(12):
            if at % 2:
                wanted = 401 if at < 10 else 429
                assert server.get("/metrics", (("Authorization", "Bearer wrong"),))[0] == wanted
                continue
            with Talk(url) as talk:
                told = "AUTH_TOKEN_MISMATCH" if at < 10 else "AUTH_RATE_LIMITED"
                assert talk.refused("connect", **greeting("wrong"))["details"]["code"] == told
                assert talk.closed().code == 4001
        assert len(server.noted(kind="refused", by="", address=host, why="AUTH_TOKEN_MISMATCH")) == 10
        assert len(server.noted(kind="refused", by="", address=host, why="AUTH_RATE_LIMITED")) == 2
        with server.connect(url=url) as talk:
            assert talk.request("health")["ok"] is True
        assert server.healthy()


def _mapped() -> bool:
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("::ffff:127.0.0.1", 0))
        except OSError:
            return False
        return True


def test_whoever_leaves_in_the_middle_is_not_missed(server: House, bystander: Bystander) -> None:
    """A client that leaves after half a frame, half a header or with an answer on its way disturbs nobody."""
    with Bytes(server.port) as wire:
        wire.let_in(server.token)
        wire.socket.sendall(b"\x81\xfe\x10\x00\0\0\0\0half")
    with Bytes(server.port, upgrade=False) as wire:
        wire.socket.sendall(b"GET / HT")
    with Bytes(server.port) as wire:
        wire.let_in(server.token)
        for at in range(50):
            wire.send(0x81, framed("sessions.list", "{}", f'"{at}"').encode())
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    bystander.unharmed()


def test_the_bounds_are_those_that_are_told(server: House) -> None:
    """hello-ok names the frame bound that the server enforces, and every method."""
    with server.connect() as talk:
        assert talk.hello["policy"]["maxPayload"] == frames.FRAME_BYTES
        assert sorted(talk.hello["features"]["methods"]) == sorted(frames.METHODS)
