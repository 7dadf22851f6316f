"""Which agents get a job's token over TCP: real TLS on this machine, without sandboxes."""

import asyncio
import contextlib
import datetime
import shutil
import ssl

import pytest
import trustme
from aiohttp import web

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox import InfrastructureFailure, connect
from miles_periodic.plugins.pbox.agent import certificates
from miles_periodic.plugins.pbox.agent.settings import AgentSettings
from miles_periodic.plugins.pbox.client.trust import context_for

TOKEN = "a-token-that-only-a-verified-agent-sees"
HOST = "127.0.0.1"


@contextlib.asynccontextmanager
async def agent(context):
    """What answers as an agent does; its address, and the tokens that it has seen."""
    seen = []

    @web.middleware
    async def look(request, handler):
        seen.extend(
            [request.headers["Authorization"]] if "Authorization" in request.headers else []
        )
        return await handler(request)

    async def control(request):
        connection = web.WebSocketResponse()
        await connection.prepare(request)
        await connection.send_json({"lease": "a-lease"})
        async for _ in connection:
            continue
        return connection

    async def answer(request):
        return web.json_response({"cpus": "7"})

    app = web.Application(middlewares=[look])
    app.add_routes([web.get("/v1/control", control), web.get("/v1/node", answer),
                    web.get("/metrics", answer)])  # fmt: skip
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, HOST, 0, ssl_context=context).start()
    scheme = "https" if context else "http"
    try:
        yield f"{scheme}://{HOST}:{runner.addresses[0][1]}", seen
    finally:
        await runner.cleanup()


async def answered(context, ca_file, scheme=""):
    """What connecting comes to, and the tokens that were seen on the other side."""
    async with agent(context) as (address, seen):
        if scheme:
            address = f"{scheme}://{address.partition('://')[2]}"
        try:
            connecting = connect(address, token=TOKEN, ca_file=ca_file, timeout_seconds=2.0)
            async with connecting as host:
                return await host.node(), seen
        except PeriodicError as error:
            return error, seen


@pytest.fixture
def own(tmp_path):
    """An agent's own certificate and key, for this address."""
    return certificates.make(tmp_path, HOST)


def test_an_agent_is_known_by_the_certificate_that_it_made(own):
    said, seen = asyncio.run(answered(certificates.server_context(*own), own[0]))
    assert (said, set(seen)) == ({"cpus": "7"}, {f"Bearer {TOKEN}"})
    assert own[1].stat().st_mode & 0o077 == 0


def test_a_certificate_that_an_agent_made_passes_the_strictest_verification(own, tmp_path):
    """As Python does from 3.13 on; and it vouches for itself alone."""
    strict = ssl.create_default_context(cafile=own[0])
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = certificates.server_context(*own).wrap_bio(ours, theirs, server_side=True)
    client = strict.wrap_bio(theirs, ours, server_hostname=HOST)
    for end in (client, server, client):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    assert ("subjectAltName", (("IP Address", HOST),)) in client.getpeercert().items()


def test_each_of_several_agents_is_known_by_its_own_certificate(own, tmp_path):
    """As the nodes of a job are, whose certificates lie in one file."""
    pairs = [own]
    for name in ("second", "third"):
        (tmp_path / name).mkdir()
        pairs.append(certificates.make(tmp_path / name, HOST))
    trusted = tmp_path / "trusted.pem"
    trusted.write_text("".join(certificate.read_text() for certificate, _ in pairs))
    for pair in pairs:
        said, _ = asyncio.run(answered(certificates.server_context(*pair), trusted))
        assert said == {"cpus": "7"}


