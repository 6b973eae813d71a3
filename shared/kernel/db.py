"""Guards the way to Postgres: verified TLS, no idle flights, no tenant left behind, and errors that say what they are."""

from __future__ import annotations

import functools
import ipaddress
import ssl
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar, cast

import orjson
import sqlalchemy as sa
from pg8000.exceptions import InterfaceError
from sqlalchemy.pool import ConnectionPoolEntry

from shared.kernel import flights as driver
from shared.kernel.settings import BadSettings

T = TypeVar("T")
Loan = ConnectionPoolEntry

DRIVER = "postgresql+pg8000"
SPELLINGS = frozenset({"postgres", "postgresql", DRIVER})
URL_OPTIONS = frozenset({"sslmode", "sslrootcert", "unix_sock"})
TLS_MODES = frozenset({"require", "verify-ca", "verify-full"})

# 57P01-57P03: the server stops, crashed, or is still starting. 40001, 40P01: the loser of a race may try again.
SHUTDOWNS = frozenset({"57P01", "57P02", "57P03"})
# A failover left us with a server that only reads.
READ_ONLY = "25006"
CONFLICTS = frozenset({"40001", "40P01"})
# Gave up: waiting for a lock (55P03), at its statement_timeout (57014), or for want of a free connection (53300).
GIVEN_UP = frozenset({"55P03", "57014", "53300"})
LOST = ("network error", "connection is closed", "communication error", "Can't create a connection")

# For one transaction only: a setting of the session would meet the next user of the connection.
SET_TENANT = "select set_config('app.tenant', $1, true)"
# The same for somebody who sees only what is his own.
SET_TENANT_AND_OWNER = "select set_config('app.tenant', $1, true), set_config('app.owner', $2, true)"


class Lends(sa.Pool):
    """Lends connections as they are. SQLAlchemy's proxy around each costs as much as a tenth of all Python of a short job."""

    def lend(self) -> Loan:
        record: Any = self._do_get()
        try:
            connection = record.get_connection()
            if self.dispatch.checkout:
                self.dispatch.checkout(connection, record, None)
        except BaseException as error:
            record.invalidate(error)
            self._do_return_conn(record)
            raise
        return cast("Loan", record)

    def take_back(self, record: Loan, error: BaseException | None) -> None:
        """With its server gone it is of no more use; else what is open is rolled back, and autocommit left."""
        connection = connection_of(record)
        try:
            if error is not None and (connection.closed or is_disconnect(error)):
                record.invalidate(error)
            else:
                connection.rollback()
                connection.autocommit = False
        except Exception as failed:
            record.invalidate(failed)
        finally:
            self._do_return_conn(record)


class KeptPool(Lends, sa.QueuePool):
    """Connections that are kept."""


class NoPool(Lends, sa.NullPool):
    """A new connection each time."""


def connection_of(record: Loan) -> driver.Connection:
    return cast("driver.Connection", record.dbapi_connection)


def connect_engine(
    url: str,
    *,
    pool: Literal["one", "none"] = "one",
    pool_size: int = 1,
    application_name: str = "baton",
    password: Callable[[], str] | None = None,
    connect_seconds: float = 10.0,
) -> sa.Engine:
    """Make an engine whose connections need one flight per statement.

    `pool="one"` keeps `pool_size` connections for at most 300 s each, and never pings: a lost one shows at its first
    statement and is replaced at the next checkout. `pool="none"` connects anew each time and names no statement, which
    would pin RDS Proxy: use it behind a pooler.
    `password` is asked for every new connection, so that tokens and rotated secrets stay fresh.

    TLS: a loopback host or a `unix_sock=` connects in the clear unless the url asks (`sslmode=require` or
    `sslrootcert=`); any other host always gets TLS with a verified certificate and host name, whatever the mode is
    called. `sslrootcert=` names the bundle to trust instead of the system's; `sslmode=disable` alone turns TLS off.

    Values come as pg8000 decodes them, json and jsonb by orjson; a timestamp that Python cannot hold ('infinity')
    comes as its text. Errors of the server are `sa.exc.DatabaseError`: ask `sqlstate`, not the class.
    """
    where = location(url)
    wants_tls(where)  # what makes no sense is refused now
    tls = functools.cache(lambda: tls_for(where))  # 30 ms that a function without a connection need not pay

    def connect() -> driver.Connection:
        return driver.Connection(
            user=where.username,
            password=(password() if password else where.password)
            or "",  # without any the driver fails before the server
            host=where.host or "localhost",
            port=where.port or 5432,
            database=where.database,
            unix_sock=where.query.get("unix_sock"),
            ssl_context=tls(),
            timeout=connect_seconds,
            application_name=application_name,
            keeps_plans=pool == "one",
        )

    kept: dict[str, Any] = {"poolclass": KeptPool, "pool_size": pool_size, "max_overflow": 0, "pool_recycle": 300}
    engine = sa.create_engine(
        where.set(query={}),
        creator=connect,
        json_serializer=jsonb,
        json_deserializer=orjson.loads,
        hide_parameters=True,  # an error's text goes to the log; a customer's rows do not
        **(kept if pool == "one" else {"poolclass": NoPool}),
    )
    sa.event.listen(engine, "handle_error", _notice_loss)
    sa.event.listen(engine, "reset", _leave_autocommit)
    return engine


