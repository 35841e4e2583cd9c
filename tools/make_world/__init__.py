"""Make the embedded models that `resources/world` contains: `make world`."""

import lever_pipe  # noqa: F401 - chooses the numeric path before anything imports torch
