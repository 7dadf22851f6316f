"""Nothing is skipped in silence: skips are counted, and in CI one is a failure."""

import os


def pytest_terminal_summary(terminalreporter):
    skipped = terminalreporter.stats.get("skipped", [])
    terminalreporter.write_line(f"{len(skipped)} skipped")
    for report in skipped:
        terminalreporter.write_line(f"  {report.nodeid}: {report.longrepr[2]}")


def pytest_sessionfinish(session):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") and reporter.stats.get("skipped") and session.exitstatus == 0:
        session.exitstatus = 1
