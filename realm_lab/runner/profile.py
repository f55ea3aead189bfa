"""Settings of your cluster, outside the study files: YAML with the keys of launcher.slurm, and --slurm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from realm_lab.core.records import validation_line
from realm_lab.errors import UserError
from realm_lab.params.yaml_file import parse_yaml
from realm_lab.runner.sbatch import no_setting
from realm_lab.runner.study import LauncherSettings, SlurmOptions


def on_cluster(
    settings: LauncherSettings, root: Path, profile: str | None, given: Mapping[str, Any]
) -> LauncherSettings:
    """Override a study's settings by a profile, and both by the `given` ones. A profile is a file, or a name in
    ROOT/profiles or ~/.config/realm_lab. UserError: no such file, or no such setting."""
    values, where = settings.slurm.model_dump(exclude_unset=True), "--slurm"
    if profile is not None:
        folders = (Path(root) / "profiles", Path.home() / ".config" / "realm_lab")
        places = [Path(profile), *(folder / f"{profile}.yaml" for folder in folders)]
        path = next((place for place in places if place.suffix == ".yaml" and place.is_file()), None)
        if path is None:
            raise UserError(f"--profile {profile}: no such file; write {places[1]} with lines such as `partition: gpu`")
        where = f"{path} or --slurm" if given else str(path)
        found = parse_yaml(path.read_text(encoding="utf-8"), str(path)) or {}
        if not isinstance(found, dict):
            raise UserError(f"{path}: no settings; write lines such as `partition: gpu`")
        values |= found
    try:
        slurm = SlurmOptions(**(values | dict(given)))
    except ValidationError as error:
        problem = error.errors()[0]
        keys = ", ".join(SlurmOptions.model_fields)
        if problem["type"] == "extra_forbidden":
            key = str(problem["loc"][0])
            said = f"{key}: no such setting; {no_setting(key, SlurmOptions.model_fields)}"
            raise UserError(f"{where}: {said}; the settings are {keys}") from None
        raise UserError(f"{where}: {validation_line(error)}") from None
    return settings.model_copy(update={"slurm": slurm})
