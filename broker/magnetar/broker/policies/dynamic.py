"""Settings that are changed while brokers run: the brokers' own values of policies.

    /admin/configuration        DynamicSettingsRecord: name -> value as text

A value that is set there overrides the own settings of every broker of the metadata store, until it
is removed. Pulsar's names are accepted too (pulsar_names.py); ours are stored.
"""

import asyncio
from collections.abc import Callable, Mapping

import structlog
from pydantic import Field, ValidationError

from magnetar.broker.base.errors import InvalidNameError, RequestError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.base.settings.policies import PolicySettings
from magnetar.broker.policies.model import Record
from magnetar.broker.policies.pulsar_names import PULSARS, WITHOUT_MEANING, our_setting
from magnetar.broker.policies.records import Followed, change_record, read_record
from magnetar.ledger.metadata.store import MetadataStore

_log = structlog.get_logger()

_PATH = "/admin/configuration"

NAMES = tuple(sorted(set(PolicySettings.model_fields) - {"partitions_max"}))
"""Settings that may be changed, by our names. `partitions_max` is not one: stored records depend on
it."""


ALL_NAMES = (*NAMES, *sorted(PULSARS[name] for name in NAMES if name in PULSARS))
"""Names of the settings that may be changed, ours and Pulsar's."""


def under_both_names(values: Mapping[str, str]) -> dict[str, str]:
    """Return settings by our names, and also by Pulsar's where it has one."""
    pulsars = {PULSARS[name]: value for name, value in values.items() if name in PULSARS}
    return {**values, **pulsars}


class DynamicSettingsRecord(Record):
    """The dynamic settings that are set."""

    values: dict[str, str] = Field(default_factory=dict)


class DynamicConfiguration:
    """Follows and changes the dynamic settings."""

    def __init__(
        self, store: MetadataStore, settings: BrokerSettings, on_change: Callable[[], None]
    ) -> None:
        """`on_change` is called when `current` has changed."""
        self._store = store
        self._settings = settings
        self._on_change = on_change
        self.current = settings
        """The settings of this broker, overridden by the dynamic ones."""
        self._followed = Followed(store, _PATH, self._read, self._changed, asyncio.Semaphore(1))

    async def start(self) -> None:
        """Read the dynamic settings, and follow them. An unavailable store is read again later."""
        try:
            self._apply(await self._followed.get())
        except RequestError as error:
            _log.warning("dynamic_settings_not_read", error=str(error))
            self._followed.expect({})

    def close(self) -> None:
        """Stop following the settings."""
        self._followed.close()

    async def values(self) -> Mapping[str, str]:
        """Return the dynamic settings that are set now.

        Raises:
            BrokerMetadataError
        """
        return await self._followed.latest()

    async def reread(self) -> None:
        """Apply the dynamic settings with every change that was stored before this call.

        Raises:
            BrokerMetadataError
        """
        self._apply(await self._followed.reread())

    async def set(self, name: str, value: str) -> None:
        """Set a dynamic setting, by our name or Pulsar's.

        Raises:
            InvalidNameError: there is no such setting, or it cannot have this value.
            BrokerMetadataError
        """
        given, (name, value) = name, our_setting(name, value)
        self._check_name(name)

        def with_it(values: dict[str, str]) -> dict[str, str]:
            after = {**values, name: value}
            try:
                self._with(after)
            except ValidationError as error:
                reason = f"{given}: {error.errors()[0]['msg']}, got {value!r}"
                raise InvalidNameError(reason) from error
            return after

        await self._change(with_it)

    async def remove(self, name: str) -> None:
        """Remove a dynamic setting, by our name or Pulsar's.

        Raises:
            InvalidNameError: there is no such setting, or other dynamic settings need it.
            BrokerMetadataError
        """
        name, _ = our_setting(name, "")
        self._check_name(name)

        def without(values: dict[str, str]) -> dict[str, str]:
            left = {each: value for each, value in values.items() if each != name}
            try:
                self._with(left)
            except ValidationError as error:
                if self._fits(values):  # else this may be a step towards valid ones
                    reason = f"without {name}: {error.errors()[0]['msg']}"
                    raise InvalidNameError(reason) from error
            return left

        await self._change(without)

    def _check_name(self, name: str) -> None:
        if name in NAMES:
            return
        if name in type(self._settings).model_fields:
            raise InvalidNameError(
                f"{name} cannot be changed while a broker runs: set it in the configuration and "
                "restart"
            )
        if name in WITHOUT_MEANING:
            raise InvalidNameError(
                f"Pulsar's setting {name} cannot be set here: {WITHOUT_MEANING[name]}"
            )
        raise InvalidNameError(f"there is no setting {name!r}")

    async def _change(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        def changed(before: DynamicSettingsRecord | None) -> DynamicSettingsRecord:
            record = before or DynamicSettingsRecord()
            return record.model_copy(update={"values": change(record.values)})

        await self._followed.get()  # Followed before the change, so that the change is reported.
        record = await change_record(self._store, DynamicSettingsRecord, _PATH, changed)
        assert record is not None
        self._followed.wrote(record.values)

    async def _read(self) -> dict[str, str]:
        found = await read_record(self._store, DynamicSettingsRecord, _PATH)
        return found[0].values if found is not None else {}

    def _changed(self, before: dict[str, str], after: dict[str, str]) -> None:
        self._apply(after)

    def _with(self, values: Mapping[str, str]) -> BrokerSettings:
        known = {name: value for name, value in values.items() if name in NAMES}
        return type(self._settings)(**{**self._settings.model_dump(), **known})

    def _fits(self, values: Mapping[str, str]) -> bool:
        try:
            self._with(values)
        except ValidationError:
            return False
        return True

    def _apply(self, values: Mapping[str, str]) -> None:
        try:
            settings = self._with(values)
        except ValidationError as error:  # of a newer release, or in conflict here
            _log.warning("dynamic_settings_refused", error=str(error))
            return
        if settings != self.current:
            self.current = settings
            self._on_change()