def test_an_agent_is_known_by_its_authority(tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    chain = written(authority.issue_cert(HOST), tmp_path)
    said, _ = asyncio.run(answered(certificates.server_context(*chain), tmp_path / "ca.pem"))
    assert said == {"cpus": "7"}


def written(issued, folder):
    issued.private_key_pem.write_to_path(folder / "key")
    for pem in issued.cert_chain_pems:
        pem.write_to_path(folder / "chain", append=True)
    return folder / "chain", folder / "key"


LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
FAR_AHEAD = datetime.datetime(2999, 1, 1, tzinfo=datetime.timezone.utc)


@pytest.mark.parametrize("names, dates, remedy", [
    (["10.9.8.7"], {}, "Write one of its names into the address"),
    ([HOST], {"not_before": LONG_AGO, "not_after": LONG_AGO}, "a certificate that is valid"),
    ([HOST], {"not_before": FAR_AHEAD, "not_after": FAR_AHEAD}, "Set the clocks of both nodes"),
], ids=["another name", "expired", "not yet valid"])  # fmt: skip
def test_a_certificate_that_will_not_do_is_refused_before_the_token_is_sent(
    tmp_path, names, dates, remedy
):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    chain = written(authority.issue_cert(*names, **dates), tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*chain)
    said, seen = asyncio.run(answered(context, tmp_path / "ca.pem"))
    assert (isinstance(said, InfrastructureFailure), seen) == (True, [])
    assert remedy in str(said)


def test_an_agent_that_nobody_vouches_for_gets_no_token(own, tmp_path):
    (tmp_path / "other").mkdir()
    another, _ = certificates.make(tmp_path / "other", HOST)
    for trusted in (another, ""):
        said, seen = asyncio.run(answered(certificates.server_context(*own), trusted))
        assert ("with PBOX_CA_FILE" in str(said), seen) == (True, [])


def test_a_plain_client_of_an_agent_with_a_certificate_is_told_so(own):
    said, _ = asyncio.run(answered(certificates.server_context(*own), "", scheme="http"))
    assert "at an https:// address" in str(said)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_whoever_breaks_off_a_handshake_has_seen_no_token(own, scheme):
    """What speaks TLS breaks off a plain request, which must not have had the token in it."""

    async def listen():
        arrived = bytearray()

        async def break_off(reader, writer):
            arrived.extend(await reader.read(4096))
            writer.close()

        server = await asyncio.start_server(break_off, HOST, 0)
        address = f"{scheme}://{HOST}:{server.sockets[0].getsockname()[1]}"
        trusted = own[0] if scheme == "https" else ""
        async with server:
            with pytest.raises(InfrastructureFailure):
                async with connect(address, token=TOKEN, ca_file=trusted, timeout_seconds=0.5):
                    pass
        return bytes(arrived)

    arrived = asyncio.run(listen())
    assert (arrived != b"", TOKEN.encode() in arrived) == (True, False)


def test_an_agent_without_a_certificate_where_one_is_asked_for_gets_no_token(own):
    said, seen = asyncio.run(answered(None, own[0], scheme="https"))
    assert ("it does not speak TLS" in str(said), seen) == (True, [])


def test_an_address_without_tls_is_refused_where_there_is_something_to_verify_with(
    own, monkeypatch
):
    monkeypatch.setenv("PBOX_CA_FILE", str(own[0]))
    with pytest.raises(PeriodicError, match="Write https:// into the address"):
        context_for("http://node:1")
    assert context_for("unix:/run/pbox/agent.sock") is None
    assert context_for("https://node:1").verify_mode == ssl.CERT_REQUIRED


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_certificates_to_trust_that_are_none_are_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "ca.pem").write_bytes(content)
    with pytest.raises(PeriodicError, match="Set PBOX_CA_FILE to a file of certificates"):
        context_for("https://node:1", tmp_path / "ca.pem")


def test_what_is_no_address_is_refused():
    with pytest.raises(PeriodicError, match="Write unix:PATH, https://HOST:PORT"):
        context_for("node:1")


@pytest.mark.parametrize("fault", ["none", "no file", "another key", "encrypted key"])
def test_files_that_make_no_certificate_are_refused_at_the_start(own, tmp_path, fault):
    certificate, key = own
    if fault == "none":
        certificate.write_text("none")
    elif fault == "no file":
        key.unlink()
    elif fault == "another key":
        (tmp_path / "other").mkdir()
        shutil.copy(certificates.make(tmp_path / "other", HOST)[1], key)
    else:
        encrypt(key)
    with pytest.raises(PeriodicError, match="(?s)cannot speak TLS.*not encrypted"):
        certificates.server_context(certificate, key)


def encrypt(file):
    from cryptography.hazmat.primitives import serialization as parts

    key = parts.load_pem_private_key(file.read_bytes(), None)
    how = parts.BestAvailableEncryption(b"secret")
    file.write_bytes(key.private_bytes(parts.Encoding.PEM, parts.PrivateFormat.PKCS8, how))


def test_a_certificate_that_has_expired_is_refused_at_the_start(tmp_path):
    issued = trustme.CA().issue_cert(HOST, not_before=LONG_AGO, not_after=LONG_AGO)
    with pytest.raises(PeriodicError, match="has expired"):
        certificates.server_context(*written(issued, tmp_path))


@pytest.mark.parametrize("host", ["node-7.cluster", "10.0.0.1", "::1", "[::1]"])
def test_a_certificate_is_for_a_name_or_an_address(tmp_path, host):
    certificate, _ = certificates.make(tmp_path, host)
    names = ssl._ssl._test_decode_cert(str(certificate))["subjectAltName"]
    kind = "DNS" if host.startswith("node") else "IP Address"
    assert [name for name, _ in names] == [kind]


def test_what_is_no_name_for_a_certificate_is_refused(tmp_path):
    with pytest.raises(PeriodicError, match="--listen-on"):
        certificates.make(tmp_path, "knöten")


@pytest.mark.parametrize("given", [{"certificate": "c"}, {"key": "k"},
                                   {"certificate": "c", "key": "k"}])  # fmt: skip
def test_half_a_pair_or_a_pair_for_a_socket_is_refused(given):
    with pytest.raises(ValueError, match="certificate"):
        AgentSettings(**given)
    AgentSettings(listen="node:0", certificate="c", key="k")