def autocommit(engine: sa.Engine) -> sa.Engine:
    """Share `engine`'s pool, but let each statement be its own transaction.

    SQLAlchemy's AUTOCOMMIT level would send SET SESSION CHARACTERISTICS when the connection goes back: two flights,
    and a pinned RDS Proxy.
    """
    each = engine.execution_options()
    sa.event.listen(each, "begin", _enter_autocommit)
    return each


def set_tenant(conn: sa.Connection, tenant: uuid.UUID) -> None:
    """Let the next statement run as `tenant`, and the rest of its transaction too.

    It costs no flight and, like any statement, opens SQLAlchemy's transaction, whose end drops it. In autocommit it holds for that one statement. Once a transaction that set it has ended,
    Postgres shows the setting as '' (not NULL): policies read `nullif(current_setting('app.tenant', true), '')`.
    """
    if not conn.in_transaction():
        conn.begin()
    _driver(conn).before_next(SET_TENANT, str(tenant))


def flights(conn: sa.Connection) -> int:
    """Count the network round trips of this connection since it was opened."""
    return _driver(conn).flights


def jsonb(value: Any) -> str:
    """Encode a parameter for `cast(:x as jsonb)`."""
    return orjson.dumps(value).decode()


def uuids(ids: Iterable[uuid.UUID]) -> str:
    """Encode a parameter for `cast(:x as uuid[])`: the driver would look at every character."""
    return f"{{{','.join(map(str, ids))}}}"


def sqlstate(error: BaseException) -> str | None:
    """The server's five-letter reason; for a cut connection, the one it gave before it hung up."""
    origin = _origin(error)
    return driver.sqlstate(origin) or driver.sqlstate(origin.__cause__)


def is_disconnect(error: BaseException) -> bool:
    """Whether the connection is gone or of no more use (or could not be made): ask again on a new one.

    Nothing is known of the statement's fate, unless the server `only_reads`.
    """
    origin = _origin(error)
    if isinstance(origin, OSError):
        return True
    if isinstance(origin, InterfaceError) and str(origin).startswith(LOST):
        return True
    state = sqlstate(error) or ""
    return state in SHUTDOWNS or state.startswith("08") or state == READ_ONLY


def only_reads(error: BaseException) -> bool:
    """Whether the server refused to write, and so did nothing: another one writes now."""
    return sqlstate(error) == READ_ONLY


def again_if_disconnected(read: Callable[[], T]) -> T:
    """Ask once more on a new connection: the old one may have died while the function was frozen."""
    try:
        return read()
    except Exception as error:
        if not is_disconnect(error):
            raise
        return read()


def is_conflict(error: BaseException) -> bool:
    """Whether the server broke off this transaction in favour of another one; a new attempt may succeed."""
    return sqlstate(error) in CONFLICTS


def is_busy(error: BaseException) -> bool:
    """Whether the server did nothing because of others: it is well, and a later attempt may succeed."""
    return is_conflict(error) or sqlstate(error) in GIVEN_UP


def tls_for(url: sa.URL) -> ssl.SSLContext | Literal[False]:
    """Choose the TLS of a url: `False` (pg8000's word for none) or a context that verifies the server."""
    return (
        ssl.create_default_context(cafile=cast("str | None", url.query.get("sslrootcert"))) if wants_tls(url) else False
    )


def wants_tls(url: sa.URL) -> bool:
    """Everything but this machine wants it, unless it is told not to."""
    mode, bundle = url.query.get("sslmode"), url.query.get("sslrootcert")
    if mode == "disable":
        return False
    if mode is not None and mode not in TLS_MODES:
        raise BadSettings(f"sslmode={mode} is neither off nor verified; use disable or verify-full")
    return not (mode is None and bundle is None and _stays_on_this_machine(url))


def as_user(url: str, user: str) -> str:
    """The same database, entered as somebody else."""
    return location(url).set(username=user).render_as_string(hide_password=False)


def location(url: str) -> sa.URL:
    try:
        where = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # whose text may quote it, password and all
        raise BadSettings("the database url can't be read; it looks like postgresql://user:password@host/db") from None
    if where.drivername not in SPELLINGS:
        raise BadSettings(f"not a Postgres url for pg8000: {where.drivername}://")
    if unknown := where.query.keys() - URL_OPTIONS:
        raise BadSettings(f"unknown options in the database url: {', '.join(sorted(unknown))}")
    return where.set(drivername=DRIVER)


def _stays_on_this_machine(url: sa.URL) -> bool:
    if "unix_sock" in url.query or url.host in {None, "", "localhost"}:
        return True
    try:
        return ipaddress.ip_address(url.host).is_loopback
    except ValueError:
        return False


def _driver(conn: sa.Connection) -> driver.Connection:
    return cast("driver.Connection", conn.connection.dbapi_connection)


def _origin(error: BaseException) -> BaseException:
    return error.orig if isinstance(error, sa.exc.DBAPIError) and error.orig is not None else error


def _notice_loss(context: sa.ExceptionContext) -> None:
    """Mark every kind of loss, also those the dialect does not know, so that the pool replaces the connection."""
    conn = context.connection
    given_up = conn is not None and not conn.closed and not conn.invalidated and _driver(conn).closed
    context.is_disconnect = context.is_disconnect or given_up or is_disconnect(context.original_exception)


def _enter_autocommit(conn: sa.Connection) -> None:
    _driver(conn).autocommit = True


def _leave_autocommit(connection: Any, *_: Any) -> None:
    connection.autocommit = False
