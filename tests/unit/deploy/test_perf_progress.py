from magnetar.deploy.perf_progress import PerfProgress


def test_the_rate_of_each_second_is_a_line() -> None:
    lines: list[str] = []
    now_s = 100.0
    progress = PerfProgress(write=lines.append, now_s=lambda: now_s)
    progress.on_progress(10)
    assert lines == []
    now_s = 101.0
    progress.on_progress(1_000)
    now_s = 101.5
    progress.on_progress(2_000)
    now_s = 103.0
    progress.on_progress(3_000)
    assert [line.split() for line in lines] == [
        ["1", "s", "1,000", "1,000", "msg/s"],
        ["3", "s", "3,000", "1,000", "msg/s"],
    ]
