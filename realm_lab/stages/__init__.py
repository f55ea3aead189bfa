"""The stages of the pipeline: `run` does one stage for every run of the parameters."""

from realm_lab.stages.pipeline import run

__all__ = ["run"]
