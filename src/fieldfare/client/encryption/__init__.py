"""The client side of encrypted spaces, which has the key: docs/encrypted-spaces.md.

It needs the extra ``encrypted``.
"""

from fieldfare.client.encryption.attributes import NumberAttribute
from fieldfare.client.encryption.key_file import read_key, write_key
from fieldfare.client.encryption.space_key import SpaceKey
from fieldfare.client.errors import EncryptionError

__all__ = ["EncryptionError", "NumberAttribute", "SpaceKey", "read_key", "write_key"]
