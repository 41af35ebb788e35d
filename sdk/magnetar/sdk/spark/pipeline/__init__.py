"""Three jobs around topics: archive, replay, rollup. Guide: docs/pipeline.md.

Each module runs by itself, with `spark-submit FILE.py …` or `python -m MODULE …`, and through
`magnetar pipeline`.
"""
