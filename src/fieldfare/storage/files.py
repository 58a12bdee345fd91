"""The helpers of `fieldfare.files`, by the name that storage has for them."""

from fieldfare.files import (
    TEMPORARY_SUFFIX,
    make_folder,
    remove_abandoned,
    sync_folder,
    temporary_path,
    write_file,
)

__all__ = [
    "TEMPORARY_SUFFIX",
    "make_folder",
    "remove_abandoned",
    "sync_folder",
    "temporary_path",
    "write_file",
]
