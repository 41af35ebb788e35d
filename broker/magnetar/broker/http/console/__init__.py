"""The console: a page for operators at `/` of every broker.

`files/` has the page as browsers get it: HTML, CSS and ES modules, written by hand, without a build
step and without external parts. `serving.py` serves the files. `forwarding.py` forwards the page's
requests to the owners of topics.
"""
