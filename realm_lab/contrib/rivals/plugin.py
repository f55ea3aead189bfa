"""Registers the rival systems; named in pyproject.toml as an entry point of the group `realm_lab.plugins`."""

from realm_lab.contrib.rivals import bm25_dpr_reader as bm25_dpr_reader
from realm_lab.contrib.rivals import closed_book as closed_book
from realm_lab.contrib.rivals import dpr as dpr
from realm_lab.contrib.rivals import drqa as drqa
from realm_lab.contrib.rivals import embedding as embedding
from realm_lab.contrib.rivals import fid as fid
from realm_lab.contrib.rivals import graph_retriever as graph_retriever
from realm_lab.contrib.rivals import hard_em as hard_em
from realm_lab.contrib.rivals import path_retriever as path_retriever
from realm_lab.contrib.rivals import rag as rag
