"""Every stand-in of the local cloud by its name. A kind of work that asks an upstream adds one entry here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from infra.local.standins.boards import AdzunaStandIn, InfoJobsStandIn, with_offers
from infra.local.standins.dropbox import DropboxStandIn, with_photos
from infra.local.standins.google_sheets import GoogleSheetsStandIn, with_a_sheet
from infra.local.standins.mce import MceStandIn
from infra.local.standins.nivoda import PASSWORD, USERNAME, NivodaStandIn
from infra.local.standins.product_search import SearchStandIn
from infra.local.standins.server import StandIn
from infra.local.standins.sources import SourcesStandIn


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How a stand-in is made, and what the template is told of it.

    `address` is the template's parameter for where the upstream is; `account` are those for who we are there, with what the
    stand-in takes. The functions know each under BATON_ and the parameter's name in capitals, as the variables in `env`.
    """

    make: Callable[[int, int], StandIn]  # seed, size
    address: tuple[str, str]
    account: Mapping[str, tuple[str, str]]

    def parameters(self, url: str, env: Mapping[str, str], *, own: bool) -> dict[str, str]:
        """`own`: the stand-in itself is there; else the account may come from the environment."""
        name, _ = self.address
        given = {
            parameter: value if own else env.get(variable, value)
            for parameter, (variable, value) in self.account.items()
        }
        return {name: url, **given}


STANDINS: Mapping[str, Place] = {
    "nivoda": Place(
        make=lambda seed, size: NivodaStandIn(seed, stones=size),
        address=("NivodaBaseUrl", "BATON_NIVODA_BASE_URL"),
        account={
            "NivodaUsername": ("BATON_NIVODA_USERNAME", USERNAME),
            "NivodaPassword": ("BATON_NIVODA_PASSWORD", PASSWORD),
        },
    ),
    "mce": Place(
        make=lambda seed, _: MceStandIn(seed),
        address=("MceBaseUrl", "BATON_MCE_BASE_URL"),
        account={},  # every tenant brings a connection of its own
    ),
    "infojobs": Place(
        make=lambda seed, _: with_offers(InfoJobsStandIn(seed)),
        address=("InfojobsBaseUrl", "BATON_INFOJOBS_BASE_URL"),
        account={},
    ),
    "adzuna": Place(
        make=lambda seed, _: with_offers(AdzunaStandIn(seed)),
        address=("AdzunaBaseUrl", "BATON_ADZUNA_BASE_URL"),
        account={},
    ),
    "google_sheets": Place(
        make=lambda seed, _: with_a_sheet(GoogleSheetsStandIn(seed)),
        address=("GoogleSheetsBaseUrl", "BATON_GOOGLE_SHEETS_BASE_URL"),
        account={},
    ),
    "dropbox": Place(
        make=lambda seed, _: with_photos(DropboxStandIn(seed)),
        address=("DropboxBaseUrl", "BATON_DROPBOX_BASE_URL"),
        account={},
    ),
    "sources": Place(
        make=lambda seed, _: SourcesStandIn(seed),
        address=("SourcesStandin", "BATON_SOURCES_STANDIN"),
        account={},  # every tenant brings a connection of its own
    ),
    "product_search": Place(
        make=lambda seed, _: SearchStandIn(seed),
        address=("ProductSearchBaseUrl", "BATON_ROWS_PROVIDER_URL"),
        account={},  # as above
    ),
}
