"""Guards where scans look: each place on its own wire, what is no plain file in it, and files that change meanwhile."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from uuid import UUID

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from moto import mock_aws

from infra.local.standins.ftp import PASSWORD, USER, FtpStandIn, Held
from shared.kernel import aws
from shared.kernel.clock import process_time
from shared.kernel.errors import Permanent, Transient
from shared.row_job.adapters.inbox import PART, Folder, FtpServer, Pumped, S3Inbox
from shared.row_job.ports import Changed, Inbox, Listed
from tests.support.strict_s3 import forbidden, uploads_gone

BUCKET, TENANT, OTHER = "baton-uploads", UUID(int=7), UUID(int=8)
HOSTILE = [
    "../up.csv",
    "a/b.csv",
    "..",
    ".hidden.csv",
    "run.sh",
    "x" * 300 + ".csv",
    "no\x07bell.csv",
    "back\\slash.csv",
]


@pytest.fixture(scope="module")
def bucket() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        aws.client.cache_clear()
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket=BUCKET)
        yield client
        aws.client.cache_clear()


@pytest.fixture
def s3(bucket: Any) -> Any:
    for each in bucket.list_objects_v2(Bucket=BUCKET).get("Contents", []):
        bucket.delete_object(Bucket=BUCKET, Key=each["Key"])
    return bucket


@pytest.fixture
def ftp() -> Iterator[FtpStandIn]:
    with FtpStandIn() as server:
        yield server


def server_at(ftp: FtpStandIn, **other: Any) -> FtpServer:
    known = {
        "host": "127.0.0.1",
        "port": ftp.port,
        "user": USER,
        "password": PASSWORD,
        "directory": "/out",
        "tls": False,
    }
    return FtpServer(**{**known, "private": True, **other})


def content_at(s3: Any, key: str) -> bytes:
    content: bytes = s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    return content


class Place:
    """The same questions for each of the three."""

    def __init__(self, name: str, s3: Any, ftp: FtpStandIn, folder: Path) -> None:
        self.name, self.s3, self.ftp, self.folder = name, s3, ftp, folder / str(TENANT)
        self.folder.mkdir()
        other = {
            "s3": S3Inbox(BUCKET, TENANT),
            "ftp": Pumped(BUCKET, server_at(ftp)),
            "folder": Pumped(BUCKET, Folder(folder, TENANT)),
        }
        self.inbox: Inbox = other[name]  # type: ignore[assignment]

    def put(self, name: str, content: bytes, modified: str = "20261117010000") -> None:
        if self.name == "s3":
            self.s3.put_object(Bucket=BUCKET, Key=f"inbox/{TENANT}/{name}", Body=content)
        elif self.name == "ftp":
            self.ftp.put(name, content, modified)
        elif "/" not in name and name != ".." and len(name) < 250:  # what a folder can hold
            (self.folder / name).write_bytes(content)


def refused_copies(place: Place, file: Listed) -> None:
    """What S3 says to a copy of another version than was asked for; the stand-in for it would copy."""

    def answer(params: dict[str, Any], **_: Any) -> None:
        if params["headers"].get("x-amz-copy-source-if-match") == file.stamp:
            raise ClientError({"Error": {"Code": "PreconditionFailed"}}, "CopyObject")

    aws.client("s3").meta.events.register("before-call.s3.CopyObject", answer, unique_id="refused")


@pytest.fixture(params=["s3", "ftp", "folder"])
def place(request: pytest.FixtureRequest, s3: Any, ftp: FtpStandIn, tmp_path: Path) -> Place:
    return Place(request.param, s3, ftp, tmp_path)


def test_a_file_is_listed_and_brought_as_it_is(place: Place, s3: Any) -> None:
    place.put("b.csv", b"title\nTV\n")
    place.put("a.CSV", b"title\nRadio\n")
    place.put("c.xlsx", b"PK...")
    place.put("empty.csv", b"")

    first, second, third = place.inbox.files()

    assert [(each.name, each.size) for each in (first, second, third)] == [("a.CSV", 12), ("b.csv", 9), ("c.xlsx", 5)]
    assert place.inbox.files() == [first, second, third], "it is the same until it is written again"
    assert place.inbox.bring(second, "uploads/x", None, 5.0) is None
    assert content_at(s3, "uploads/x") == b"title\nTV\n"


def test_what_is_no_plain_file_is_passed_over(place: Place) -> None:
    for name in HOSTILE:
        place.put(name, b"title\nTV\n")
    place.put("good.csv", b"title\nTV\n")

    assert [file.name for file in place.inbox.files()] == ["good.csv"]


def test_a_file_that_is_written_again_meanwhile_is_not_brought(place: Place, s3: Any) -> None:
    place.put("a.csv", b"title\nTV\n")
    (file,) = place.inbox.files()
    place.put("a.csv", b"title\nTVs\n", modified="20261117010001")
    if place.name == "s3":
        refused_copies(place, file)

    with pytest.raises(Changed):
        place.inbox.bring(file, "uploads/x", None, 5.0)
    assert s3.list_objects_v2(Bucket=BUCKET, Prefix="uploads/").get("KeyCount") == 0


def test_a_file_that_is_gone_is_not_brought(place: Place) -> None:
    with pytest.raises(Changed):
        place.inbox.bring(Listed("gone.csv", 5, "1"), "uploads/x", None, 5.0)


def test_an_upload_that_is_gone_and_made_no_file_is_begun_again(s3: Any, ftp: FtpStandIn, tmp_path: Path) -> None:
    place = Place("folder", s3, ftp, tmp_path)
    place.put("large.csv", b"title\n" + b"x" * (PART + 10))
    (file,) = place.inbox.files()
    half = place.inbox.bring(file, "uploads/x", None, 0.0)
    assert half is not None

    with uploads_gone(aws.client("s3")), pytest.raises(Changed):
        place.inbox.bring(file, "uploads/x", half, 60.0)
    with uploads_gone(aws.client("s3")), forbidden(aws.client("s3")), pytest.raises(Transient, match="isn't allowed"):
        place.inbox.bring(file, "uploads/x", half, 60.0)


def test_a_file_that_may_not_be_read_has_not_changed(s3: Any, ftp: FtpStandIn, tmp_path: Path) -> None:
    place = Place("s3", s3, ftp, tmp_path)
    place.put("a.csv", b"title\nTV\n")
    (file,) = place.inbox.files()

    with forbidden(aws.client("s3")), pytest.raises(Transient, match="isn't allowed to use"):
        place.inbox.bring(file, "uploads/x", None, 5.0)


@pytest.mark.usefixtures("s3")
def test_a_list_that_is_forbidden_is_no_empty_inbox() -> None:
    with Stubber(aws.client("s3")) as stub:
        stub.add_client_error("list_objects_v2", "AccessDenied")
        with pytest.raises(Transient, match=r"isn't allowed to use .* \(AccessDenied\)"):
            S3Inbox(BUCKET, TENANT).files()


@pytest.mark.full
@pytest.mark.parametrize("name", ["ftp", "folder"])
def test_a_large_file_comes_in_parts_and_a_part_that_comes_twice_is_one(
    name: str, s3: Any, ftp: FtpStandIn, tmp_path: Path
) -> None:
    place = Place(name, s3, ftp, tmp_path)
    content = b"title\n" + bytes(range(32, 127)) * (PART // 95) + b"the end\n" * 20
    place.put("large.csv", content)
    (file,) = place.inbox.files()

    half = place.inbox.bring(file, "uploads/x", None, 0.0)
    assert half is not None
    assert half["parts"] == 1
    assert s3.list_objects_v2(Bucket=BUCKET, Prefix="uploads/").get("KeyCount") == 0, "nobody sees half a file"
    assert place.inbox.bring(file, "uploads/x", {**half, "parts": 0}, 60.0) is None, "a step that died is done again"
    assert content_at(s3, "uploads/x") == content
    assert place.inbox.bring(file, "uploads/x", {**half, "parts": 2}, 60.0) is None, (
        "it was made, and nobody heard of it"
    )
    assert content_at(s3, "uploads/x") == content


def test_a_prefix_holds_the_files_of_one_tenant(s3: Any) -> None:
    s3.put_object(Bucket=BUCKET, Key=f"inbox/{OTHER}/theirs.csv", Body=b"x")
    s3.put_object(Bucket=BUCKET, Key=f"inbox/{TENANT}/mine.csv", Body=b"x")

    assert [file.name for file in S3Inbox(BUCKET, TENANT).files()] == ["mine.csv"]


def test_no_link_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "secret.csv"
    outside.write_bytes(b"secret")
    folder = Folder(tmp_path / "in", TENANT)
    home = tmp_path / "in" / str(TENANT)
    home.mkdir(parents=True)
    (home / "link.csv").symlink_to(outside)
    (home / "dir.csv").mkdir()

    assert Pumped(BUCKET, folder).files() == []
    for name in ("link.csv", "../../secret.csv"):
        with pytest.raises((Changed, Transient)):
            Pumped(BUCKET, folder).bring(Listed(name, 6, str(outside.stat().st_mtime_ns)), "uploads/x", None, 5.0)


def test_an_older_server_lists_names_alone(ftp: FtpStandIn) -> None:
    ftp.knows_mlsd = False
    ftp.put("a.csv", b"12345")
    ftp.files["folder.csv"] = Held(b"", is_folder=True)

    assert Pumped(BUCKET, server_at(ftp)).files() == [Listed("a.csv", 5, "20261117010000")]
    ftp.files.clear()
    assert Pumped(BUCKET, server_at(ftp)).files() == []


def test_a_name_in_another_encoding_hides_no_other_file(ftp: FtpStandIn, s3: Any) -> None:
    ftp.put("Möbel.csv", b"12345")
    ftp.put("M\udcf6bel.csv", b"1")  # as Windows-1252 has it
    inbox = Pumped(BUCKET, server_at(ftp))

    (found,) = inbox.files()
    assert found == Listed("Möbel.csv", 5, "20261117010000")
    assert inbox.bring(found, "uploads/x", None, 5.0) is None
    assert content_at(s3, "uploads/x") == b"12345"


def test_a_file_that_is_told_twice_is_one(ftp: FtpStandIn) -> None:
    """A scan keeps each name once: two of them in one list could not be kept at all."""
    ftp.put("a.csv", b"12345")
    ftp.tells_twice = True

    assert Pumped(BUCKET, server_at(ftp)).files() == [Listed("a.csv", 5, "20261117010000")]


def test_a_transfer_that_breaks_off_is_no_file(ftp: FtpStandIn, s3: Any) -> None:
    ftp.put("a.csv", b"title\nTV\n")
    ftp.cuts_at = 3

    with pytest.raises(Changed):
        Pumped(BUCKET, server_at(ftp)).bring(Listed("a.csv", 9, "20261117010000"), "uploads/x", None, 5.0)
    assert s3.list_objects_v2(Bucket=BUCKET).get("KeyCount") == 0


@pytest.mark.parametrize(
    ("other", "error", "code"),
    [
        ({"password": "wrong"}, Permanent, "ftp_login"),
        ({"private": False}, Permanent, "ftp_private"),
        ({"tls": True}, Permanent, "ftp_refused"),
        ({"directory": "/elsewhere"}, Permanent, "ftp_directory"),
        ({"port": 1}, Transient, "no_ftp_now"),
    ],
)
def test_a_server_that_does_not_let_us_in(ftp: FtpStandIn, other: dict[str, Any], error: type[Any], code: str) -> None:
    with pytest.raises(error) as told:
        Pumped(BUCKET, server_at(ftp, **other)).files()

    assert told.value.code == code
    assert PASSWORD not in str(told.value)


@pytest.mark.parametrize(
    "address", ["64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "::ffff:169.254.169.254", "ff0e::1", "10.0.0.1"]
)
def test_no_server_hides_a_private_address_in_a_public_one(
    ftp: FtpStandIn, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """NAT64 and 6to4 lead from an address of the internet to any of IPv4, that of the instance's credentials too."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (address, 21))])

    with pytest.raises(Permanent) as told:
        Pumped(BUCKET, server_at(ftp, private=False)).files()

    assert told.value.code == "ftp_private"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a server at 127.0.0.1, by nobody but itself."""
    key, now = ec.generate_private_key(ec.SECP256R1()), process_time()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "stand-in")])
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    place = tmp_path_factory.mktemp("tls") / "server.pem"
    place.write_bytes(private + made.public_bytes(pem))
    return place


@pytest.fixture
def ftps(certificate: Path) -> Iterator[FtpStandIn]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with FtpStandIn(tls=context) as server:
        yield server


@pytest.mark.full
def test_a_file_is_brought_over_tls_in_the_session_of_its_log_in(
    ftps: FtpStandIn, certificate: Path, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    large = b"title\n" + b"x" * PART
    ftps.put("a.csv", b"title\nTV\n")
    ftps.put("b.csv", large)
    inbox = Pumped(BUCKET, server_at(ftps, tls=True))
    small_file, large_file = inbox.files()

    assert inbox.bring(small_file, "uploads/a", None, 5.0) is None
    assert inbox.bring(large_file, "uploads/b", None, 5.0) is None

    assert content_at(s3, "uploads/a") == b"title\nTV\n"
    assert content_at(s3, "uploads/b") == large
    assert ftps.asked[0] == "AUTH TLS", "nothing is said before"


def test_a_server_that_nobody_vouches_for_is_told_nothing(ftps: FtpStandIn) -> None:
    with pytest.raises(Transient, match="SSLCertVerificationError"):
        Pumped(BUCKET, server_at(ftps, tls=True)).files()
    assert ftps.asked == ["AUTH TLS"]


def test_a_server_without_tls_is_not_told_the_password(ftp: FtpStandIn) -> None:
    with pytest.raises(Permanent, match="504"):
        Pumped(BUCKET, server_at(ftp, tls=True)).files()
    assert ftp.asked == ["AUTH TLS"]
