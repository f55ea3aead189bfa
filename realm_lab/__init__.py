"""realm_lab: experiments on retrieval-augmented language-model pre-training (REALM, Guu et al. 2020)."""

__version__ = "0.1.0"

# Part of every run's identity. Bump it when the golden losses move: results made by
# different numerics must never be taken for one another.
ENGINE_VERSION = 1
