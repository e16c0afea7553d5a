"""For every test: nothing is written into the source tree, which may not be ours to write."""

from hypothesis import settings

settings.register_profile("no database", database=None)
settings.load_profile("no database")
