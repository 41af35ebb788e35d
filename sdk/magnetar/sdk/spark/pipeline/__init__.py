"""Three jobs around topics: archive, replay, rollup. Guide: docs/pipeline.md.

Each module of them runs by itself, with `spark-submit FILE.py …` or `python -m MODULE …`; so does
`magnetar pipeline`.
"""
