"""Names of inputs into files: a file, a folder in a known layout, or a data set of the Hugging Face Hub.

Layouts: WikiExtractor's (AA/wiki_00, AB/wiki_17.bz2, ...) and the Hub's (data/train-00000-of-00041.parquet, or
<config>/train-*.parquet). Of a data set only Parquet files are ever fetched or read: no script, no pickle.

The Hub's client is `huggingface_hub` (which the encoder's library brings along), with pyarrow to read: the `datasets`
library would add a second cache, a copy of everything in Arrow, and loaders that run code of the repository.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path

from realm_lab.core.files import digest, digest_file
from realm_lab.errors import UserError

HUB = "hf://"
_HUB_NAME = re.compile(
    r"hf://(?P<id>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?(?:/(?P<config>[^/]+))?(?:/(?P<split>\w+))?/?$"
)
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.parquet$")


def files_of(name: Path | str) -> list[Path]:
    """The files that an input names, in their order."""
    if str(name).startswith(HUB):
        return _hub_files(str(name))
    path = Path(name)
    if not path.is_dir():
        return [path]
    extracted = sorted(found for found in path.rglob("wiki_*") if found.is_file())
    return extracted or _chosen(path, str(path), None, None)


def digest_input(name: Path | str) -> str:
    """SHA-256 of what an input names: of its bytes, wherever they lie."""
    digests = [digest_file(path) for path in files_of(name)]
    return digests[0] if len(digests) == 1 else digest(digests)


def _chosen(folder: Path, name: str, config: str | None, split: str | None) -> list[Path]:
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet"))
    return [folder / chosen for chosen in choose_parquet(names, name, config, split)]


def choose_parquet(names: Sequence[str], source: str, config: str | None, split: str | None) -> list[str]:
    """The Parquet files of one configuration and split of a data set, sorted; `train` where there is a choice."""
    found = [name for name in names if name.endswith(".parquet")]
    if not found and source.startswith(HUB):
        raise UserError(f"{source}: no Parquet files (scripts are never run); choose another data set, or fetch files")
    if not found:
        raise UserError(f"{source}: is a folder without wiki_* or Parquet files; name the files in it")
    folders = sorted({name.rpartition("/")[0] for name in found})
    if config is not None:
        wanted = [folder for folder in folders if config in (folder, folder.rpartition("/")[2])]
    else:
        wanted = [folder for folder in folders if folder in ("", "data")] or folders
    if len(wanted) != 1:
        shown = ", ".join(folders[:8]) + (", ..." if len(folders) > 8 else "")
        raise UserError(f"{source}: name one of its configurations, as in {source.rstrip('/')}/NAME: {shown}")
    inside = sorted(name for name in found if name.rpartition("/")[0] == wanted[0])
    split_of = {name: re.split(r"[-.]", name.rpartition("/")[2])[0] for name in inside}
    split = split or ("train" if "train" in split_of.values() else None)
    inside = [name for name in inside if split in (None, split_of[name])]
    if not inside:
        raise UserError(f"{source}: no split '{split}'; there are {', '.join(sorted({*split_of.values()}))}")
    shards = [match for name in inside if (match := _SHARD.search(name))]
    if shards and len(shards) < int(shards[0][2]):
        raise UserError(f"{source}: {len(shards)} of {int(shards[0][2])} shards are there; fetch the rest")
    return inside


@functools.cache  # a data set may change on the Hub, not within a process
def _hub_files(name: str) -> list[Path]:
    match = _HUB_NAME.match(name)
    if match is None:
        raise UserError(f"{name}: not a data set; write hf://OWNER/NAME[@REVISION][/CONFIG[/SPLIT]]")
    identity, revision, config, split = match["id"], match["revision"], match["config"], match["split"]
    from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    failure = f"{name}: not in the cache, and HF_HUB_OFFLINE forbids the network; unset it, or name a folder of files"
    if not constants.HF_HUB_OFFLINE:
        try:
            listed = HfApi().list_repo_files(identity, repo_type="dataset", revision=revision)
            chosen = choose_parquet(listed, name, config, split)
            return [Path(hf_hub_download(identity, file, repo_type="dataset", revision=revision)) for file in chosen]
        except UserError:
            raise
        except Exception as error:  # the client lets through what its HTTP library raises
            reason = " ".join(str(error).split())[:200]
            failure = (
                f"{name}: cannot be fetched ({type(error).__name__}: {reason}); check name and network, or fetch the "
                "files elsewhere and name their folder"
            )
    try:  # in the client's cache: those of its files that were ever fetched
        folder = Path(snapshot_download(identity, repo_type="dataset", revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        raise UserError(failure) from None
    return _chosen(folder, name, config, split)
