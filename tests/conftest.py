"""Settings for every test: no deadline on a busy machine, and the same examples in every run of `make test`."""

from hypothesis import settings

settings.register_profile("test", deadline=None, derandomize=True)
settings.load_profile("test")
