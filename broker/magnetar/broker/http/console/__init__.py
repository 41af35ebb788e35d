"""The console: a page for operators at `/` of every broker.

`files/` has the page as browsers get it: HTML, CSS and ES modules, written by hand, without a build
step and without anything from elsewhere. `serving.py` hands the files out, `forwarding.py` has the
page's requests reach topics that other brokers own.
"""
