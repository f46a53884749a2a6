"""Channels of a store that may hold encrypted payloads, and whether a key decrypts them.

A store does not say that it is encrypted. Without the key nothing is certain; with it, the tag of a message is
proof.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final

from stantools.errors import StantoolsError, StoreChangedError
from stantools.escaping import escape
from stantools.format.encryption import ChannelCipher, DecryptError, looks_encrypted, may_be_encrypted
from stantools.inspection.stored_messages import MessageReader, Selection, StoredMessage
from stantools.notation import counted, some_of
from stantools.options import SERVER_KEY_VARIABLE
from stantools.store.directory import ChannelFiles, Datastore

#: Messages read at each end of a channel: encryption may have been turned on or off in between.
_SAMPLES: Final = 4
_NAMED: Final = 3


@dataclass(frozen=True)
class CiphertextReport:
    """Signs of encryption in the first and last messages of each channel."""

    suspected: tuple[str, ...] = ()  #: channels whose payloads may be encrypted; no key was given
    opened: tuple[str, ...] = ()  #: channels with payloads that the key decrypts
    refused: tuple[str, ...] = ()  #: channels with payloads that look encrypted, none of which the key decrypts

    @property
    def sentence(self) -> str:
        """One sentence, "" if nothing looks encrypted; STORE stands for the store in its command."""
        parts = []
        if self.opened:
            parts.append(f"payloads of {_listed(self.opened)} are encrypted, and the key opens them")
        if self.refused:
            why = "it is not their key, or they are not encrypted"
            parts.append(f"payloads of {_listed(self.refused)} may be encrypted, and the key does not open them: {why}")
        if self.suspected:
            text = (
                f"payloads of {_listed(self.suspected)} may be encrypted; the key of the server shows whether they are"
            )
            parts.append(f"{text}: `stantools doctor STORE --encryption-key-env {SERVER_KEY_VARIABLE}`")
        return "; ".join(parts)

    def as_json(self) -> dict[str, Any]:
        return {"suspected": list(self.suspected), "opened": list(self.opened), "refused": list(self.refused)}


def find_ciphertext(store: Datastore, names: Iterable[str] | None = None) -> CiphertextReport:
    """Reads a few messages of each channel (all channels by default), with the store's key if it has one."""
    found: dict[str, list[str]] = {"suspected": [], "opened": [], "refused": []}
    for name in store.channel_names if names is None else names:
        try:
            state = _state(store, store.channel(name))
        except StoreChangedError:
            raise
        except StantoolsError:
            continue  # verify reports this
        if state:
            found[state].append(name)
    return CiphertextReport(**{state: tuple(channels) for state, channels in found.items()})


def _state(store: Datastore, channel: ChannelFiles) -> str:
    reader = MessageReader(channel, store.crc.checking)
    first, last = reader.read(Selection()), reader.read(Selection(tail=_SAMPLES))
    found = (each for each in chain(islice(first, 2 * _SAMPLES), last) if isinstance(each, StoredMessage))
    samples = [(sequence, data) for sequence, data in {each.sequence: each.data for each in found}.items() if data]
    if not may_be_encrypted(samples):
        return ""
    if store.key is None:
        return "suspected"
    cipher = ChannelCipher(store.key, channel.raw_name)
    sealed = (data for sequence, data in samples if looks_encrypted(data, sequence))
    return "opened" if any(_opens(cipher, data) for data in sealed) else "refused"


def _opens(cipher: ChannelCipher, data: bytes) -> bool:
    try:
        cipher.decrypt(data)
    except DecryptError:
        return False
    return True


def _listed(names: tuple[str, ...]) -> str:
    return f"{counted(len(names), 'channel')} ({some_of([escape(each) for each in names], _NAMED)})"
